package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

// answerElsewhere says yes from a process of its own, as a person's shell does.
func answerElsewhere(t *testing.T, folder, id string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", shellChild(t, "answer", folder, id)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func sealed(t *testing.T, prompt string) func(*Config) {
	return func(c *Config) {
		c.Approvals.Inside = nil
		c.Agent = scriptedAgent(t, prompt)
	}
}

type ended struct {
	rep Report
	err error
}

func runAgent(ctx context.Context, s *Session) <-chan ended {
	done := make(chan ended, 1)
	go func() {
		rep, err := s.RunAgent(ctx)
		done <- ended{rep, err}
	}()
	return done
}

// A sealed agent asks, a person answers from another process, and the agent is
// not taken for silent meanwhile.
func TestAnsweredFromAnotherProcess(t *testing.T) {
	o := newOffice(t, sealed(t, "call write_file "+writeA+"\nsay done"), func(c *Config) { c.Agent.Idle = 2 * time.Second })
	socket := o.run.File(control.SocketName)
	if st, err := os.Lstat(socket); err != nil || st.Mode().Type() != os.ModeSocket || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", st, err)
	}
	done := runAgent(t.Context(), o.Session)
	q := o.question()
	time.Sleep(3 * time.Second) // longer than it may be silent
	if out := answerElsewhere(t, o.Folder(), q.ID); out != "answered: <nil>\n" {
		t.Error(out)
	}
	end := next(t, done, "the run")
	if end.err != nil || !end.rep.OK || end.rep.Calls != 1 || end.rep.Text != "done" || !o.has("a.txt") {
		t.Errorf("%+v, %v", end.rep, end.err)
	}
	if out := answerElsewhere(t, o.Folder(), q.ID); !strings.Contains(out, control.ErrNobody.Error()) {
		t.Errorf("after the run: %s", out)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	for _, r := range records(t, o.Session) {
		if r.Kind == audit.Answer && (!strings.HasPrefix(r.Detail, fmt.Sprintf("uid %d pid ", os.Geteuid())) || r.Reason != "it says itself") {
			t.Errorf("%+v", r)
		}
	}
}

// Whatever ends a run ends its questions too.
func TestRunEndsWhileAPersonIsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		wall time.Duration
		kind fault.Kind
	}{
		"the wall time":       {5 * time.Second, fault.Wall},
		"an interrupt":        {0, fault.Interrupted},
		"the agent is killed": {0, fault.Agent},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := newOffice(t, sealed(t, "call write_file "+writeA), func(cfg *Config) { cfg.Agent.Wall = c.wall })
			done := runAgent(ctx, o.Session)
			q := o.question()
			switch name {
			case "an interrupt":
				cancel()
			case "the agent is killed":
				for _, pid := range proc.Alive(o.ID()) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			end := next(t, done, "the run")
			if fault.KindOf(end.err) != c.kind {
				t.Errorf("%v", end.err)
			}
			if left := proc.Alive(o.ID()); len(left) > 0 {
				t.Errorf("alive: %v", left)
			}
			if got := stored(t, o.Session); len(got) != 1 || got[0].ID != q.ID || got[0].State != approve.Void {
				t.Errorf("%+v", got)
			}
			if _, err := os.Lstat(o.run.File(control.SocketName)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is left: %v", err)
			}
			if shape(t, o.Session) != "begin end:cancelled" || o.has("a.txt") {
				t.Error(shape(t, o.Session))
			}
		})
	}
}

// notified is a run whose questions are told to a shell.
func notified(t *testing.T, script string) *office {
	return newOffice(t, func(c *Config) {
		sealed(t, "say a")(c)
		c.Approvals.Notify = []string{"sh", "-c", script}
		c.Environ = append(os.Environ(), "PAGER_KEY=0123456789", "OUT="+c.Folder, "RUNS="+filepath.Join(c.StateDir, "runs"))
	})
}

// until waits for a file with a whole line in it, and returns it.
func until(t *testing.T, file string) string {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil && bytes.HasSuffix(b, []byte("\n")) {
			return string(b)
		}
		if time.Now().After(limit) {
			t.Fatalf("no %s", file)
		}
	}
}

func TestNotify(t *testing.T) {
	o := notified(t, `cat >"$OUT/in"; echo "$PAGER_KEY $PWD" >"$OUT/env"`)
	done := o.start("write_file", writeA)
	q := o.question()
	if got := until(t, filepath.Join(o.cfg.Folder, "env")); got != "0123456789 /\n" {
		t.Errorf("it sees %q", got)
	}
	in := until(t, filepath.Join(o.cfg.Folder, "in"))
	var got struct {
		Event string
		approve.Question
	}
	if err := json.Unmarshal([]byte(in), &got); err != nil || got.Event != "asked" || got.Question != q || strings.Count(in, "\n") != 1 {
		t.Errorf("%v %s\nwant %+v", err, in, q)
	}
	if strings.Contains(in, o.Token()) {
		t.Error("it is told the token")
	}
	o.say(q, approve.Answer{Yes: true})
	says(t, next(t, done, "the call"), false, "created")
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	for _, n := range noticesOf(t, o.Session) {
		if !strings.HasSuffix(n, approve.ErrHookEnded.Error()) { // it may end while the run does
			t.Error(n)
		}
	}
}

func noticesOf(t *testing.T, s *Session) (all []string) {
	for _, r := range records(t, s) {
		if r.What == "notice" {
			all = append(all, r.Detail)
		}
	}
	return all
}

// A command that fails, or hangs, is a note; the question stands all the same.
func TestNotifyFails(t *testing.T) {
	for name, script := range map[string]string{
		"exit code 3": "exit 3",
		"SIGKILL":     "kill -KILL $$",
		"hangs":       `trap "" TERM; echo up >"$OUT/up"; while :; do sleep 300; done`,
	} {
		t.Run(name, func(t *testing.T) {
			o := notified(t, script)
			done := o.start("write_file", writeA)
			q := o.question()
			if name == "hangs" {
				until(t, filepath.Join(o.cfg.Folder, "up"))
			}
			o.say(q, approve.Answer{Yes: true})
			says(t, next(t, done, "the call"), false, "created")
			if name != "hangs" {
				for limit := time.Now().Add(30 * time.Second); len(noticesOf(t, o.Session)) == 0 && time.Now().Before(limit); {
					time.Sleep(5 * time.Millisecond)
				}
			}
			start := time.Now()
			if err := o.Close(); err != nil || time.Since(start) > 15*time.Second {
				t.Errorf("%v after %s", err, time.Since(start))
			}
			if left := proc.Alive(o.ID()); len(left) > 0 {
				t.Errorf("alive: %v", left)
			}
			notices := noticesOf(t, o.Session)
			if len(notices) != 1 || !strings.HasPrefix(notices[0], "the command that is told of questions failed for "+q.ID+": ") ||
				name == "exit code 3" && !strings.HasSuffix(notices[0], "exit code 3") {
				t.Errorf("%q", notices)
			}
			if !slices.ContainsFunc(o.events, func(e event.Event) bool {
				return e.Kind == event.Notice && strings.HasPrefix(e.Text, "the command that is told of questions failed: ")
			}) {
				t.Errorf("whoever follows is not told: %+v", o.events)
			}
		})
	}
	cfg := baseConfig(t)
	cfg.Builtins, cfg.Allow, cfg.Ask = Builtins(), []string{"write_file"}, []string{"write_file"}
	cfg.Agent = scriptedAgent(t, "say a")
	cfg.Approvals.Notify = []string{"no-such-pager"}
	if s, err := New(t.Context(), cfg); err == nil {
		_ = s.Close()
		t.Error("it started")
	} else if fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), "approvals.notify, no-such-pager") || fault.HintOf(err) == "" {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(cfg.StateDir, "runs")); err != nil || len(left) > 0 {
		t.Errorf("it left %v %v", left, err)
	}
}

// A path from where drawbridge was started is one for the command, which begins
// elsewhere.
func TestNotifyByARelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("pager", []byte("#!/bin/sh\nexec cat >\"$OUT/in\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	o := newOffice(t, sealed(t, "say a"), func(c *Config) {
		c.Approvals.Notify = []string{"./pager"}
		c.Environ = append(os.Environ(), "OUT="+c.Folder)
	})
	done := o.start("write_file", writeA)
	q := o.question()
	if got := until(t, filepath.Join(o.cfg.Folder, "in")); !strings.Contains(got, q.ID) {
		t.Errorf("%s", got)
	}
	o.say(q, approve.Answer{})
	next(t, done, "the call")
}

// The command is there when the run starts, and not when it is needed; and one
// that has to be ended did not succeed, whatever it says.
func TestNotifyIsNotTakenAtItsWord(t *testing.T) {
	program := filepath.Join(t.TempDir(), "pager")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	o := newOffice(t, sealed(t, "say a"), func(c *Config) { c.Approvals.Notify = []string{program} })
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	done := o.start("write_file", writeA)
	o.say(o.question(), approve.Answer{Yes: true})
	says(t, next(t, done, "the call"), false, "created")
	for limit := time.Now().Add(30 * time.Second); len(noticesOf(t, o.Session)) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("no note")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := o.notify(ctx, []string{"/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.02; done"}, nil)
	if !errors.Is(err, context.DeadlineExceeded) { // which the hook has words for
		t.Errorf("%v", err)
	}
}

// The command that tells a person can't be the person.
func TestNotifyCantAnswer(t *testing.T) {
	word := shellChild(t, "answer", "$RUNS/$run", "$id")
	o := notified(t, `read -r q; run=$(expr "$q" : '.*"run":"\([^"]*\)"'); id=$(expr "$q" : '.*"id":"\([^"]*\)"'); `+
		strings.ReplaceAll(strings.Replace(word, "'", `"`, 2), "'", "")+` >"$OUT/out.tmp" 2>&1; mv "$OUT/out.tmp" "$OUT/out"`)
	done := o.start("write_file", writeA)
	q := o.question()
	if got := until(t, filepath.Join(o.cfg.Folder, "out")); !strings.Contains(got, control.ErrRefused.Error()) || !strings.Contains(got, "belongs to run "+o.ID()) {
		t.Errorf("%s", got)
	}
	if len(o.desk.desk.Pending()) != 1 {
		t.Errorf("question %s is answered", q.ID)
	}
	_ = o.Close()
	says(t, next(t, done, "the call"), true, "it was not run")
}

// attack runs a script as code of the run while a question waits, and returns
// what it printed. answer is a shell word that says yes to the question.
func attack(t *testing.T, o *office, script func(answer string) string) (printed string, waiting <-chan call.Result) {
	t.Helper()
	waiting = o.start("write_file", writeA)
	q := o.question()
	out := filepath.Join(o.cfg.Folder, "out")
	text := script(shellChild(t, "answer", o.Folder(), q.ID))
	if o.cfg.Program == nil {
		args, err := json.Marshal(map[string]string{"cmd": text})
		if err != nil {
			t.Fatal(err)
		}
		res := next(t, o.start("execute_command", string(args)), "the command")
		return res.Content[0].Text, waiting
	}
	if err := os.WriteFile(filepath.Join(o.cfg.Folder, "go.tmp"), []byte("{ "+text+"; } >out.tmp 2>&1; mv out.tmp out\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(o.cfg.Folder, "go.tmp"), filepath.Join(o.cfg.Folder, "go")); err != nil {
		t.Fatal(err)
	}
	return until(t, out), waiting
}

// attackers are the two ways code of a run can run unconfined as the user.
func attackers(t *testing.T, f func(t *testing.T, o *office)) {
	t.Run("a program", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		o := newOffice(t, func(c *Config) {
			c.Approvals = Approvals{SameUser: true}
			c.Program = &Program{Path: "/bin/sh", Args: []string{"sh", "-c", "until test -e go; do sleep 0.02; done; . ./go; sleep 300"}}
		})
		done := make(chan error, 1)
		go func() {
			_, _, err := o.RunProgram(ctx)
			done <- err
		}()
		f(t, o)
		cancel()
		_ = next(t, done, "the program")
	})
	t.Run("a shell of a tool", func(t *testing.T) {
		f(t, newOffice(t, func(c *Config) {
			c.Approvals = Approvals{SameUser: true}
			c.SandboxOff, c.Allow = true, append(c.Allow, "execute_command")
		}))
	})
}

func TestTheRunsOwnCodeIsNotHeard(t *testing.T) {
	attackers(t, func(t *testing.T, o *office) {
		printed, waiting := attack(t, o, func(answer string) string {
			return answer + "; setsid -w env -i " + answer + "; (" + answer + ") & wait"
		})
		if n := strings.Count(printed, control.ErrRefused.Error()); n != 3 || strings.Contains(printed, "<nil>") {
			t.Errorf("%d of 3 are refused:\n%s", n, printed)
		}
		select {
		case res := <-waiting:
			t.Fatalf("the call ended: %+v", res)
		default:
		}
		q := o.desk.desk.Pending()
		if len(q) != 1 || o.has("a.txt") {
			t.Fatalf("pending %v, ran %v", q, o.has("a.txt"))
		}
		if out := answerElsewhere(t, o.Folder(), q[0].ID); out != "answered: <nil>\n" {
			t.Error(out)
		}
		says(t, next(t, waiting, "the call"), false, "created")
		early := 0
		for _, r := range records(t, o.Session) {
			if r.Kind == audit.Early && r.What == "control" && strings.Contains(r.Detail, "belongs to run "+o.ID()) {
				early++
			}
		}
		if early != 1 {
			t.Errorf("the record has %d lines on what was tried three times", early)
		}
	})
}

// Code of the run that takes the socket away keeps a person from answering, and
// gets nothing by it.
func TestTheSocketIsTakenAway(t *testing.T) {
	attackers(t, func(t *testing.T, o *office) {
		socket := o.run.File(control.SocketName)
		printed, waiting := attack(t, o, func(answer string) string {
			return "rm '" + socket + "' && echo removed; " + answer
		})
		if !strings.Contains(printed, "removed") || !strings.Contains(printed, control.ErrNobody.Error()) {
			t.Errorf("%s", printed)
		}
		id := o.desk.desk.Pending()[0].ID
		if out := answerElsewhere(t, o.Folder(), id); !strings.Contains(out, control.ErrNobody.Error()) {
			t.Error(out)
		}
		if err := os.WriteFile(socket, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if out := answerElsewhere(t, o.Folder(), id); !strings.Contains(out, "replaced by something that is no socket") {
			t.Error(out)
		}
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
		if len(o.desk.desk.Pending()) != 1 || o.has("a.txt") {
			t.Error("it is answered")
		}
		start := time.Now()
		if err := o.Close(); err != nil || time.Since(start) > 15*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		says(t, next(t, waiting, "the call"), true, "it was not run")
	})
}

// A run that can open no door does not start, also where it has a terminal.
func TestTheSocketCantBeOpened(t *testing.T) {
	o := newOffice(t, sealed(t, "say a"))
	dir, err := state.Open(o.cfg.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	pol, err := policy.FromFlags(o.cfg.Allow, o.cfg.Ask, false, o.cfg.Builtins)
	if err != nil {
		t.Fatal(err)
	}
	for _, terminal := range []bool{false, true} {
		o.cfg.Approvals.Terminal = terminal
		if d, err := o.openDesk(dir, pol); err == nil || d != nil || fault.KindOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("%v %v", d, err) // another one listens there
		}
	}
}

// A person who answers is not fooled by code of the run that listens in the
// place of its drawbridge.
func TestTheSocketIsReplaced(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := newOffice(t, func(c *Config) {
		c.Approvals = Approvals{SameUser: true}
		c.Program = &Program{Path: "/bin/sh", Args: []string{"sh", "-c", "until test -e go; do sleep 0.02; done; . ./go"}}
	})
	done := make(chan error, 1)
	go func() {
		_, _, err := o.RunProgram(ctx)
		done <- err
	}()
	waiting := o.start("write_file", writeA)
	q := o.question()
	socket := o.run.File(control.SocketName)
	if err := os.WriteFile(filepath.Join(o.cfg.Folder, "go"), []byte("rm '"+socket+"'; "+shellChild(t, "listen", o.Folder())+" >listens\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := until(t, filepath.Join(o.cfg.Folder, "listens")); got != "listening\n" {
		t.Fatal(got)
	}
	if out := answerElsewhere(t, o.Folder(), q.ID); !strings.Contains(out, "code of the run listens on control.sock") {
		t.Error(out)
	}
	cancel()
	_ = next(t, done, "the program")
	says(t, next(t, waiting, "the call"), true, "it was not run")
	if o.has("a.txt") {
		t.Error("it ran")
	}
}
