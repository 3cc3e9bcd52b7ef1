package endpoint

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// BenchmarkCall compares an allowed call, and refusals, with a bare net/http
// handler that reads the request and answers the same bytes.
func BenchmarkCall(b *testing.B) {
	const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_time","arguments":{"zone":"utc"},"_meta":{"progressToken":1}}}`
	gate := func(context.Context, call.Request) (call.Result, error) { return call.Text("12:00"), nil }
	out := call.Result{}
	outside := func(context.Context, call.Request) (call.Result, error) {
		return out, &call.NotAvailable{Tool: "get_time"}
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	answer := appendCallResult(nil, []byte("1"), call.Text("12:00"), "")
	bare := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		_, _ = w.Write(answer)
	})}
	go func() { _ = bare.Serve(ln) }()
	b.Cleanup(func() { _ = bare.Close() })

	allowed := start(b, func(c *Config) { c.Call = gate; c.OnRefused = nil })
	refused := start(b, func(c *Config) { c.Call = outside; c.OnRefused = nil })
	for _, bb := range []struct {
		name, addr, request string
	}{
		{"bare", ln.Addr().String(), allowed.post(body)},
		{"allowed", allowed.host, allowed.post(body)},
		{"refused", refused.host, refused.post(body)},
		{"401", allowed.host, allowed.post(body, "Authorization: Bearer wrong")},
	} {
		b.Run(bb.name+"/keepalive", func(b *testing.B) {
			c, err := net.Dial("tcp", bb.addr)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			r := bufio.NewReader(c)
			b.ReportAllocs()
			for b.Loop() {
				exchange(b, c, r, bb.request)
			}
		})
		b.Run(bb.name+"/fresh", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c, err := net.Dial("tcp", bb.addr)
				if err != nil {
					b.Fatal(err)
				}
				exchange(b, c, bufio.NewReader(c), bb.request)
				// A reset leaves no port in TIME_WAIT.
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
		})
	}
}

func exchange(b *testing.B, c net.Conn, r *bufio.Reader, request string) {
	if _, err := io.WriteString(c, request); err != nil {
		b.Fatal(err)
	}
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			b.Fatal(err)
		}
		if len(line) == 2 {
			break
		}
		_, _ = fmt.Sscanf(string(line[:min(len(line), 24)]), "Content-Length: %d", &length)
	}
	if _, err := r.Discard(length); err != nil || length == 0 {
		b.Fatal(err, length)
	}
}

func BenchmarkReadMessage(b *testing.B) {
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_time","arguments":{"zone":"utc"},"_meta":{"progressToken":1}}}`)
	b.ReportAllocs()
	for b.Loop() {
		m, ref := readMessage(body)
		if ref != nil {
			b.Fatal(ref)
		}
		if _, bad := readParams(m.params); bad != nil {
			b.Fatal(bad)
		}
	}
}

func BenchmarkStartClose(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = start(b, nil).Close()
	}
}
