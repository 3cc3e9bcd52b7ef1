package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

func TestMain(m *testing.M) {
	proc.Helper()
	agent.ScriptedMain()
	stageMain()
	code := Main(m)
	_ = os.RemoveAll(built.dir)
	os.Exit(code)
}

// standin is the least MCP server a CLI takes for one: legacy era, one tool.
// It is for what the CLI does, not for what the endpoint does.
type standin struct {
	url, token string
	delay      time.Duration

	mu      sync.Mutex
	methods []string
	calls   []string
}

func newStandin(t *testing.T, tools ...string) *standin {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &standin{url: "http://" + l.Addr().String() + "/mcp", token: "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serve(w, r, tools)
	})}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return s
}

func (s *standin) serve(w http.ResponseWriter, r *http.Request, tools []string) {
	if r.Header.Get("Authorization") != "Bearer "+s.token {
		s.note("401")
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.Method != http.MethodPost {
		s.note(r.Method)
		w.Header().Set("Allow", "POST")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, _ := io.ReadAll(r.Body)
	var in struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name            string
			ProtocolVersion string
		}
	}
	json.Unmarshal(body, &in)
	s.note(in.Method)
	if in.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	var result any
	switch in.Method {
	case "initialize":
		result = map[string]any{
			"protocolVersion": in.Params.ProtocolVersion, "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]any{"name": "standin", "version": "0"}, "instructions": "INSTR-MARK use it well",
		}
	case "tools/list":
		list := []any{}
		for _, n := range tools {
			list = append(list, map[string]any{"name": n, "description": n, "inputSchema": map[string]any{"type": "object"}})
		}
		result = map[string]any{"tools": list}
	case "tools/call":
		s.mu.Lock()
		s.calls = append(s.calls, string(body))
		s.mu.Unlock()
		select {
		case <-time.After(s.delay):
		case <-r.Context().Done():
			return
		}
		result = map[string]any{"content": []any{map[string]any{"type": "text", "text": "found it"}}}
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, in.ID)
		return
	}
	b, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": in.ID, "result": result})
	w.Header().Set("Content-Type", "application/json")
	w.Write(b)
}

func (s *standin) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.methods = append(s.methods, what)
}

func (s *standin) seen() (methods, calls []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.methods...), append([]string(nil), s.calls...)
}
