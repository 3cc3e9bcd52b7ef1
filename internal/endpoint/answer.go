package endpoint

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// prepared are the parts of answers that never change.
type prepared struct {
	// initialize goes around the version, discover and tools around the list.
	initialize string // after the version
	discover   string // the whole result
	server     string // serverInfo, as a member of a modern _meta
	modernTail string // of a modern list result, from the comma on
}

func prepare(name, version, instructions string) prepared {
	info := appendString([]byte(`{"name":`), name)
	info = append(info, `,"version":`...)
	info = append(appendString(info, version), '}')
	told := ""
	if instructions != "" {
		told = `,"instructions":` + string(appendString(nil, instructions))
	}
	server := `"` + metaServer + `":` + string(info)
	// The list depends on the token, so no cache may share it.
	tail := `,"ttlMs":0,"cacheScope":"private","resultType":"complete","_meta":{` + server + `}}`
	return prepared{
		initialize: `,"capabilities":{"tools":{}},"serverInfo":` + string(info) + told + `}`,
		discover:   `{"supportedVersions":` + versionsJSON + `,"capabilities":{"tools":{}}` + told + tail,
		server:     server,
		modernTail: tail,
	}
}

// appendString appends s as a JSON string. Nothing is escaped that needs not
// be, and what is no UTF-8 is replaced.
func appendString(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s)
	return dst
}

// appendHead appends an answer up to its result or error. A nil id is null.
func appendHead(dst, id []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	if id == nil {
		return append(dst, "null"...)
	}
	return append(dst, id...)
}

// appendError appends a whole error answer. data may be nil.
func appendError(dst, id []byte, code int, text string, data []byte) []byte {
	dst = append(appendHead(dst, id), `,"error":{"code":`...)
	dst = strconv.AppendInt(dst, int64(code), 10)
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, text)
	if data != nil {
		dst = append(dst, `,"data":`...)
		dst = append(dst, data...)
	}
	return append(dst, "}}"...)
}

// appendResult appends a whole answer whose result is verbatim.
func appendResult(dst, id []byte, result string) []byte {
	dst = append(appendHead(dst, id), `,"result":`...)
	dst = append(dst, result...)
	return append(dst, '}')
}

// appendCallResult appends a whole answer to tools/call. server is a member of
// a modern result's _meta, and empty in the legacy era.
func appendCallResult(dst, id []byte, r call.Result, server string) []byte {
	if r.Raw != nil {
		return append(appendRaw(append(appendHead(dst, id), `,"result":`...), r.Raw, r.Flags, server), '}')
	}
	dst = append(appendHead(dst, id), `,"result":{"content":[`...)
	for i, b := range r.Content {
		if i > 0 {
			dst = append(dst, ',')
		}
		if b.JSON != nil {
			dst = append(dst, b.JSON...)
			continue
		}
		dst = append(dst, `{"type":"text","text":`...)
		dst = append(appendString(dst, b.Text), '}')
	}
	dst = append(dst, ']')
	if r.Structured != nil {
		dst = append(dst, `,"structuredContent":`...)
		dst = append(dst, r.Structured...)
	}
	if r.IsError {
		dst = append(dst, `,"isError":true`...)
	}
	if server != "" {
		dst = append(dst, `,"resultType":"complete"`...)
	}
	if flagged := r.Flags != (call.Flags{}); flagged || server != "" {
		dst = append(dst, `,"_meta":{`...)
		if flagged {
			dst = appendFlags(dst, r.Flags)
			if server != "" {
				dst = append(dst, ',')
			}
		}
		dst = append(append(dst, server...), '}')
	}
	return append(dst, "}}"...)
}

func appendFlags(dst []byte, f call.Flags) []byte {
	// Flags holds numbers and booleans: this can't fail.
	flags, _ := json.Marshal(f)
	dst = append(dst, `"`+metaFlags+`":`...)
	return append(dst, flags...)
}

// appendRaw appends the result object raw of an upstream. Not a byte of it is
// touched: flags and what the modern era asks for are put in, the latter where
// raw does not have it. Flags of that name which came with raw are replaced, and
// a _meta that is null; one that is something else is no place to put anything.
func appendRaw(dst, raw []byte, flags call.Flags, server string) []byte {
	flagged := flags != (call.Flags{})
	if !flagged && server == "" {
		return append(dst, raw...)
	}
	members, _ := call.Members(raw)
	var meta *call.Member
	typed := server == ""
	for i, m := range members {
		switch m.Name {
		case "_meta": // of several the last, as nearly every parser reads it
			meta = &members[i]
		case "resultType":
			typed = true
		}
	}
	at := 0
	if meta != nil {
		at = meta.At + len(meta.Value)
		dst = append(dst, raw[:meta.At]...)
		dst = appendMeta(dst, meta.Value, flags, server)
	}
	end := bytes.LastIndexByte(raw, '}')
	dst = append(dst, raw[at:end]...)
	if meta == nil {
		if len(members) > 0 {
			dst = append(dst, ',')
		}
		dst = appendMeta(append(dst, `"_meta":`...), []byte("{}"), flags, server)
	}
	if !typed {
		dst = append(dst, `,"resultType":"complete"`...) // there is a _meta by now
	}
	return append(dst, raw[end:]...)
}

func appendMeta(dst, meta []byte, flags call.Flags, server string) []byte {
	if isNull(meta) {
		meta = []byte("{}")
	}
	members, ok := call.Members(meta)
	if !ok {
		return append(dst, meta...)
	}
	flagged := flags != (call.Flags{})
	at := 0
	for _, m := range members {
		switch {
		case m.Name == metaServer:
			server = ""
		case m.Name == metaFlags && flagged:
			value, _ := json.Marshal(flags)
			dst = append(append(dst, meta[at:m.At]...), value...)
			at = m.At + len(m.Value)
		}
	}
	more := at == 0 && flagged
	dst = append(dst, meta[at:len(meta)-1]...)
	comma := len(members) > 0
	if more {
		if comma {
			dst = append(dst, ',')
		}
		dst, comma = appendFlags(dst, flags), true
	}
	if server != "" {
		if comma {
			dst = append(dst, ',')
		}
		dst = append(dst, server...)
	}
	return append(dst, '}')
}

// resultSize is about how long an answer to tools/call gets.
func resultSize(r call.Result) int {
	n := 384 + len(r.Raw) + len(r.Structured)
	for _, b := range r.Content {
		n += len(b.Text) + len(b.Text)/16 + len(b.JSON) + 32
	}
	return n
}
