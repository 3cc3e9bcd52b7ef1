package session

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

// client is one request that calls write_file, in one of the two eras.
func client(ctx context.Context, t *testing.T, s *Session, modern bool) <-chan *http.Response {
	t.Helper()
	params, meta := `"name":"write_file","arguments":`+writeA, ""
	if modern {
		meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL(), strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{`+params+meta+`}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+s.Token())
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if modern {
		r.Header.Set("MCP-Protocol-Version", "2026-07-28")
		r.Header.Set("Mcp-Method", "tools/call")
		r.Header.Set("Mcp-Name", "write_file")
	}
	r.Close = true
	done := make(chan *http.Response, 1)
	go func() {
		res, err := http.DefaultClient.Do(r)
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		done <- res
	}()
	return done
}

// A client that goes away while a person thinks, of either era: the effect does
// not happen, a late yes is told so, and the record says it.
func TestTheClientGoesAwayWhileAPersonIsAsked(t *testing.T) {
	for _, modern := range []bool{false, true} {
		for _, streaming := range []bool{false, true} {
			t.Run(fmt.Sprintf("modern %v, streaming %v", modern, streaming), func(t *testing.T) {
				o := newOffice(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := client(ctx, t, o.Session, modern)
				q := o.question()
				if streaming {
					res := next(t, done, "the head of the answer")
					defer res.Body.Close()
				}
				cancel()
				if !streaming {
					_ = next(t, done, "the request")
				}
				for limit := time.Now().Add(30 * time.Second); len(o.desk.desk.Pending()) > 0; time.Sleep(time.Millisecond) {
					if time.Now().After(limit) {
						t.Fatal("the question is still open")
					}
				}
				if err := o.Answer(t.Context(), q.ID, approve.Answer{Yes: true}); err == nil {
					t.Error("a late yes is taken")
				}
				if err := o.Close(); err != nil {
					t.Error(err)
				}
				if o.has("a.txt") || shape(t, o.Session) != "begin end:cancelled" {
					t.Errorf("ran %v, record %s", o.has("a.txt"), shape(t, o.Session))
				}
				if got := stored(t, o.Session); len(got) != 1 || got[0].State != approve.Void || got[0].Note == "" {
					t.Errorf("%+v", got)
				}
			})
		}
	}
}

// While a person thinks the client sees that its call is alive.
func TestSignsOfLifeWhileAPersonIsAsked(t *testing.T) {
	t.Parallel() // it takes a heartbeat of real time
	o := newOffice(t)
	done := client(t.Context(), t, o.Session, false)
	q := o.question()
	res := next(t, done, "the head of the answer")
	defer res.Body.Close()
	if ct := res.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Errorf("%s", ct)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(res.Body); in.Scan(); {
			lines <- in.Text()
		}
	}()
	if l := next(t, lines, "a heartbeat"); l != ": the call is still running" {
		t.Errorf("%q", l)
	}
	o.say(q, approve.Answer{Yes: true})
	var rest []string
	for l := range lines {
		rest = append(rest, l)
	}
	if got := strings.Join(rest, "\n"); !strings.Contains(got, "created a.txt") || !o.has("a.txt") {
		t.Errorf("%q", got)
	}
}

// The id of a request is the client's, and says nothing: the same one, on
// another connection and from either era, asks again.
func TestField51_AnIDIsNoApproval(t *testing.T) {
	o := newOffice(t)
	seen := map[string]bool{}
	for i, modern := range []bool{false, false, true, false} {
		done := client(t.Context(), t, o.Session, modern) // each has the id 1
		q := o.question()
		if seen[q.ID] {
			t.Errorf("question %s is asked twice", q.ID)
		}
		seen[q.ID] = true
		o.say(q, approve.Answer{Yes: i == 0})
		res := next(t, done, "the answer")
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || strings.Contains(string(body), "said no") != (i > 0) {
			t.Errorf("call %d: %v %s", i, err, body)
		}
	}
	if got := shape(t, o.Session); strings.Count(got, "end:ok") != 1 || strings.Count(got, "end:denied") != 3 {
		t.Error(got)
	}
}
