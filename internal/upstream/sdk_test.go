package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func init() {
	servers["sdk"] = func(*raw) { _ = sdkServer().Run(context.Background(), &mcp.StdioTransport{}) }
	// The same, of a time before server/discover.
	servers["sdk legacy"] = func(s *raw) {
		r, w := io.Pipe()
		go func() {
			defer w.Close()
			for {
				line, err := s.in.ReadBytes('\n')
				if err != nil {
					return
				}
				if bytes.Contains(line, []byte(`"server/discover"`)) {
					s.say(`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`)
					continue
				}
				_, _ = w.Write(line)
			}
		}()
		_ = sdkServer().Run(context.Background(), &mcp.IOTransport{Reader: r, Writer: os.Stdout})
	}
}

// TestSDK is held against the servers of the official SDK, over both transports
// and in both eras.
func TestSDK(t *testing.T) {
	overHTTP := func(t *testing.T, era string, o *mcp.StreamableHTTPOptions) Spec {
		s := sdkServer()
		h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, o)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if era == "legacy" && r.Header.Get("Mcp-Protocol-Version") == modern {
				http.Error(w, "what?", http.StatusBadRequest)
				return
			}
			h.ServeHTTP(w, r)
		}))
		t.Cleanup(srv.Close)
		l := &logged{}
		return Spec{Name: "up", URL: srv.URL, Note: l.note, Client: "test", Version: "1"}
	}
	for _, c := range []struct {
		name   string
		modern bool
		spec   func(t *testing.T) Spec
	}{
		{"stdio modern", true, func(t *testing.T) Spec { s, _ := child(t, "sdk", ""); return s }},
		{"stdio legacy", false, func(t *testing.T) Spec { s, _ := child(t, "sdk legacy", ""); return s }},
		{"http modern SSE", true, func(t *testing.T) Spec { return overHTTP(t, "", &mcp.StreamableHTTPOptions{Stateless: true}) }},
		{"http modern JSON", true, func(t *testing.T) Spec {
			return overHTTP(t, "", &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true})
		}},
		{"http legacy SSE", false, func(t *testing.T) Spec { return overHTTP(t, "legacy", nil) }},
		{"http legacy JSON", false, func(t *testing.T) Spec {
			return overHTTP(t, "legacy", &mcp.StreamableHTTPOptions{JSONResponse: true})
		}},
		{"http legacy stateless", false, func(t *testing.T) Spec {
			return overHTTP(t, "legacy", &mcp.StreamableHTTPOptions{Stateless: true})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.HasPrefix(c.name, "stdio") && runtime.GOOS != "linux" {
				t.Skip("processes are supervised on Linux")
			}
			spec := c.spec(t)
			u := start(t, spec)
			if u.conn.modern != c.modern {
				t.Errorf("modern: %v", u.conn.modern)
			}
			if u.Instructions() != "hello" {
				t.Errorf("instructions %q", u.Instructions())
			}
			if tools := u.Tools(); len(tools) != 4 || tools[0].Name != "echo" || tools[0].Description != "says <it> again" || tools[0].Hidden != "" ||
				!json.Valid(tools[0].InputSchema) || !strings.HasPrefix(tools[0].Digest, "sha256:") {
				t.Fatalf("%+v", tools)
			}
			const args = `{"region": "größe\n", "n":9007199254740993,"z":1.0,"a":{"b":[1e2 ,null]}}`
			var res struct {
				Content []struct{ Text string }
				IsError bool
			}
			if err := json.Unmarshal(works(t, u, args), &res); err != nil || len(res.Content) != 1 || res.Content[0].Text != args {
				t.Errorf("%v %+v", err, res)
			}

			var many sync.WaitGroup
			for range 20 {
				many.Go(func() { works(t, u, `{}`) })
			}
			many.Wait()

			var mu sync.Mutex
			var progress []string
			b, err := u.Call(t.Context(), "progress", []byte(`{}`), func(p []byte) {
				mu.Lock()
				defer mu.Unlock()
				progress = append(progress, string(p))
			})
			if err != nil || !bytes.Contains(b, []byte("done")) {
				t.Errorf("%s %v", b, err)
			}
			mu.Lock()
			if !strings.Contains(c.name, "JSON") && (len(progress) != 3 || !strings.Contains(progress[2], `"message":"step"`)) {
				t.Errorf("progress %q", progress)
			}
			mu.Unlock()

			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if b, err := u.Call(ctx, "wait", []byte(`{}`), nil); err != context.DeadlineExceeded {
				t.Errorf("%s %v", b, err)
			}
			if b, err := u.Call(t.Context(), "fail", []byte(`{}`), nil); err != nil || !bytes.Contains(b, []byte(`"isError":true`)) || !bytes.Contains(b, []byte("on purpose")) {
				t.Errorf("%s %v", b, err)
			}
			works(t, u, `{}`)
			u.Close()
			u.Close()
			fails(t, u, t.Context(), "echo", Closed)
		})
	}
}
