package endpoint

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// What an early refusal still reads, so that the connection can be kept or, if
// there is more, so that the client gets to see the answer: closing a socket
// that holds unread bytes resets it and takes the answer along.
const (
	drainMax  = 256 << 10
	drainTime = 200 * time.Millisecond
)

// refusal is an answer to a request that does not reach the gate.
type refusal struct {
	status int
	// kind and detail are for OnRefused. An empty kind is not reported.
	kind, detail string
	body         []byte
	// header and value are one more header, where header is not empty.
	header, value string
}

// plain returns a refusal on the level of HTTP. Its body is a JSON-RPC error
// without an id, as 2025-11-25 basic/transports allows; the code is the one of
// the implementation's own range that no revision has given a meaning.
func plain(status int, kind, text string) *refusal {
	return &refusal{status: status, kind: kind, body: appendError(nil, nil, -32000, text, nil)}
}

var (
	badHost     = plain(http.StatusForbidden, KindHost, "this Host is not served here")
	badOrigin   = plain(http.StatusForbidden, KindOrigin, "requests from this Origin are refused")
	badPath     = plain(http.StatusNotFound, KindPath, "nothing is served at this path")
	badMethod   = plain(http.StatusMethodNotAllowed, KindMethod, "only POST is served").with("Allow", "POST")
	badToken    = plain(http.StatusUnauthorized, KindToken, "a valid bearer token is required").with("WWW-Authenticate", "Bearer")
	badSize     = plain(http.StatusRequestEntityTooLarge, KindSize, "the request body is too large")
	badType     = plain(http.StatusUnsupportedMediaType, KindType, "the request body must be application/json, in UTF-8")
	badEncoding = plain(http.StatusUnsupportedMediaType, KindType, "the request body must not be compressed")
	badTimeout  = plain(http.StatusRequestTimeout, KindTimeout, "the request body took too long")
	ended       = plain(http.StatusServiceUnavailable, "", "the run has ended")
)

func (r *refusal) with(header, value string) *refusal {
	r.header, r.value = header, value
	return r
}

// because returns a copy of r that has a detail.
func (r *refusal) because(detail string) *refusal {
	c := *r
	c.detail = detail
	return &c
}

func (e *Endpoint) serveHTTP(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*conn)
	if ref := e.admissible(c, r); ref != nil {
		e.refuse(w, r, c, ref, false)
		return
	}
	body, ref := e.readBody(c, r)
	if ref != nil {
		e.refuse(w, r, c, ref, false)
		return
	}
	if e.ctx.Err() != nil {
		e.refuse(w, r, c, ended, true)
		return
	}
	e.serveMessage(w, r, c, body)
}

// admissible judges everything but the body. It is the one place that keeps
// out browsers, other hosts and other users of the machine.
func (e *Endpoint) admissible(c *conn, r *http.Request) *refusal {
	h := r.Header
	if r.Host != e.host {
		return badHost.because(r.Host)
	}
	if origin, ok := h["Origin"]; ok && (len(origin) != 1 || origin[0] != e.origin) {
		return badOrigin.because(strings.Join(origin, " "))
	}
	if p := r.URL.Path; (p != "/mcp" && p != "/mcp/") || r.URL.RawPath != "" {
		return badPath.because(p)
	}
	if r.Method != http.MethodPost {
		return badMethod.because(r.Method)
	}
	switch auth := h["Authorization"]; {
	case len(auth) == 0:
		return badToken.because("missing")
	case len(auth) > 1:
		return badToken.because("given twice")
	case !e.tokenIs(auth[0]):
		return badToken.because("wrong")
	}
	e.authenticate(c)
	if r.ContentLength > e.cfg.MaxBody {
		return badSize.because(strconv.FormatInt(r.ContentLength, 10))
	}
	if ct := h["Content-Type"]; len(ct) != 1 || !isJSON(ct[0]) {
		return badType.because(strings.Join(ct, " "))
	}
	if ce := h["Content-Encoding"]; len(ce) > 1 || len(ce) == 1 && !strings.EqualFold(ce[0], "identity") {
		return badEncoding.because(strings.Join(ce, " "))
	}
	return nil
}

// tokenIs reports whether authorization carries the token: the scheme without
// regard to case, then one or more spaces (RFC 9110 section 11.4). Digests are
// compared, so that the time tells nothing of the token, not even its length.
func (e *Endpoint) tokenIs(authorization string) bool {
	scheme, token, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	sum := sha256.Sum256([]byte(strings.TrimLeft(token, " ")))
	return subtle.ConstantTimeCompare(sum[:], e.token[:]) == 1
}

func isJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	// ParseMediaType lowers the type and unquotes the parameters.
	t, params, err := mime.ParseMediaType(contentType)
	if err != nil || t != "application/json" {
		return false
	}
	charset, ok := params["charset"]
	return !ok || strings.EqualFold(charset, "utf-8")
}

// readBody reads the whole body, in memory that grows with what really comes.
func (e *Endpoint) readBody(c *conn, r *http.Request) ([]byte, *refusal) {
	const first = 64 << 10
	size := r.ContentLength // -1 where it is chunked
	if size == 0 {
		return nil, nil
	}
	room := int64(512)
	if size > 0 {
		room = min(size, first)
	}
	_ = c.SetReadDeadline(time.Now().Add(e.cfg.BodyTimeout))
	buf := make([]byte, 0, room)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if int64(len(buf)) > e.cfg.MaxBody {
			return nil, badSize.because("chunked")
		}
		if err == io.EOF || err == nil && int64(len(buf)) == size {
			break
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, badTimeout
		}
		if err != nil {
			return nil, badTimeout.because("ended early")
		}
	}
	// Also for the time of the call: net/http takes a read that fails then for
	// the client's end.
	_ = c.SetReadDeadline(time.Time{})
	return buf, nil
}

// refuse answers with ref. read says that the whole body was read. The
// connection stays open where that is so, or where what is left of the body is
// little and comes at once.
func (e *Endpoint) refuse(w http.ResponseWriter, r *http.Request, c *conn, ref *refusal, read bool) {
	if ref.kind != "" {
		e.refused(ref.kind, ref.detail)
	}
	if !read && !drain(c, r) {
		e.refuseAndClose(w, r, ref)
		return
	}
	if ref.header != "" {
		w.Header().Set(ref.header, ref.value)
	}
	writeJSON(w, ref.status, ref.body)
}

// drain reads what is left of the body and reports whether that was all of it.
func drain(c *conn, r *http.Request) bool {
	if r.ContentLength == 0 {
		return true
	}
	if r.ContentLength > drainMax || r.Header["Expect"] != nil {
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(drainTime))
	n, err := io.Copy(io.Discard, io.LimitReader(r.Body, drainMax+1))
	if err != nil || n > drainMax {
		return false
	}
	_ = c.SetReadDeadline(time.Time{})
	return true
}

// refuseAndClose answers first, reads a little, and closes. net/http would read
// before it answers, and where there is more to read sleep before it closes.
func (e *Endpoint) refuseAndClose(w http.ResponseWriter, r *http.Request, ref *refusal) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	nc, _, err := hijacker.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(drainTime))
	head := fmt.Appendf(make([]byte, 0, 512),
		"HTTP/1.1 %d %s\r\nDate: %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n",
		ref.status, http.StatusText(ref.status), time.Now().UTC().Format(http.TimeFormat), len(ref.body))
	if ref.header != "" {
		head = fmt.Appendf(head, "%s: %s\r\n", ref.header, ref.value)
	}
	head = append(head, "\r\n"...)
	if r.Method != http.MethodHead {
		head = append(head, ref.body...)
	}
	if _, err := nc.Write(head); err != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, nc, drainMax)
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

var jsonType = []string{"application/json"}
