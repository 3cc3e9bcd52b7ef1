package builtin

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// Commands says how execute_command runs what it is given.
type Commands struct {
	// Folder is the working directory, absolute.
	Folder string
	// Environ is the caller's environment. Commands get of it what Environment
	// takes, and nothing else.
	Environ []string
	// Wall is how long one command may run; 0 is 2 minutes.
	Wall time.Duration
	// Output is how many bytes of text one result may have; 0 is
	// call.DefaultOutput, and less than 1 KiB is 1 KiB.
	Output int
	// Marker begins the mark of the run's process trees (proc.Spec.Marker):
	// each command has "<Marker>/" and a random suffix. Not empty.
	Marker string
	// TempDir is the commands' TMPDIR; "" keeps the caller's.
	TempDir string
}

const (
	defaultWall = 2 * time.Minute
	commandRoom = 768 // bytes of a result kept for how the command ended
	// maxCommand keeps the command below the 128 KiB Linux allows one argument
	// (MAX_ARG_STRLEN).
	maxCommand = 100_000
)

var errTimeLimit = errors.New("time limit")

type commandArgs struct {
	Cmd     string   `json:"cmd"`
	Timeout *float64 `json:"timeout_seconds"`
}

// Command is execute_command. A command that fails is a result that says its
// exit code. It is isError where there is no exit code to judge by: the command
// could not be started, reached the time limit, or was killed by a signal.
//
// It confines nothing: a command can do what the user can, but for the
// environment. Whatever it leaves behind is ended before it answers.
func Command(c Commands) call.Tool {
	if c.Wall <= 0 {
		c.Wall = defaultWall
	}
	if c.Output <= 0 {
		c.Output = call.DefaultOutput
	}
	c.Output = max(c.Output, 1<<10)
	env := Environment(c.Environ, c.TempDir)
	return tool("execute_command",
		fmt.Sprintf("Run a command with /bin/sh -c in the run's folder and return what it prints and its exit code. There is no terminal and no input: "+
			"pass flags that answer questions. It may run %s; what it leaves in the background is ended. "+
			"Of a long output the beginning and the end are returned.", words(c.Wall)),
		`{"type":"object","properties":{"cmd":{"type":"string","minLength":1,"description":"command line for /bin/sh"},
"timeout_seconds":{"type":"integer","minimum":1,"description":"end it earlier than the limit"}},"required":["cmd"]}`,
		call.Destructive,
		func(ctx context.Context, a commandArgs) (call.Result, error) { return c.run(ctx, env, a) })
}

func (c Commands) run(ctx context.Context, env []string, a commandArgs) (call.Result, error) {
	switch {
	case strings.TrimSpace(a.Cmd) == "":
		return call.Errorf("cmd is empty"), nil
	case strings.ContainsRune(a.Cmd, 0):
		return call.Errorf("cmd has a NUL character, which no command line can have"), nil
	case len(a.Cmd) > maxCommand:
		return call.Errorf("cmd has %d bytes, more than %d: put it in a file and run that", len(a.Cmd), maxCommand), nil
	}
	wall := c.Wall
	if a.Timeout != nil {
		wall = min(wall, time.Duration(count(a.Timeout, 1))*time.Second)
	}
	limited, end := context.WithCancelCause(ctx)
	defer end(nil)

	suffix := make([]byte, 8)
	rand.Read(suffix)
	out := &call.HeadTail{Max: c.Output - commandRoom}
	p, err := proc.Start(limited, proc.Spec{
		Path: "/bin/sh", Args: []string{"/bin/sh", "-c", a.Cmd},
		Env: env, Dir: c.Folder, Marker: c.Marker + "/" + hex.EncodeToString(suffix),
		Stdout: out, Stderr: out,
	})
	if err != nil {
		if ctx.Err() != nil {
			return call.Result{}, ctx.Err()
		}
		if e, ok := errors.AsType[*proc.StartError](err); ok && e.Hint != "" {
			err = fmt.Errorf("%w (%s)", err, e.Hint)
		}
		return call.Errorf("the command could not be started: %v", err), nil
	}
	// A busy machine's slow start is not the command's time.
	limit := time.AfterFunc(wall, func() { end(errTimeLimit) })
	exit, err := p.Wait()
	limit.Stop()

	text, cut, repaired := out.Text()
	timedOut := exit.Ended && context.Cause(limited) == errTimeLimit
	r := call.Result{
		IsError: exit.Ended || exit.Signal != "" || exit.LostHelper || err != nil,
		Flags:   call.Flags{Cut: cut, Repaired: repaired},
	}
	if text != "" {
		r.Content = append(r.Content, call.Block{Text: text})
	}
	r.Content = append(r.Content, call.Block{Text: ending(exit, err, timedOut, wall, text == "")})
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	return r, nil
}

// ending says how a command ended.
func ending(exit proc.Exit, err error, timedOut bool, wall time.Duration, silent bool) string {
	var how string
	switch {
	case timedOut:
		how = "ended at the time limit of " + words(wall)
	case exit.Ended:
		how = "ended before it was done"
	case exit.LostHelper:
		how = "the command killed what watches over it, and was ended"
	case exit.Signal != "":
		how = "killed by " + exit.Signal
	default:
		how = fmt.Sprintf("exit code %d", exit.Code)
	}
	if silent {
		how = "no output; " + how
	}
	s := "[" + how + "]"
	if len(exit.Leftovers) > 0 {
		s += "\n[left running in the background and ended: " + call.Clip(strings.ToValidUTF8(strings.Join(exit.Leftovers, ", "), "\uFFFD")) + "]"
	}
	if err != nil {
		s += "\n[" + call.Clip(err.Error()) + "]"
	}
	return s
}

// words is a duration the way a person says it.
func words(d time.Duration) string {
	if d%time.Minute == 0 && d > time.Minute {
		return fmt.Sprintf("%d minutes", d/time.Minute)
	}
	return fmt.Sprintf("%g s", d.Seconds())
}

// kept are the variables a command gets from the caller: who and where the user
// is, and how text and time are written. None of them holds a secret or makes a
// program load code. No prefix (LC_*) is taken whole, as such names carry
// anything.
var kept = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ",
	"LANG", "LANGUAGE", "LC_ALL", "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT",
	"LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE", "LC_TIME",
}

// quiet makes programs that would open a pager or an editor, or ask for a
// password, go on or fail at once: nobody is there to answer.
var quiet = []string{
	"PAGER=cat", "GIT_PAGER=cat", "MANPAGER=cat", "SYSTEMD_PAGER=cat",
	"EDITOR=true", "VISUAL=true", "GIT_EDITOR=true", "GIT_SEQUENCE_EDITOR=true", "GIT_MERGE_AUTOEDIT=no",
	"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", "SSH_ASKPASS=false", "SSH_ASKPASS_REQUIRE=force", "SUDO_ASKPASS=false",
	"DEBIAN_FRONTEND=noninteractive", "PIP_NO_INPUT=1",
	"TERM=dumb", "NO_COLOR=1",
}

// Environment is the whole environment of a command: of environ, the caller's,
// what is on a short list, and what keeps programs from waiting for a person.
// tempDir, where not "", becomes TMPDIR. Parts of PATH that are not absolute are
// left out, as they would name programs in the run's folder.
func Environment(environ []string, tempDir string) []string {
	vars := map[string]string{}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if slices.Contains(kept, name) && value != "" && !strings.ContainsRune(value, 0) {
			vars[name] = value
		}
	}
	if tempDir != "" {
		vars["TMPDIR"] = tempDir
	}
	path := slices.DeleteFunc(filepath.SplitList(vars["PATH"]), func(p string) bool { return !filepath.IsAbs(p) })
	vars["PATH"] = strings.Join(path, string(filepath.ListSeparator))
	if vars["PATH"] == "" {
		vars["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
	}
	env := slices.Clone(quiet)
	for _, name := range kept {
		if v, ok := vars[name]; ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
