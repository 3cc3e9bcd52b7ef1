package agent

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// defaultVersionWait bounds `CLI --version`. The programs are hundreds of megabytes:
// the first start from a cold disk takes seconds.
const defaultVersionWait = 20 * time.Second

var versionWait = defaultVersionWait

// findProgram returns the absolute path of a CLI's program: given, or the
// first file called name on the PATH in environ. Folders on the PATH that are
// not absolute are skipped, so that no folder a run happens to work in decides
// which program is the agent.
func findProgram(name, given, install string, environ []string) (string, error) {
	if given != "" {
		abs, err := filepath.Abs(given)
		if err != nil {
			return "", fault.Wrap(err, fault.Usage, "give --agent-path an absolute path", "agent path %q", given)
		}
		if err := runnable(abs); err != nil {
			return "", fault.Wrap(err, fault.Usage, "--agent-path names the program of the agent itself; "+install, "agent path %s", abs)
		}
		return abs, refuseShim(abs)
	}
	names := []string{name}
	if runtime.GOOS == "windows" {
		names = []string{name + ".exe"}
	}
	shims := []string{name + ".cmd", name + ".bat", name + ".ps1"}
	var shim string
	for _, dir := range filepath.SplitList(envValue(environ, "PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		for _, n := range names {
			if p := filepath.Join(dir, n); runnable(p) == nil {
				return p, nil
			}
		}
		for _, n := range shims {
			p := filepath.Join(dir, n)
			if info, err := os.Stat(p); shim == "" && err == nil && info.Mode().IsRegular() {
				shim = p
			}
		}
	}
	if shim != "" {
		return "", refuseShim(shim)
	}
	return "", fault.New(fault.Usage, install+", or give its path with --agent-path", "%s is not on the PATH", name)
}

func runnable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("no such file")
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("not a file")
	case runtime.GOOS != "windows" && info.Mode()&0o111 == 0:
		return errors.New("not executable")
	}
	return nil
}

// refuseShim refuses the command files that npm writes on Windows: started
// directly they fail, and through cmd.exe every argument is read a second time.
func refuseShim(path string) error {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".cmd", ".bat", ".ps1":
		return fault.New(fault.Usage, "give --agent-path the program that it starts (an .exe)",
			"%s is a shim for a command interpreter, which would read the arguments again", path)
	}
	return nil
}

var versionPattern = lazy(`\d+\.\d+\.\d+[0-9A-Za-z.+-]*`)

// version asks the program at path for its version.
func version(path string, environ []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), versionWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = environ
	// A grandchild that keeps the pipes must not hold up the answer.
	cmd.WaitDelay = time.Second
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	said := clip(oneLine(stderr.String()+" "+out.String()), 200)
	const hint = "run it by hand with --version, or install it again"
	switch {
	case ctx.Err() != nil:
		return "", fault.New(fault.Usage, hint, "%s --version gave no answer in %s", path, versionWait)
	case err != nil && said != "":
		return "", fault.Wrap(errors.New(said), fault.Usage, hint, "%s does not start (%v)", path, err)
	case err != nil:
		return "", fault.Wrap(err, fault.Usage, hint, "%s does not start", path)
	}
	v := versionPattern().FindString(out.String())
	if v == "" {
		return "", fault.New(fault.Usage, hint, "%s --version names no version: %s", path, said)
	}
	return v, nil
}

// atLeast compares versions of the form 1.2.3 by their numbers. One that can't
// be read is at least nothing.
func atLeast(version, oldest string) bool {
	parse := func(s string) (n [3]int, ok bool) {
		s, _, _ = strings.Cut(s, "-")
		parts := strings.Split(s, ".")
		if len(parts) < 3 {
			return n, false
		}
		for i := range n {
			v, err := strconv.Atoi(parts[i])
			if err != nil {
				return n, false
			}
			n[i] = v
		}
		return n, true
	}
	v, ok := parse(version)
	o, _ := parse(oldest)
	return ok && slices.Compare(v[:], o[:]) >= 0
}

// clip is s cut to at most n bytes, as valid UTF-8.
func clip(s string, n int) string {
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// oneLine is s on one line and without control characters.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}
