package endpoint

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// answer is the answer to one call: one JSON body where the call is quick, and
// where it is not, and the client accepts it, an event stream that shows signs
// of life. Three of six real CLIs cut a call that is silent for 60 s.
//
// The call runs on the goroutine of the request; a timer writes what has to be
// written before it is done, and where it does not end in its time whoever finds
// that out writes the answer.
type answer struct {
	e     *Endpoint
	w     http.ResponseWriter
	r     *http.Request
	token []byte // progress token, verbatim, or nil

	mu    sync.Mutex
	timer *time.Timer // nil where no stream is accepted
	open  bool        // the stream's header was sent
	done  bool
	beats int64
}

func (e *Endpoint) startAnswer(w http.ResponseWriter, r *http.Request, token []byte) *answer {
	a := &answer{e: e, w: w, r: r, token: token}
	if acceptsStream(r.Header["Accept"]) {
		a.mu.Lock()
		a.timer = time.AfterFunc(e.cfg.StreamAfter, a.beat)
		a.mu.Unlock()
	}
	return a
}

// beat opens the stream or, where it is open, shows a sign of life.
func (a *answer) beat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	// The context ends with the client and with the endpoint.
	if a.done || a.r.Context().Err() != nil {
		return
	}
	if !a.open {
		a.open = true
		h := a.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		// 2026-07-28 basic/transports: SHOULD, for proxies that buffer.
		h.Set("X-Accel-Buffering", "no")
		a.w.WriteHeader(http.StatusOK)
	} else if a.token == nil {
		_, _ = a.w.Write([]byte(": the call is still running\n\n"))
	} else {
		a.beats++
		p := append([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`), a.token...)
		p = append(p, `,"progress":`...)
		p = append(strconv.AppendInt(p, a.beats, 10), "}}"...)
		_, _ = a.w.Write(appendEvent(nil, p))
	}
	if http.NewResponseController(a.w).Flush() == nil {
		a.timer.Reset(a.e.cfg.Heartbeat)
	}
}

// finish writes the JSON-RPC answer, the first time it is called. On a stream
// that is open the status is gone already.
func (a *answer) finish(status int, body []byte) {
	if a.settle() {
		a.write(status, body)
	}
}

// late is finish for a call whose function still keeps the goroutine of the
// request, perhaps for good: no other request can be served on the connection,
// so it ends here.
func (a *answer) late(status int, body []byte) {
	if !a.settle() {
		return
	}
	c := a.r.Context().Value(connKey{}).(*conn)
	defer c.Close()
	if !a.open {
		a.w.Header().Set("Connection", "close")
	}
	a.write(status, body)
	if http.NewResponseController(a.w).Flush() == nil && a.open && a.r.ProtoAtLeast(1, 1) {
		// The end of the chunked body, which net/http writes when the request's
		// goroutine comes back (RFC 9112 section 7.1).
		_, _ = c.Write([]byte("0\r\n\r\n"))
	}
}

func (a *answer) write(status int, body []byte) {
	if a.open {
		_, _ = a.w.Write(appendEvent(make([]byte, 0, len(body)+64), body))
		return
	}
	writeJSON(a.w, status, body)
}

// settle makes sure that nothing is written after it by others, and reports
// whether nothing was settled yet.
func (a *answer) settle() (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first = !a.done
	a.done = true
	if a.timer != nil {
		a.timer.Stop()
	}
	return first
}

// appendEvent appends one server-sent event. Line breaks, which JSON from
// elsewhere may have between its tokens, split it into data lines that the
// client joins again.
func appendEvent(dst, data []byte) []byte {
	dst = append(dst, "event: message\n"...)
	for {
		dst = append(dst, "data: "...)
		i := bytes.IndexAny(data, "\r\n")
		if i < 0 {
			break
		}
		dst = append(append(dst, data[:i]...), '\n')
		if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			i++
		}
		data = data[i+1:]
	}
	dst = append(dst, data...)
	return append(dst, "\n\n"...)
}

// acceptsStream reports whether an Accept header names text/event-stream. A
// wildcard and an absent header do not count: whoever sends them gets one JSON
// body, however long it takes.
func acceptsStream(accept []string) bool {
	for _, line := range accept {
		for part := range strings.SplitSeq(line, ",") {
			t, rest, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(t), "text/event-stream") && !refusedByQ(rest) {
				return true
			}
		}
	}
	return false
}

// refusedByQ reports whether the parameters of a media range have a q of zero
// (RFC 9110 section 12.4.2).
func refusedByQ(parameters string) bool {
	for p := range strings.SplitSeq(parameters, ";") {
		k, v, _ := strings.Cut(p, "=")
		if strings.EqualFold(strings.TrimSpace(k), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			return err == nil && q == 0
		}
	}
	return false
}
