package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxAncestors = 256     // between a process and the first one of its namespace
	maxEnviron   = 8 << 20 // bytes; the kernel takes 6 MiB of arguments and environment at most, but a process may claim more later
	originTries  = 10      // an ancestry can change while it is read
)

var errChanged = errors.New("its ancestry changes while it is read")

// OriginOf tells where the process pid comes from. Whoever must know that pid
// still stands for the process that was meant holds a descriptor of it
// meanwhile, and looks at that afterwards.
//
// A process belongs to a run when it or one of its ancestors is a helper, or was
// started with a marker in its environment. A helper stays the ancestor of
// everything below it while it lives; only where a helper was killed does one
// that had cleared its environment and left its session look like any other.
//
// What can't be told is an error: a process that is gone, whose ancestry can't
// be read to the end (a /proc that hides processes), or whose own environment
// can't. Of an ancestor the environment counts only where it can be read: those
// of another user can't, and are nobody's run.
func OriginOf(pid int) (Origin, error) {
	err := errChanged
	for range originTries {
		var o Origin
		if o, err = originOf(pid); !errors.Is(err, errChanged) {
			return o, err
		}
	}
	return Origin{}, fmt.Errorf("can't tell where process %d comes from: %w", pid, err)
}

func originOf(pid int) (Origin, error) {
	chain, err := ancestry(pid)
	if err != nil {
		return Origin{}, err
	}
	o := Origin{Name: printable(chain[0].name)}
	// The oldest first: a helper is met before the memory of what is below it
	// is read, which could keep the reader waiting.
	for i, p := range slices.Backward(chain) {
		run, err := runOf(p)
		if now, ok := lookup(p.pid); !ok || now.start != p.start {
			return Origin{}, errChanged
		}
		switch {
		case err == nil:
		case i > 0 && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)):
		default:
			return Origin{}, fmt.Errorf("can't read the environment of process %d: %w", p.pid, err)
		}
		if run != "" {
			o.Run = run
			return o, nil
		}
	}
	return o, nil
}

// ancestry is a process, its parent, and so on to the first one of the
// namespace, or to one that was put into the namespace from outside. Each link
// held at one moment: the parent was read while it was the parent.
func ancestry(pid int) ([]info, error) {
	p, ok := lookup(pid)
	if !ok {
		return nil, fmt.Errorf("can't read process %d: %w", pid, os.ErrProcessDone)
	}
	chain := []info{p}
	for p.ppid != 0 {
		if len(chain) > maxAncestors {
			return nil, fmt.Errorf("process %d has more than %d ancestors", pid, maxAncestors)
		}
		parent, found := lookup(p.ppid)
		again, ok := lookup(p.pid)
		if !ok || again.start != p.start || again.ppid != p.ppid {
			return nil, errChanged
		}
		if !found {
			return nil, fmt.Errorf("can't read process %d, an ancestor of process %d: %w", p.ppid, pid, os.ErrPermission)
		}
		chain = append(chain, parent)
		p = parent
	}
	return chain, nil
}

// runOf is the marker p itself carries; of a helper whose marker can't be read,
// what it is called. The environment is the one of its last exec, so far as the
// process has not written over it.
func runOf(p info) (string, error) {
	dir := "/proc/" + strconv.Itoa(p.pid)
	if p.state == 'Z' {
		return "", errors.New("its first thread has ended")
	}
	helper := false
	if b, err := readProcMax(dir+"/cmdline", len(helperName)+1); err == nil || errors.Is(err, errTooLong) {
		helper = string(b) == helperName+"\x00" || string(b) == helperName
	}
	b, err := readProcMax(dir+"/environ", maxEnviron)
	if err == nil {
		for v := range bytes.SplitSeq(b, []byte{0}) {
			if run, ok := strings.CutPrefix(string(v[:min(len(v), 4096)]), MarkerEnv+"="); ok && run != "" {
				return printable(run), nil
			}
		}
	}
	if helper {
		return helperName, nil
	}
	return "", err
}

var errTooLong = errors.New("it is too long")

// readProcMax reads at most n bytes; errTooLong says that there are more.
func readProcMax(path string, n int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(n)+1))
	if len(b) > n {
		return b[:n], errTooLong
	}
	return b, err
}
