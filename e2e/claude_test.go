package e2e

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

type outcome struct {
	events []event.Event
	stderr string
	lines  []string
	code   int
	signal syscall.Signal
	took   time.Duration
}

// start runs the CLI as agent.Command says, without supervision. poke is
// called with the process once it has been started.
func start(t *testing.T, p agent.Plan, poke func(*os.Process)) outcome {
	t.Helper()
	cli, err := agent.ByName("claude")
	if err != nil {
		t.Fatal(err)
	}
	in, err := cli.Find(Program(t, "claude"), p.Environ)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := cli.Command(in, p)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, spec.Path)
	cmd.Args, cmd.Env, cmd.Dir, cmd.Stdin = spec.Args, spec.Env, spec.Dir, spec.Stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = 5 * time.Second
	for _, content := range spec.Files {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		go func() { w.Write(content); w.Close() }()
		cmd.ExtraFiles = append(cmd.ExtraFiles, r)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if poke != nil {
		go poke(cmd.Process)
	}
	cmd.Wait()
	o := outcome{took: time.Since(began), stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		o.signal = ws.Signal()
	}
	parser := agent.ParserFor(cli, p.Server)
	sc := bufio.NewScanner(&stdout)
	sc.Buffer(nil, 64<<20)
	for sc.Scan() {
		o.lines = append(o.lines, sc.Text())
		o.events = append(o.events, parser.Line(sc.Bytes(), false)...)
	}
	if t.Failed() || testing.Verbose() {
		t.Logf("exit %d %v after %s\nstderr: %s\nstdout:\n%s", o.code, o.signal, o.took, o.stderr, strings.Join(o.lines, "\n"))
	}
	return o
}
