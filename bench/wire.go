package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"
)

// An HTTP client of a few lines: what it takes itself is a small part of what is
// measured, and the same for all cases.

// client is one connection.
type client struct {
	conn net.Conn
	r    *bufio.Reader
}

// dial connects for requests that must all be over by the deadline.
func dial(addr string, deadline time.Time) (*client, error) {
	conn, err := net.Dial("tcp4", addr)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(deadline); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &client{conn, bufio.NewReaderSize(conn, 4<<10)}, nil
}

// close resets the connection, which leaves no port in TIME_WAIT: thousands of
// them would exhaust the system's ports.
func (c *client) close() {
	_ = c.conn.(*net.TCPConn).SetLinger(0)
	_ = c.conn.Close()
}

// post sends a request and reads the whole answer, which must have this status.
func (c *client) post(request []byte, status int) error {
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	got, err := readAnswer(c.r)
	if err == nil && got != status {
		err = fmt.Errorf("status %d where %d was expected", got, status)
	}
	return err
}

var errAnswer = errors.New("the answer is not one that this client can read")

// readAnswer reads one HTTP/1.1 answer whose body has a declared length, and
// returns its status.
func readAnswer(r *bufio.Reader) (status int, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	rest, ok := bytes.CutPrefix(line, []byte("HTTP/1.1 "))
	if !ok || len(rest) < 3 {
		return 0, errAnswer
	}
	for _, c := range rest[:3] {
		if c < '0' || c > '9' {
			return 0, errAnswer
		}
		status = status*10 + int(c-'0')
	}
	length := -1
	for {
		line, err = r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil || length < 0 {
				return 0, errAnswer
			}
		}
	}
	if length < 0 {
		return 0, errAnswer
	}
	_, err = r.Discard(length)
	return status, err
}

// request is a POST as MCP clients send it.
func request(host, path, token, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: drawbridge-bench\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n"+
		"Content-Length: %d\r\n\r\n%s", path, host, token, len(body), body)
}

// ask sends a request of ours and returns the answer, for the floor to repeat.
func ask(ctx context.Context, addr string, raw []byte) (answer, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", addr)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Write(raw); err != nil {
		return answer{}, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("Content-Type"), body}, err
}

// answer is what the floor answers.
type answer struct {
	status      int
	contentType string // "" for none
	body        []byte
}

// floor is a bare net/http handler that reads each request and gives the answer
// its path stands for, and a bare TCP echo.
type floor struct {
	addr, echo string
	srv        *http.Server
	echoes     net.Listener
}

// floorPath is where the floor gives answer i. It is as long as the endpoint's.
func floorPath(i int) string { return "/mc" + strconv.Itoa(i) }

func newFloor(answers []answer) (*floor, error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	echoes, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	f := &floor{addr: ln.Addr().String(), echo: echoes.Addr().String(), echoes: echoes}
	f.srv = &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i, err := strconv.Atoi(r.URL.Path[len("/mc"):])
		if _, rerr := io.ReadAll(r.Body); rerr != nil || err != nil || i >= len(answers) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		a := answers[i]
		if a.contentType != "" {
			w.Header().Set("Content-Type", a.contentType)
			w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
		}
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body)
	})}
	go func() { _ = f.srv.Serve(ln) }()
	go func() {
		for {
			c, err := echoes.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 4<<10)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return f, nil
}

func (f *floor) close() {
	_ = f.srv.Close()
	_ = f.echoes.Close()
}
