package upstream

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// link carries messages to one server and back. It is dead from the moment that
// lost is closed.
type link interface {
	// ask sends a request and returns its answer, or why there is none: ctx's
	// error, or an *Error.
	ask(ctx context.Context, r request) (answer, error)
	// tell sends a message that gets no answer.
	tell(ctx context.Context, method string, body []byte) error
	// settle says what the handshake came to.
	settle(version string)
	lost() <-chan struct{}
	// abandon makes the link dead at once; what is under way fails with e.
	abandon(e *Error)
	// close ends the server: in peace, or where the link is dead at once. It
	// returns when nothing is left.
	close()
}

// request is one request of ours.
type request struct {
	id       int64
	method   string
	name     string // of the tool, "" without
	body     []byte // whole, and the link's to change
	version  string // of the protocol it is made by, "" for initialize
	headers  map[string]string
	progress func(params []byte)
	quiet    bool // the server is not told when it is cancelled
}

// answer is the server's answer to a request.
type answer struct {
	result  []byte // nil where it failed
	failure *failure
}

// failure is a JSON-RPC error.
type failure struct {
	code    int64
	message string
	data    []byte
}

// message is one JSON-RPC message of a server. Its bytes alias what was read.
type message struct {
	id      []byte // nil where there is none
	method  string
	params  []byte
	result  []byte
	failure []byte
}

// readMessage reads one JSON object of which call.IsJSON holds. Of a key that
// stands twice the last counts, as with nearly every other reader.
func readMessage(b []byte) (m message, ok bool) {
	members, ok := call.Members(b)
	if !ok {
		return m, false
	}
	for _, f := range members {
		switch f.Name {
		case "id":
			m.id = f.Value
		case "method":
			m.method = text(f.Value)
		case "params":
			m.params = f.Value
		case "result":
			m.result = f.Value
		case "error":
			m.failure = f.Value
		}
	}
	return m, m.method != "" || m.result != nil || m.failure != nil
}

// answers is the number of the request that m answers.
func (m message) answers() (id int64, ok bool) {
	if m.method != "" {
		return 0, false
	}
	id, err := strconv.ParseInt(string(m.id), 10, 64)
	return id, err == nil
}

// answer is m as an answer; its bytes still alias what was read.
func (m message) answer() answer {
	if m.failure == nil || m.failure[0] == 'n' {
		return answer{result: m.result}
	}
	f := &failure{}
	members, _ := call.Members(m.failure)
	for _, e := range members {
		switch e.Name {
		case "code":
			f.code, _ = strconv.ParseInt(string(e.Value), 10, 64)
		case "message":
			f.message = text(e.Value)
		case "data":
			f.data = e.Value
		}
	}
	return answer{failure: f}
}

// each calls f for every message in b, which is one or a batch of them (2025-03-26
// has those). ok is false where b holds something else.
func each(b []byte, f func(message)) (ok bool) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || !call.IsJSON(b) {
		return false
	}
	all := [][]byte{b}
	if b[0] == '[' {
		all, _ = call.Elements(b)
	}
	for _, e := range all {
		if m, is := readMessage(e); is {
			f(m)
			ok = true
		}
	}
	return ok
}

// reply answers a request of the server.
func reply(m message) []byte {
	dst := append([]byte(`{"jsonrpc":"2.0","id":`), m.id...)
	if m.method == "ping" {
		return append(dst, `,"result":{}}`...)
	}
	return append(dst, `,"error":{"code":-32601,"message":"not served by this client"}}`...)
}

// progress hands the params of a progress notification to the request they are
// about.
func (m message) progress(to func(id int64) func([]byte)) {
	if m.method != "notifications/progress" {
		return
	}
	members, _ := call.Members(m.params)
	for _, p := range members {
		if p.Name != "progressToken" {
			continue
		}
		if id, err := strconv.ParseInt(string(p.Value), 10, 64); err == nil {
			if f := to(id); f != nil {
				f(bytes.Clone(m.params))
			}
		}
	}
}

// text is what a JSON string says, "" where v is none.
func text(v []byte) string {
	if len(v) == 0 || v[0] != '"' {
		return ""
	}
	s, _ := jsontext.AppendUnquote(nil, v)
	return string(s)
}

func quoted(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s)
	return dst
}

// printable is text in one line that does nothing to a terminal.
func printable(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || call.Invisible(string(r)) {
			return ' '
		}
		return r
	}, s))
}

const (
	modern       = "2026-07-28"
	newestLegacy = "2025-11-25"
	metaPrefix   = `"io.modelcontextprotocol/`
)

var legacyVersions = []string{newestLegacy, "2025-06-18", "2025-03-26", "2024-11-05"}

// envelope is a request around members, which are params without their braces.
// Requests of 2026-07-28 carry version, client and capabilities each.
func (u *Upstream) envelope(id int64, method string, members []byte, isModern, progress bool) []byte {
	dst := make([]byte, 0, len(members)+len(method)+320)
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = strconv.AppendInt(dst, id, 10)
	dst = append(dst, `,"method":"`...)
	dst = append(dst, method...)
	dst = append(dst, `","params":{`...)
	dst = append(dst, members...)
	if isModern || progress {
		if len(members) > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `"_meta":{`...)
		if isModern {
			dst = append(dst, metaPrefix+`protocolVersion":"`+modern+`",`+metaPrefix+`clientInfo":`...)
			dst = u.clientInfo(dst)
			dst = append(dst, `,`+metaPrefix+`clientCapabilities":{}`...)
		}
		if progress {
			if isModern {
				dst = append(dst, ',')
			}
			dst = append(dst, `"progressToken":`...)
			dst = strconv.AppendInt(dst, id, 10)
		}
		dst = append(dst, '}')
	}
	return append(dst, "}}\n"...)[:len(dst)+2] // with room for the end of a line
}

func (u *Upstream) clientInfo(dst []byte) []byte {
	dst = quoted(append(dst, `{"name":`...), u.spec.Client)
	dst = quoted(append(dst, `,"version":`...), u.spec.Version)
	return append(dst, '}')
}

// callOf is a tools/call around the very bytes of args.
func (u *Upstream) callOf(c *conn, d *Definition, args []byte, progress func([]byte)) request {
	members := make([]byte, 0, len(args)+len(d.Name)+32)
	members = quoted(append(members, `"name":`...), d.Name)
	members = append(append(members, `,"arguments":`...), args...)
	id := u.nextID()
	r := request{
		id: id, method: "tools/call", name: d.Name, version: c.version, progress: progress,
		body: u.envelope(id, "tools/call", members, c.modern, progress != nil),
	}
	if c.modern && len(d.mirrored) > 0 && len(u.spec.Command) == 0 {
		r.headers = mirror(d.mirrored, args)
	}
	return r
}

func cancelled(id int64) []byte {
	return []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + itoa(id) + `,"reason":"the call was cancelled"}}`)
}
