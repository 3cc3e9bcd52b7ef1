package upstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// The test binary is also the server: serverEnv names what it does.
const serverEnv = "UPSTREAM_TEST_SERVER"

func TestMain(m *testing.M) {
	proc.Helper()
	if name := os.Getenv(serverEnv); name != "" {
		serve, ok := servers[name]
		if !ok {
			fmt.Fprintln(os.Stderr, "no such server:", name)
			os.Exit(3)
		}
		serve(&raw{in: bufio.NewReaderSize(os.Stdin, 1<<20), out: os.Stdout})
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// raw is a server that says exactly what it is told to.
type raw struct {
	in  *bufio.Reader
	out io.Writer
	mu  sync.Mutex
	// Tools is what tools/list answers.
	tools string
	// Call answers tools/call; nil echoes the params.
	call func(id, params string)
	// Before sees every message first; true means that it is dealt with.
	before func(id, method, params, line string) bool
}

func (s *raw) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format+"\n", args...)
}

func (s *raw) result(id, result string) { s.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result) }

const oneTool = `[{"name":"echo","inputSchema":{"type":"object"}}]`

// run answers until standard input ends.
func (s *raw) run() {
	if s.tools == "" {
		s.tools = oneTool
	}
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimSuffix(line, "\n")
		s.handle(line)
	}
}

func (s *raw) handle(line string) {
	var m struct {
		ID, Params json.RawMessage
		Method     string
	}
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		s.say("BAD LINE %s", line)
		return
	}
	id, params := string(m.ID), string(m.Params)
	if s.before != nil && s.before(id, m.Method, params, line) {
		return
	}
	switch m.Method {
	case "initialize":
		s.result(id, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"},"instructions":"be <kind>"}`)
	case "tools/list":
		s.result(id, `{"tools":`+s.tools+`}`)
	case "tools/call":
		if s.call != nil {
			s.call(id, params)
			return
		}
		s.result(id, `{"content":[],"params":`+params+`}`)
	default:
		if id != "" && m.Method != "" {
			s.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no method %s"}}`, id, m.Method)
		}
	}
}

// logged are notes and standard error of an upstream.
type logged struct {
	mu     sync.Mutex
	notes  []string
	stderr bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stderr.Write(b)
}

func (l *logged) note(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notes = append(l.notes, text)
}

func (l *logged) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.notes {
		if strings.Contains(n, part) {
			return true
		}
	}
	return false
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.notes, "\n") + "\n--\n" + l.stderr.String()
}

// child is a Spec of one of servers; arg is $ARG of it.
func child(t testing.TB, server, arg string) (Spec, *logged) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := &logged{}
	return Spec{
		Name: "up", Command: []string{exe}, Dir: t.TempDir(), Marker: "test-" + filepath.Base(t.TempDir()) + fmt.Sprint(time.Now().UnixNano()),
		Env:    []string{serverEnv + "=" + server, "ARG=" + arg, "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0"},
		Stderr: l, Note: l.note, Client: "test", Version: "1",
		StartTime: 20 * time.Second, ProbeWait: 10 * time.Second, EOFWait: 2 * time.Second, TermWait: time.Second,
	}, l
}

func start(t testing.TB, spec Spec) *Upstream {
	t.Helper()
	u, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

// fails is the *Error of a call, which must have the code.
func fails(t testing.TB, u *Upstream, ctx context.Context, tool string, code Code) *Error {
	t.Helper()
	b, err := u.Call(ctx, tool, []byte(`{}`), nil)
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != code {
		t.Fatalf("%s %v, want an error %s", b, err, code)
	}
	return e
}

func works(t testing.TB, u *Upstream, args string) []byte {
	t.Helper()
	b, err := u.Call(t.Context(), "echo", []byte(args), nil)
	if err != nil {
		t.Fatalf("echo: %v", err)
	}
	return b
}

// sdkServer is a server of the official SDK.
func sdkServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, &mcp.ServerOptions{Instructions: "hello"})
	s.AddTool(&mcp.Tool{Name: "echo", Description: "says <it> again", InputSchema: json.RawMessage(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`)},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}}}, nil
		})
	s.AddTool(&mcp.Tool{Name: "progress", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := range 3 {
				// A server that answers with JSON has no way to send it.
				_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1), Message: "step"})
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
		})
	s.AddTool(&mcp.Tool{Name: "wait", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second): // the SDK's stateless server hears no cancellation
			}
			return &mcp.CallToolResult{IsError: true}, nil
		})
	s.AddTool(&mcp.Tool{Name: "fail", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "on purpose"}}}, nil
		})
	return s
}

// servers are what the test binary can be as a child. ARG is an argument.
var servers = map[string]func(*raw){}

// big stands in the argument of a server for what has no room there.
const big = "@BIG@"

func do(what string) []byte { return []byte(`{"do":"` + what + `"}`) }

func fails2(t *testing.T, u *Upstream, what string, code Code) *Error {
	t.Helper()
	begun := time.Now()
	_, err := u.Call(t.Context(), "echo", do(what), nil)
	e, ok := err.(*Error)
	if !ok || e.Code != code {
		t.Fatalf("%s: %v, want %s", what, err, code)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("%s took %v", what, took)
	}
	return e
}

// left fails where a process of the marker is alive.
func left(t *testing.T, marker string) {
	t.Helper()
	if n, err := proc.Sweep(marker); err != nil || len(n) > 0 {
		t.Errorf("left running: %v %v", n, err)
	}
}
