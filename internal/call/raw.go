package call

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// RawResult is a Result around the result object of an upstream. IsJSON must
// hold of raw. ok is false where it is no object. Where isError stands more than
// once, one true is enough.
func RawResult(raw []byte) (r Result, ok bool) {
	members, ok := Members(raw)
	if !ok {
		return Result{}, false
	}
	r.Raw = raw
	for _, m := range members {
		r.IsError = r.IsError || m.Name == "isError" && m.Value[0] == 't'
	}
	return r, true
}

// Parts are the content and the structured content of r, read out of Raw where
// that is set. What is no text block of nothing but its text is verbatim.
func (r Result) Parts() (content []Block, structured []byte) {
	if r.Raw == nil {
		return r.Content, r.Structured
	}
	members, _ := Members(r.Raw)
	for _, m := range members {
		switch m.Name {
		case "content":
			content = nil
			elements, _ := Elements(m.Value)
			for _, e := range elements {
				content = append(content, block(e))
			}
		case "structuredContent":
			structured = m.Value
		}
	}
	return content, structured
}

func block(e []byte) Block {
	if members, ok := Members(e); ok && len(members) == 2 {
		if text, ok := textOf(members); ok {
			return Block{Text: unquote(text.Value)}
		}
	}
	return Block{JSON: e}
}

// textOf finds the text of a text block.
func textOf(members []Member) (text Member, ok bool) {
	typed := false
	for _, m := range members {
		switch m.Name {
		case "type":
			typed = m.Value[0] == '"' && unquote(m.Value) == "text"
		case "text":
			text, ok = m, m.Value[0] == '"'
		}
	}
	return text, typed && ok
}

func unquote(v []byte) string {
	s, _ := jsontext.AppendUnquote(nil, v)
	return string(s)
}

func appendTextBlock(dst []byte, text string) []byte {
	dst = append(dst, `{"type":"text","text":`...)
	dst, _ = jsontext.AppendQuote(dst, text)
	return append(dst, '}')
}

// CutRaw cuts the result object raw, of which IsJSON must hold, so that content,
// structuredContent and all other members together have at most about limit
// bytes each. raw itself is returned where they have. Of content the first
// blocks stay, the middle of a text that is too long is left out, and a marker
// stands for what is missing; other members stay whole, in their order, as far
// as there is room. cut is how many bytes are missing.
func CutRaw(raw []byte, limit int) (_ []byte, cut int64) {
	if len(raw) <= limit {
		return raw, 0
	}
	members, ok := Members(raw)
	if !ok {
		return raw, 0
	}
	others, over := 0, false
	for _, m := range members {
		switch m.Name {
		case "content", "structuredContent":
			over = over || len(m.Value) > limit
		default:
			others += len(m.Name) + len(m.Value)
		}
	}
	if !over && others <= limit {
		return raw, 0
	}
	room := limit
	out := []byte{'{'}
	for _, m := range members {
		v := m.Value
		switch m.Name {
		case "content":
			var n int64
			v, n = cutContent(v, limit)
			cut += n
		case "structuredContent":
			if len(v) > limit {
				cut += int64(len(v))
				continue
			}
		default:
			if n := len(m.Name) + len(v); n > room {
				cut += int64(len(v))
				continue
			} else {
				room -= n
			}
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out, _ = jsontext.AppendQuote(out, m.Name)
		out = append(append(out, ':'), v...)
	}
	return append(out, '}'), cut
}

func cutContent(v []byte, limit int) (_ []byte, cut int64) {
	if len(v) <= limit {
		return v, 0
	}
	elements, ok := Elements(v)
	if !ok {
		return append(appendTextBlock([]byte{'['}, CutMarker(int64(len(v)))), ']'), int64(len(v))
	}
	left, dropped := limit, int64(0)
	out := []byte{'['}
	for i, e := range elements {
		if left <= 0 && i > 0 {
			dropped += int64(len(e))
			continue
		}
		if len(e) > left {
			var n int64
			e, n = cutBlock(e, left)
			cut += n
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, e...)
		left -= len(e)
	}
	if dropped > 0 {
		out = appendTextBlock(append(out, ','), CutMarker(dropped))
		cut += dropped
	}
	return append(out, ']'), cut
}

// maxBeside is how many bytes a text block may have beside its text to keep
// them when the text is cut.
const maxBeside = 1 << 10

func cutBlock(e []byte, left int) (_ []byte, cut int64) {
	members, _ := Members(e)
	text, ok := textOf(members)
	if !ok || left <= 0 {
		return appendTextBlock(nil, CutMarker(int64(len(e)))), int64(len(e))
	}
	h := HeadTail{Max: left}
	_, _ = h.Write([]byte(unquote(text.Value)))
	short, cut, _ := h.Text()
	beside := len(e) - len(text.Value)
	if beside > maxBeside {
		return appendTextBlock(nil, short), cut + int64(beside)
	}
	out := bytes.Clone(e[:text.At])
	out, _ = jsontext.AppendQuote(out, short)
	return append(out, e[text.At+len(text.Value):]...), cut
}
