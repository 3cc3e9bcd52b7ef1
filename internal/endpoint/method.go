package endpoint

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// reserveStack grows the goroutine's stack once, while little is on it. On a new
// connection it is small, and a call goes deep: grown on the way it is copied
// frame by frame several times, which costs more than judging the call.
//
//go:noinline
func reserveStack(i int) byte {
	var room [8 << 10]byte
	room[i] = 1
	return room[len(room)-1-i]
}

// serveMessage answers a body that was read whole.
func (e *Endpoint) serveMessage(w http.ResponseWriter, r *http.Request, c *conn, body []byte) {
	_ = reserveStack(len(body) & 1)
	m, ref := readMessage(body)
	if ref != nil {
		e.refuse(w, r, c, ref, true)
		return
	}
	if m.kind != request {
		if ref := oneWay(m, r.Header); ref != nil {
			e.refuse(w, r, c, ref, true)
			return
		}
		if m.method == "notifications/cancelled" {
			e.cancelCall(m.params)
		}
		// Nothing more: no body, no content type. One client takes anything
		// else for the end of the connection.
		w.WriteHeader(http.StatusAccepted)
		return
	}

	p, bad := readParams(m.params)
	if bad != nil {
		ref := paramsRefusal(m, bad.text, slices.Contains(r.Header["Mcp-Protocol-Version"], modern))
		if bad.ambiguous {
			ref.status = http.StatusBadRequest
		}
		e.refuse(w, r, c, ref, true)
		return
	}
	isModern, ref := era(m, p, r.Header)
	if ref != nil {
		e.refuse(w, r, c, ref, true)
		return
	}
	if m.method == "tools/call" {
		if p.name == nil || p.name[0] != '"' {
			e.refuse(w, r, c, paramsRefusal(m, "name must be a string", isModern), true)
			return
		}
		e.serveCall(w, r, m, p, isModern)
		return
	}
	e.serveMethod(w, r, c, m, p, isModern)
}

// paramsRefusal is a -32602. In the legacy era that is an answer like any
// other; the modern one gives it a status of its own.
func paramsRefusal(m message, text string, isModern bool) *refusal {
	ref := malformed(KindParams, m.id, codeParams, text)
	if !isModern {
		ref.status = http.StatusOK
	}
	return ref
}

// serveMethod answers everything but tools/call.
func (e *Endpoint) serveMethod(w http.ResponseWriter, r *http.Request, c *conn, m message, p params, isModern bool) {
	list := ""
	switch m.method {
	case "tools/list":
		list = "tools"
	// Empty lists, although the capabilities are not announced: one client
	// takes an error here for a failed start.
	case "resources/list":
		list = "resources"
	case "resources/templates/list":
		list = "resourceTemplates"
	case "prompts/list":
		list = "prompts"
	}
	switch {
	case list != "":
		// No list has a second page, so no cursor was ever handed out.
		if p.cursor != nil && !isString(p.cursor, "") {
			e.refuse(w, r, c, paramsRefusal(m, "unknown cursor", isModern), true)
			return
		}
		items := []byte("[]")
		if list == "tools" {
			items = e.tools()
		}
		writeJSON(w, http.StatusOK, e.appendList(m.id, list, items, isModern))
		if list == "tools" {
			e.cfg.OnListed()
		}
	case m.method == "server/discover" && isModern:
		writeJSON(w, http.StatusOK, appendResult(nil, m.id, e.prepared.discover))
	case m.method == "ping" && !isModern:
		writeJSON(w, http.StatusOK, appendResult(nil, m.id, "{}"))
	case m.method == "initialize" && !isModern:
		e.initialize(w, r, c, m, p)
	default:
		status := http.StatusOK
		if isModern {
			status = http.StatusNotFound
		}
		writeJSON(w, status, appendError(nil, m.id, codeMethod, "method '"+call.Clip(m.method)+"' is not served here", nil))
	}
}

func (e *Endpoint) tools() []byte {
	if e.cfg.Tools != nil {
		if t := bytes.TrimSpace(e.cfg.Tools()); len(t) > 0 && t[0] == '[' {
			return t
		}
	}
	return []byte("[]")
}

func (e *Endpoint) appendList(id []byte, name string, items []byte, isModern bool) []byte {
	dst := make([]byte, 0, len(items)+len(e.prepared.modernTail)+len(id)+64)
	dst = append(appendHead(dst, id), `,"result":{"`...)
	dst = append(append(dst, name...), `":`...)
	dst = append(dst, items...)
	if isModern {
		dst = append(dst, e.prepared.modernTail...)
	} else {
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// initialize opens the legacy era. It may come any number of times and changes
// nothing.
func (e *Endpoint) initialize(w http.ResponseWriter, r *http.Request, c *conn, m message, p params) {
	version := newestLegacy
	if p.protocolVersion != nil {
		if p.protocolVersion[0] != '"' {
			e.refuse(w, r, c, paramsRefusal(m, "protocolVersion must be a string", false), true)
			return
		}
		if v := unquote(p.protocolVersion); slices.Contains(legacyVersions, v) {
			version = v
		}
	}
	dst := appendHead(nil, m.id)
	dst = append(dst, `,"result":{"protocolVersion":"`+version+`"`...)
	dst = append(dst, e.prepared.initialize...)
	writeJSON(w, http.StatusOK, append(dst, '}'))
}

// flight is one call on its way.
type flight struct {
	id []byte

	mu        sync.Mutex
	stop      func() // nil before the call has begun
	cancelled bool
}

// begun is given what cancels the call.
func (f *flight) begun(stop func()) {
	f.mu.Lock()
	f.stop = stop
	cancelled := f.cancelled
	f.mu.Unlock()
	if cancelled {
		stop()
	}
}

func (f *flight) cancel() {
	f.mu.Lock()
	f.cancelled = true
	stop := f.stop
	f.mu.Unlock()
	if stop != nil {
		stop()
	}
}

func (f *flight) wasCancelled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cancelled
}

// errCancelled is why a call ends that its client cancelled.
var errCancelled = errors.New("the call was cancelled by the client")

// serveCall takes a call to the gate and answers it. It returns after its answer
// where the tool's function does.
func (e *Endpoint) serveCall(w http.ResponseWriter, r *http.Request, m message, p params, isModern bool) {
	// Cancelled with the endpoint either way, because e.ctx is the root of the
	// request's context too.
	ctx := e.ctx
	if isModern {
		ctx = r.Context()
	}
	f := &flight{id: m.id}
	e.mu.Lock()
	e.flights[f] = struct{}{}
	e.mu.Unlock()
	over := func() {
		e.mu.Lock()
		delete(e.flights, f)
		e.mu.Unlock()
	}
	defer over()

	a := e.startAnswer(w, r, p.progressToken)
	defer a.settle()
	server := ""
	if isModern {
		server = e.prepared.server
	}
	whole := func(res call.Result) []byte {
		return appendCallResult(make([]byte, 0, resultSize(res)+len(m.id)+2*len(server)), m.id, res, server)
	}

	client := r.Context()
	res, err := e.call(ctx, call.Request{
		Tool:      unquote(p.name),
		Arguments: p.arguments,
		Origin:    call.FromEndpoint,
		Gone:      client.Done(),
		Begun:     f.begun,
		Late: func(res call.Result) {
			over()
			a.late(http.StatusOK, whole(res))
		},
	})
	if err != nil {
		if na, ok := errors.AsType[*call.NotAvailable](err); ok {
			if isModern {
				a.finish(http.StatusBadRequest, appendError(nil, m.id, codeParams, na.Error(), nil))
			} else {
				a.finish(http.StatusOK, appendError(nil, m.id, codeMethod, na.Error(), nil))
			}
			return
		}
		switch {
		case f.wasCancelled():
			err = errCancelled
		case ctx.Err() != nil:
			err = errClosed
		default:
			a.finish(http.StatusOK, appendError(nil, m.id, codeInternal, "the call failed inside the server", nil))
			return
		}
		res = call.Errorf("%v", err)
	}
	a.finish(http.StatusOK, whole(res))
}

// errPanic stands for a panic outside of any tool. Its text stays here: it may
// hold anything.
var errPanic = errors.New("panic")

func (e *Endpoint) call(ctx context.Context, req call.Request) (res call.Result, err error) {
	defer func() {
		if recover() != nil {
			err = errPanic
		}
	}()
	return e.cfg.Call(ctx, req)
}

// cancelCall serves notifications/cancelled. The ids of two clients of one run
// may be the same; then it is not known which call is meant, and none is.
func (e *Endpoint) cancelCall(raw []byte) {
	p, bad := readParams(raw)
	if bad != nil || p.requestID == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var found *flight
	for f := range e.flights {
		if bytes.Equal(f.id, p.requestID) {
			if found != nil {
				return
			}
			found = f
		}
	}
	if found != nil {
		found.cancel()
	}
}
