package endpoint

import (
	"bytes"
	"errors"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// JSON-RPC 2.0 section 5.1.
const (
	codeParse    = -32700
	codeRequest  = -32600
	codeMethod   = -32601
	codeParams   = -32602
	codeInternal = -32603
)

type messageKind int

const (
	request messageKind = iota
	notification
	response
)

// message is one JSON-RPC message, read once. All its bytes alias the body.
type message struct {
	kind   messageKind
	id     []byte // verbatim, nil where there is none
	method string
	params []byte // verbatim, nil where absent
}

// The keys that are read somewhere. Another spelling of one of them would be
// the same key to a parser that ignores case, as encoding/json does.
var (
	envelopeKeys = []string{"jsonrpc", "id", "method", "params", "result", "error"}
	paramsKeys   = []string{
		"name", "arguments", "_meta", "cursor", "protocolVersion", "requestId",
		"capabilities", "clientInfo", "reason", "inputResponses", "requestState",
	}
	metaKeys = []string{
		"progressToken", metaVersion, metaCapabilities, metaClient,
		"io.modelcontextprotocol/logLevel", "io.modelcontextprotocol/subscriptionId",
	}
)

// isVariant reports whether name is not one of keys but reads like one without
// regard to case: Unicode simple folding, so that U+017F is an s and U+212A a k.
func isVariant(name string, keys []string) bool {
	variant := false
	for _, k := range keys {
		if name == k {
			return false
		}
		variant = variant || strings.EqualFold(name, k)
	}
	return variant
}

// malformed is the refusal of a message that is not accepted as one.
func malformed(kind string, id []byte, code int, text string) *refusal {
	return &refusal{
		status: http.StatusBadRequest, kind: kind, detail: text,
		body: appendError(nil, id, code, text, nil),
	}
}

// readMessage reads one JSON-RPC 2.0 message strictly. The MCP rules on top of
// JSON-RPC (2025-11-25 basic, basic/transports): one message a body, and an id
// is a string or an integer and never null.
func readMessage(body []byte) (message, *refusal) {
	if err := call.CheckJSON(body); err != nil {
		code, detail := codeRequest, "two readings, or too deep"
		if errors.Is(err, call.ErrSyntax) {
			code, detail = codeParse, "syntax"
		}
		// The text names places in the client's own bytes: it goes to the
		// client alone.
		text := call.Clip(strings.ReplaceAll(err.Error(), "jsontext: ", ""))
		ref := malformed(KindJSON, nil, code, text)
		ref.detail = detail
		return message{}, ref
	}
	members, ok := call.Members(body)
	if !ok {
		if bytes.TrimLeft(body, " \t\r\n")[0] == '[' {
			return message{}, malformed(KindBatch, nil, codeRequest, "batches are not supported, send one message a request")
		}
		return message{}, malformed(KindEnvelope, nil, codeRequest, "the body must be one JSON-RPC message")
	}

	// The id comes first: it goes into every refusal after it.
	var id, version, method, params []byte
	var hasID, hasOutcome, variant bool
	for _, m := range members {
		switch m.Name {
		case "jsonrpc":
			version = m.Value
		case "id":
			id, hasID = m.Value, true
		case "method":
			method = m.Value
		case "params":
			params = m.Value
		case "result", "error":
			hasOutcome = true
		default:
			variant = variant || isVariant(m.Name, envelopeKeys)
		}
	}
	echo := id
	if hasID && !isID(id) {
		echo = nil
	}
	switch {
	case variant:
		return message{}, malformed(KindEnvelope, echo, codeRequest, "a key of the message is spelled with another case")
	case version == nil || !isString(version, "2.0"):
		return message{}, malformed(KindEnvelope, echo, codeRequest, `jsonrpc must be "2.0"`)
	case method == nil && hasID && hasOutcome:
		return message{kind: response, id: id}, nil
	case hasID && echo == nil:
		return message{}, malformed(KindEnvelope, nil, codeRequest, "id must be a string or an integer")
	case method == nil || method[0] != '"':
		return message{}, malformed(KindEnvelope, echo, codeRequest, "method must be a string")
	case hasOutcome:
		return message{}, malformed(KindEnvelope, echo, codeRequest, "a message has a method, or a result or an error")
	}
	m := message{kind: request, id: id, method: unquote(method), params: params}
	if !hasID || strings.HasPrefix(m.method, "notifications/") {
		m.kind = notification
	}
	return m, nil
}

// params are what this endpoint reads of a request's params.
type params struct {
	name            []byte // verbatim, nil where absent
	arguments       []byte // verbatim object, nil where absent or null
	cursor          []byte // verbatim, nil where absent or null
	protocolVersion []byte // verbatim, nil where absent or null
	requestID       []byte // verbatim, nil where absent or null

	metaVersion   []byte // verbatim, nil where absent
	capabilities  []byte // of _meta, verbatim, nil where absent
	clientInfo    []byte // of _meta, verbatim, nil where absent
	progressToken []byte // verbatim string or integer, else nil
}

// badParams is why params can't be read. ambiguous says that two parsers could
// read them in two ways, which is no mistake of an honest client.
type badParams struct {
	text      string
	ambiguous bool
}

// readParams reads the params of a message that passed readMessage.
func readParams(raw []byte) (p params, bad *badParams) {
	if isNull(raw) {
		return p, nil
	}
	members, ok := call.Members(raw)
	if !ok {
		return p, &badParams{text: "params must be an object"}
	}
	var meta []byte
	for _, m := range members {
		switch m.Name {
		case "name":
			p.name = m.Value
		case "arguments":
			p.arguments = orNil(m.Value)
		case "cursor":
			p.cursor = orNil(m.Value)
		case "protocolVersion":
			p.protocolVersion = orNil(m.Value)
		case "requestId":
			p.requestID = orNil(m.Value)
		case "_meta":
			meta = orNil(m.Value)
		default:
			if isVariant(m.Name, paramsKeys) {
				return p, &badParams{"a key of params is spelled with another case", true}
			}
		}
	}
	if p.arguments != nil && p.arguments[0] != '{' {
		return p, &badParams{text: "arguments must be an object"}
	}
	if meta == nil {
		return p, nil
	}
	if members, ok = call.Members(meta); !ok {
		return p, &badParams{text: "_meta must be an object"}
	}
	for _, m := range members {
		switch m.Name {
		case "progressToken":
			if isID(m.Value) {
				p.progressToken = m.Value
			}
		case metaVersion:
			p.metaVersion = m.Value
		case metaCapabilities:
			p.capabilities = m.Value
		case metaClient:
			p.clientInfo = m.Value
		default:
			if isVariant(m.Name, metaKeys) {
				return p, &badParams{"a key of _meta is spelled with another case", true}
			}
		}
	}
	return p, nil
}

// isID reports whether v is a string or an integer, as ids and progress tokens
// are.
func isID(v []byte) bool {
	if v[0] == '"' {
		return true
	}
	if v[0] == '-' {
		v = v[1:]
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func isNull(v []byte) bool { return len(v) == 0 || v[0] == 'n' }

func orNil(v []byte) []byte {
	if isNull(v) {
		return nil
	}
	return v
}

// unquote decodes a JSON string that is known to be one.
func unquote(v []byte) string {
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1])
	}
	s, _ := jsontext.AppendUnquote(nil, v)
	return string(s)
}

func isString(v []byte, want string) bool {
	return v[0] == '"' && unquote(v) == want
}
