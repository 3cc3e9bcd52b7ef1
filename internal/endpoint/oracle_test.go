package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// bearer adds the token, as a client's configuration does.
type bearer struct{ base http.RoundTripper }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+testToken)
	return b.base.RoundTrip(r)
}

// TestOracle drives the endpoint with the client of the official SDK, in every
// version of the protocol that both know.
func TestOracle(t *testing.T) {
	for _, version := range append([]string{modern}, legacyVersions...) {
		t.Run(version, func(t *testing.T) {
			const beat = 20 * time.Millisecond
			h := start(t, func(c *Config) {
				base := c.Call
				c.Instructions = "search <first>"
				c.StreamAfter, c.Heartbeat = beat, beat
				c.Call = func(ctx context.Context, req call.Request) (call.Result, error) {
					if req.Tool != "slow" {
						return base(ctx, req)
					}
					select {
					case <-time.After(10 * beat):
						return call.Text("slow & done"), nil
					case <-ctx.Done():
						return call.Result{}, ctx.Err()
					}
				}
			})
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			var mu sync.Mutex
			var progress []float64
			client := mcp.NewClient(&mcp.Implementation{Name: "oracle", Version: "1"}, &mcp.ClientOptions{
				ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
					mu.Lock()
					defer mu.Unlock()
					progress = append(progress, r.Params.Progress)
				},
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s, err := client.Connect(ctx, &mcp.StreamableClientTransport{
				Endpoint: h.URL(), HTTPClient: &http.Client{Transport: bearer{transport}},
			}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if r := s.InitializeResult(); r.ProtocolVersion != version || r.Instructions != "search <first>" ||
				r.ServerInfo == nil || r.ServerInfo.Name != "drawbridge" || r.Capabilities.Tools == nil {
				t.Errorf("handshake: %+v", r)
			}
			list, err := s.ListTools(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Tools) != 2 || list.Tools[0].Name != "get_time" {
				t.Errorf("tools: %+v", list.Tools)
			}
			res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "read_file", Arguments: map[string]any{"path": "größe<"}})
			if err != nil {
				t.Fatal(err)
			}
			var args struct{ Path string }
			if err := json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &args); err != nil || args.Path != "größe<" {
				t.Errorf("echo: %v %+v", err, args)
			}
			if res, err = s.CallTool(ctx, &mcp.CallToolParams{Name: "denied"}); err != nil || !res.IsError {
				t.Errorf("denied: %v %+v", err, res)
			}
			for _, name := range []string{"delete_file", "never_existed"} {
				_, err = s.CallTool(ctx, &mcp.CallToolParams{Name: name})
				wantCode := int64(codeMethod)
				if version == modern {
					wantCode = codeParams
				}
				e, ok := errors.AsType[*jsonrpc.Error](err)
				if !ok || e.Code != wantCode || e.Message != "tool '"+name+"' is not available to this agent" {
					t.Errorf("%s: %v", name, err)
				}
			}
			params := &mcp.CallToolParams{Name: "slow"}
			params.SetProgressToken("p-1")
			if res, err = s.CallTool(ctx, params); err != nil || res.Content[0].(*mcp.TextContent).Text != "slow & done" {
				t.Errorf("slow: %v %+v", err, res)
			}
			mu.Lock()
			if len(progress) == 0 {
				t.Error("no progress")
			}
			for i, p := range progress {
				if p != float64(i+1) {
					t.Errorf("progress %v", progress)
				}
			}
			mu.Unlock()
			if version != modern {
				if err := s.Ping(ctx, nil); err != nil {
					t.Errorf("ping: %v", err)
				}
			}
			if _, err := s.ListResources(ctx, nil); err != nil {
				t.Errorf("resources/list: %v", err)
			}
			if _, err := s.ListPrompts(ctx, nil); err != nil {
				t.Errorf("prompts/list: %v", err)
			}
			short, stop := context.WithTimeout(ctx, 3*beat)
			defer stop()
			if _, err := s.CallTool(short, &mcp.CallToolParams{Name: "slow"}); err == nil {
				t.Error("a cancelled call succeeded")
			}
			_, refused, details := h.take()
			for i, kind := range refused {
				// The client looks for a stream with GET and ends its session
				// with DELETE; both are a 405 by design.
				if kind != KindMethod {
					t.Errorf("refused: %s %s", kind, details[i])
				}
			}
		})
	}
}

// TestOracle_WrongToken: the client of the SDK sees a 401 as what it is.
func TestOracle_WrongToken(t *testing.T) {
	h := start(t, nil)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	_, err := mcp.NewClient(&mcp.Implementation{Name: "oracle", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: h.URL(), HTTPClient: &http.Client{Transport: transport}, MaxRetries: -1}, nil)
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), "unauthorized") {
		t.Errorf("error %v", err)
	}
}
