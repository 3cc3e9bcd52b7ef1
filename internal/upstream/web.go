package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	asideTime   = 5 * time.Second // for a message that nothing waits for
	byeTime     = 2 * time.Second // for DELETE at the end
	asides      = 8               // at once
	maxFailure  = 64 << 10        // bytes of an answer that is an error
	maxHops     = 3               // redirects within the origin
	maxResumes  = 5               // of one answer's stream
	minResume   = 100 * time.Millisecond
	maxResume   = 10 * time.Second
	maxSession  = 1 << 10 // bytes of a session id
	contentJSON = "application/json"
	contentSSE  = "text/event-stream"
)

// web is a server behind streamable HTTP (2025-11-25 and 2026-07-28,
// basic/transports): every message is a POST. No stream is opened beside those of
// the answers, as nothing that comes there would be passed on.
type web struct {
	spec   *Spec
	url    *url.URL
	client *http.Client
	life   context.Context
	end    context.CancelCauseFunc
	aside  chan struct{} // holds a token for each message that nothing waits for
	bg     sync.WaitGroup

	session atomic.Pointer[string]
	version atomic.Pointer[string] // settled
	listed  atomic.Bool

	mu   sync.Mutex
	why  *Error
	dead chan struct{}
}

func openWeb(spec *Spec) (*web, error) {
	u, err := url.Parse(spec.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return nil, spec.fail(Unavailable, "has no url that begins with http:// or https:// and holds no credentials")
	}
	w := &web{spec: spec, url: u, client: client(u), aside: make(chan struct{}, asides), dead: make(chan struct{})}
	w.life, w.end = context.WithCancelCause(context.Background())
	return w, nil
}

func (w *web) lost() <-chan struct{} { return w.dead }

func (w *web) settle(version string) { w.version.Store(&version) }

func (w *web) abandon(e *Error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why == nil {
		w.why = e
		close(w.dead)
	}
}

// reason is why the link is dead.
func (w *web) reason() *Error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

func (w *web) close() {
	peace := !isLost(w)
	w.abandon(w.spec.closedError())
	w.end(w.reason())
	w.bg.Wait()
	if id := w.session.Load(); id != nil && peace {
		ctx, cancel := context.WithTimeout(context.Background(), byeTime)
		if resp, err := w.do(ctx, http.MethodDelete, nil, w.header(request{version: load(&w.version)})); err == nil {
			_ = resp.Body.Close()
		}
		cancel()
	}
	w.client.CloseIdleConnections()
}

func load(p *atomic.Pointer[string]) string {
	if s := p.Load(); s != nil {
		return *s
	}
	return ""
}

// header is what goes with a request: the operator's headers, and over them those
// of the protocol.
func (w *web) header(r request) http.Header {
	h := make(http.Header, len(w.spec.Headers)+len(r.headers)+8)
	h.Set("User-Agent", w.spec.Client+"/"+w.spec.Version)
	for name, v := range w.spec.Headers {
		h.Set(name, v)
	}
	for name := range h {
		if strings.HasPrefix(name, "Mcp-") {
			h.Del(name)
		}
	}
	h.Del("Accept-Encoding")
	h.Set("Content-Type", contentJSON)
	h.Set("Accept", contentJSON+", "+contentSSE)
	if r.version != "" {
		h.Set("Mcp-Protocol-Version", r.version)
	}
	if r.version == modern {
		h.Set("Mcp-Method", r.method)
		if r.name != "" {
			h.Set("Mcp-Name", headerValue(r.name))
		}
		for name, v := range r.headers {
			h.Set(name, v)
		}
		return h
	}
	if id := w.session.Load(); id != nil {
		h.Set("Mcp-Session-Id", *id)
	}
	return h
}

// do makes one HTTP request. It follows redirects that keep method and body, within
// the server's own origin. The error is ctx's or an *Error: Unavailable where not a
// byte of the request went out.
func (w *web) do(ctx context.Context, method string, body []byte, h http.Header) (*http.Response, error) {
	var wrote atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }})
	to := w.url
	for hop := 0; ; hop++ {
		req, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(body))
		if err != nil {
			return nil, w.spec.fail(Unavailable, "can't be asked: its url or a header is not valid")
		}
		req.Header = h
		resp, err := w.client.Do(req)
		if err != nil {
			return nil, w.broken(ctx, err, wrote.Load())
		}
		if resp.StatusCode < 300 || resp.StatusCode > 399 {
			return resp, nil
		}
		_ = resp.Body.Close()
		next, err := resp.Location()
		switch {
		case err != nil:
			return nil, w.spec.fail(Unavailable, "answered with HTTP status %d and no place to go", resp.StatusCode)
		case origin(next) != origin(w.url):
			return nil, w.spec.fail(Unavailable, "redirects to another origin, %s: nothing was sent there; if that is right, write it into the url", w.spec.quote(origin(next)))
		case hop == maxHops, resp.StatusCode != http.StatusTemporaryRedirect && resp.StatusCode != http.StatusPermanentRedirect:
			return nil, w.spec.fail(Unavailable, "redirects with HTTP status %d, which is not followed", resp.StatusCode)
		}
		to = next
	}
}

// broken is why there is no response, and the end of the link where it is not ctx.
func (w *web) broken(ctx context.Context, err error, sent bool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err // without the address, which may hold what is secret
	}
	e := w.spec.fail(Unavailable, "can't be reached: %s; the call was not sent", w.spec.quote(err.Error()))
	if sent {
		e = w.spec.died("broke the connection (" + w.spec.quote(err.Error()) + ")")
	}
	w.abandon(e)
	return e
}

func (w *web) ask(ctx context.Context, r request) (answer, error) {
	if e := w.reason(); e != nil {
		return answer{}, w.spec.fail(Unavailable, "is not connected: the call was not sent")
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.life, func() { cancel(context.Cause(w.life)) })()
	a, err := w.exchange(inner, r)
	if err != nil && ctx.Err() != nil {
		// In the modern era a stream that is closed is a call that is cancelled.
		if r.version != modern && !r.quiet {
			w.later(func(ctx context.Context) { _ = w.tell(ctx, "notifications/cancelled", cancelled(r.id)) })
		}
		return answer{}, ctx.Err()
	}
	return a, err
}

// later sends something that nothing waits for. Where many such wait it is dropped.
func (w *web) later(f func(ctx context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why != nil {
		return
	}
	select {
	case w.aside <- struct{}{}:
	default:
		return
	}
	w.bg.Go(func() {
		defer func() { <-w.aside }()
		ctx, cancel := context.WithTimeout(w.life, asideTime)
		defer cancel()
		f(ctx)
	})
}

func (w *web) tell(ctx context.Context, method string, body []byte) error {
	resp, err := w.do(ctx, http.MethodPost, body, w.header(request{method: method, version: load(&w.version)}))
	if err != nil {
		return err
	}
	// 202 is right, and 200 and 204 are what some answer.
	_, _ = io.CopyN(io.Discard, resp.Body, maxFailure)
	return resp.Body.Close()
}

func (w *web) exchange(ctx context.Context, r request) (answer, error) {
	resp, err := w.do(ctx, http.MethodPost, r.body, w.header(r))
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	encoding := resp.Header.Get("Content-Encoding")
	switch {
	case resp.StatusCode == http.StatusNotFound && r.version != modern && w.session.Load() != nil:
		e := w.spec.fail(Unavailable, "does not know the session any more: the call was not taken")
		e.session = true
		return answer{}, e
	case encoding != "" && encoding != "identity":
		return answer{}, w.spec.fail(Malformed, "answered with content encoding %s, which was not asked for", w.spec.quote(encoding))
	case resp.StatusCode > 299:
		return w.refusal(ctx, resp)
	case kind == contentSSE:
		w.admit(r, resp)
		return w.stream(ctx, r, resp)
	case kind == contentJSON || kind == "":
		w.admit(r, resp)
		return w.body(ctx, r, resp)
	}
	return answer{}, w.spec.fail(Malformed, "answered with content type %q, which is neither JSON nor an event stream", w.spec.quote(kind))
}

// admit takes the session id that came with the answer to initialize.
func (w *web) admit(r request, resp *http.Response) {
	if r.method != "initialize" {
		return
	}
	id := resp.Header.Get("Mcp-Session-Id")
	if id == "" || len(id) > maxSession || strings.ContainsFunc(id, func(c rune) bool { return c < 0x21 || c > 0x7E }) {
		return
	}
	w.session.Store(&id)
}

// refusal is an answer whose HTTP status says that it failed.
func (w *web) refusal(ctx context.Context, resp *http.Response) (answer, error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxFailure))
	if err != nil && ctx.Err() != nil {
		return answer{}, context.Cause(ctx)
	}
	var a answer
	if each(b, func(m message) {
		if m.failure != nil {
			a = m.answer()
		}
	}) && a.failure != nil {
		return a, nil
	}
	e := w.spec.fail(Malformed, "answered with HTTP status %d", resp.StatusCode)
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		e.Message += ": it does not take the credentials in headers, or wants some"
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		e.Message += ": there is no streamable HTTP server at this url"
	}
	return answer{}, e
}

// body is an answer that is one JSON text.
func (w *web) body(ctx context.Context, r request, resp *http.Response) (answer, error) {
	limit := int64(w.spec.MaxMessage)
	if resp.ContentLength > limit {
		return answer{}, w.spec.tooLarge(resp.ContentLength)
	}
	var buf bytes.Buffer
	if n := resp.ContentLength; n > 0 {
		buf.Grow(int(n) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return answer{}, w.broken(ctx, err, true)
	case int64(buf.Len()) > limit:
		return answer{}, w.spec.tooLarge(0)
	}
	var got *answer
	ok := each(buf.Bytes(), func(m message) { w.take(r, m, &got) })
	switch {
	case got != nil:
		return *got, nil
	case ok:
		return answer{}, w.spec.fail(Malformed, "answered another request than it was asked")
	}
	return answer{}, w.spec.fail(Malformed, "answered with what is no message (HTTP status %d)", resp.StatusCode)
}

// take takes one message that came while r is under way.
func (w *web) take(r request, m message, got **answer) {
	switch {
	case m.method == "":
		id, ok := m.answers()
		// Without an id it says that the request could not be read.
		if ok && id == r.id || m.failure != nil && (m.id == nil || m.id[0] == 'n') {
			if *got == nil {
				a := m.answer()
				*got = &a
			}
		}
	case m.id != nil:
		b := reply(m)
		w.later(func(ctx context.Context) { _ = w.tell(ctx, "", b) })
	case m.method == "notifications/tools/list_changed":
		if !w.listed.Swap(true) {
			w.spec.Note(listChanged)
		}
	case *got == nil:
		m.progress(func(id int64) func([]byte) {
			if id == r.id {
				return r.progress
			}
			return nil
		})
	}
}

// stream is an answer that is an event stream. One that ends early is gone on with
// where the server named its events (2025-11-25, basic/transports, "Resumability
// and Redelivery"): that fetches what it has to say and sends no call.
func (w *web) stream(ctx context.Context, r request, resp *http.Response) (answer, error) {
	ev := newEvents(resp.Body, w.spec.MaxMessage)
	for resumes := 0; ; {
		data, err := ev.next()
		if err == nil {
			var got *answer
			each(data, func(m message) { w.take(r, m, &got) })
			if got != nil {
				return *got, nil
			}
			continue
		}
		switch {
		case ctx.Err() != nil:
			return answer{}, context.Cause(ctx)
		case errors.Is(err, errTooLong):
			return answer{}, w.spec.tooLarge(0)
		case ev.id == "" || resumes == maxResumes || r.version == modern:
			if errors.Is(err, io.EOF) { // the server is there, and has no answer
				return answer{}, w.spec.died("ended its answer before the result")
			}
			return answer{}, w.broken(ctx, err, true)
		}
		resumes++
		_ = resp.Body.Close()
		if resp, err = w.resume(ctx, r, ev); err != nil {
			return answer{}, err
		}
		defer resp.Body.Close()
		id, retry := ev.id, ev.retry
		ev = newEvents(resp.Body, w.spec.MaxMessage)
		ev.id, ev.retry = id, retry
	}
}

func (w *web) resume(ctx context.Context, r request, ev *events) (*http.Response, error) {
	t := time.NewTimer(min(max(ev.retry, minResume), maxResume))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	h := w.header(r)
	h.Set("Accept", contentSSE)
	h.Del("Content-Type")
	h.Set("Last-Event-Id", ev.id)
	resp, err := w.do(ctx, http.MethodGet, nil, h)
	if err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || kind != contentSSE || !slices.Contains([]string{"", "identity"}, resp.Header.Get("Content-Encoding")) {
		_ = resp.Body.Close()
		return nil, w.spec.died("ended its answer before the result, and does not go on with it (HTTP status " + itoa(int64(resp.StatusCode)) + ")")
	}
	return resp, nil
}
