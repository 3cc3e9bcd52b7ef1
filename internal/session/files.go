package session

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/config"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

// keep opens a file of the run's folder for output that is masked and bounded.
func (s *Session) keep(name string, limit int64) (io.WriteCloser, error) {
	f, err := os.OpenFile(s.run.File(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, fault.Record, "is the disk full?", "%s of run %s", name, s.binding.Run)
	}
	_ = f.Chmod(0o600) // the umask can only have taken away
	return &kept{s.secrets.Writer(&capped{w: f, left: limit}), f}, nil
}

type kept struct {
	io.WriteCloser
	f *os.File
}

func (k *kept) Close() error { return errors.Join(k.WriteCloser.Close(), k.f.Close()) }

// capped writes at most left bytes and drops the rest: what follows a stream
// must never stop it.
type capped struct {
	w    io.Writer
	left int64
}

func (c *capped) Write(p []byte) (int, error) {
	n := len(p)
	if int64(n) > c.left {
		p = p[:c.left]
	}
	if len(p) > 0 {
		m, err := c.w.Write(p)
		c.left -= int64(m)
		if err != nil {
			c.left = 0
		}
		if c.left == 0 {
			_, _ = io.WriteString(c.w, "\n[the rest was not kept]\n")
		}
	}
	return n, nil
}

// privateName is the folder of what only the agent may read. It may hold the
// token, and goes with the run.
const privateName = "private"

func (s *Session) privateDir() (string, error) {
	dir := s.run.File(privateName)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fault.Wrap(err, fault.Usage, "is the disk full?", "private folder of the run")
	}
	s.release = append(s.release, func() { _ = os.RemoveAll(dir) })
	return dir, nil
}

// protected are the paths the file tools leave alone: the state, and the policy
// file, also where there is none yet, because the next run would read it.
func (s *Session) protected(dir *state.Dir) []string {
	paths := append([]string{dir.Path()}, s.cfg.Protected...)
	if p := config.Default(lookup(s.cfg.Environ)); p != "" {
		paths = append(paths, p)
	}
	return paths
}

const tempPrefix = "drawbridge-"

// tempDir is the run's TMPDIR: short, because socket paths are limited to 108
// bytes, and outside the state directory, which nothing of the run may reach.
func (s *Session) tempDir() (string, error) {
	if s.temp != "" {
		return s.temp, nil
	}
	dir, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		return "", fault.Wrap(err, fault.Usage, "set TMPDIR to a folder that you can write", "temporary folder of the run")
	}
	s.temp = dir
	if err := os.WriteFile(filepath.Join(dir, tempMark), []byte(s.binding.Run), 0o600); err != nil {
		return "", fault.Wrap(err, fault.Usage, "is the disk full?", "temporary folder of the run")
	}
	s.release = append(s.release, func() { _ = os.RemoveAll(dir) })
	return dir, nil
}

// tempMark is a file in a run's temporary folder that holds the run's id.
const tempMark = ".drawbridge-run"

// sweepTemp removes what a dead run's run.json names as its temporary folder,
// where the folder itself says the same: run.json alone could name any.
func sweepTemp(dir, run string) {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || !strings.HasPrefix(filepath.Base(dir), tempPrefix) {
		return
	}
	f, err := state.OpenFile(filepath.Join(dir, tempMark), os.O_RDONLY)
	if err != nil {
		return
	}
	defer f.Close()
	if id, err := io.ReadAll(io.LimitReader(f, 1<<10)); err == nil && string(id) == run {
		_ = os.RemoveAll(dir)
	}
}
