package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// maxLog is how much of a line that is no event is kept.
const maxLog = 4 << 10

// maxOpenCalls bounds the calls whose result is still awaited.
const maxOpenCalls = 1024

// claudeStream reads `--output-format stream-json`: one JSON object a line,
// told apart by its type. It holds on to nothing of what the CLI may change
// from week to week: unknown types, members and blocks are passed over, and a
// member that is not of the kind expected counts as absent.
type claudeStream struct {
	server string // "" until the stream names it
	calls  openCalls
}

func (s *claudeStream) Line(b []byte, cut bool) []event.Event {
	b = bytes.TrimSpace(b)
	switch {
	case len(b) == 0:
		return nil
	case cut:
		return s.head(b)
	case b[0] == '[':
		// Some versions and wrappers print several events as one array.
		var list []json.RawMessage
		if json.Unmarshal(b, &list) != nil {
			return logged(b)
		}
		var events []event.Event
		for _, one := range list {
			if o, ok := object(one); ok {
				events = append(events, s.event(o)...)
			}
		}
		return events
	}
	o, ok := object(b)
	if !ok {
		return logged(b)
	}
	return s.event(o)
}

// head reads what there is of a line that was longer than the limit. Only its
// result matters: without it the run would look as if it had never finished.
func (s *claudeStream) head(b []byte) []event.Event {
	o := partial(b)
	// type comes late in a result line, so these two stand for it; no other
	// line has them.
	if o.str("type") != "result" && (o["num_turns"] == nil || o["is_error"] == nil) {
		return []event.Event{{Kind: event.Log, Text: fmt.Sprintf("a line of type %q was longer than the limit and was left out", clip(o.str("type"), 64)), Observed: true}}
	}
	e := s.result(o)
	if e.Text == "" {
		e.Text = "[the result was longer than the limit]"
	}
	return []event.Event{e}
}

func (s *claudeStream) event(o members) []event.Event {
	switch o.str("type") {
	case "system":
		if o.str("subtype") == "init" {
			return []event.Event{s.started(o)}
		}
		if o.str("subtype") == "api_retry" { // it may go on for minutes
			status := o.str("error_status")
			if n := o.num("error_status"); n > 0 {
				status = fmt.Sprint(int(n))
			}
			return []event.Event{{Kind: event.Notice, Text: clean(strings.TrimSpace(fmt.Sprintf("the model's API fails, and the agent tries again: %s %s", status, o.str("error"))))}}
		}
	case "assistant":
		return s.assistant(o.obj("message"))
	case "user":
		return s.user(o.obj("message"))
	case "result":
		return []event.Event{s.result(o)}
	}
	return nil
}

func (s *claudeStream) started(o members) event.Event {
	e := event.Event{Kind: event.Started, Version: o.str("claude_code_version"), Model: o.str("model")}
	for _, t := range o.list("tools") {
		if name := str(t); name != "" {
			e.Tools = append(e.Tools, name)
		}
	}
	var others []string
	servers := o.list("mcp_servers")
	if s.server == "" && len(servers) == 1 {
		if only, ok := object(servers[0]); ok {
			s.server = only.str("name")
		}
	}
	for _, raw := range servers {
		srv, _ := object(raw)
		if name := srv.str("name"); name != s.server {
			others = append(others, clip(name, 64))
		} else {
			e.Status = srv.str("status")
		}
	}
	if e.Status == "" {
		e.Status = "absent"
	}
	if len(others) > 0 {
		e.Text = "the agent also names MCP servers that are not the bridge: " + strings.Join(others, ", ")
	}
	return e
}

func (s *claudeStream) assistant(msg members) []event.Event {
	if text := msg.str("content"); text != "" {
		return []event.Event{{Kind: event.Text, Text: text}}
	}
	var events []event.Event
	for _, raw := range msg.list("content") {
		b, _ := object(raw)
		switch kind := b.str("type"); kind {
		case "text":
			if text := b.str("text"); text != "" {
				events = append(events, event.Event{Kind: event.Text, Text: text})
			}
		case "tool_use", "server_tool_use", "mcp_tool_use":
			e := event.Event{Kind: event.ToolCall, Tool: b.str("name"), CallID: b.str("id"), Arguments: compact(b["input"])}
			// The other two kinds run where the model is, whatever their name.
			e.Observed = kind != "tool_use" || !s.ours(e.Tool)
			s.calls.open(e)
			events = append(events, e)
		}
	}
	return events
}

func (s *claudeStream) user(msg members) []event.Event {
	var events []event.Event
	for _, raw := range msg.list("content") {
		b, _ := object(raw)
		if b.str("type") != "tool_result" {
			continue
		}
		e := event.Event{Kind: event.ToolResult, CallID: b.str("tool_use_id"), Result: blockText(b["content"]), IsError: b.is("is_error")}
		e.Tool, e.Observed = s.calls.close(e.CallID)
		events = append(events, e)
	}
	return events
}

// claudeOverBudget is the subtype of a result after --max-budget-usd was reached.
// It is compared after each answer of the model, so that the last one can go over
// it, with prices that the CLI knows; a model it does not know has a price too.
const claudeOverBudget = "error_max_budget_usd"

// result reads the line that ends a run. is_error decides: an error of the
// model's API comes as subtype success.
func (s *claudeStream) result(o members) event.Event {
	e := event.Event{Kind: event.Finished, Status: o.str("subtype"), Turns: int(o.num("num_turns")), Text: o.str("result")}
	switch {
	case o["is_error"] != nil:
		ok := !o.is("is_error")
		e.OK = &ok
	case e.Status != "":
		ok := e.Status == "success"
		e.OK = &ok
	}
	if e.Status == claudeOverBudget {
		e.Status = event.OverBudget
	}
	if e.Text == "" {
		var parts []string
		for _, raw := range o.list("errors") {
			if t := str(raw); t != "" {
				parts = append(parts, t)
			}
		}
		e.Text = strings.Join(parts, "\n")
	}
	if u := o.obj("usage"); u != nil {
		e.Usage = &event.Usage{
			Input: u.num("input_tokens"), Output: u.num("output_tokens"),
			CacheRead: u.num("cache_read_input_tokens"), CacheWrite: u.num("cache_creation_input_tokens"),
		}
	}
	var cost float64
	if raw := o["total_cost_usd"]; raw != nil && json.Unmarshal(raw, &cost) == nil && cost >= 0 {
		e.CostUSD = &cost
	}
	return e
}

func (s *claudeStream) ours(tool string) bool {
	return s.server != "" && len(Foreign(claude{}, s.server, []string{tool})) == 0
}

// openCalls remembers which tool a result belongs to.
type openCalls []event.Event

func (c *openCalls) open(e event.Event) {
	if len(*c) == maxOpenCalls {
		*c = slices.Delete(*c, 0, 1)
	}
	*c = append(*c, event.Event{Tool: e.Tool, CallID: e.CallID, Observed: e.Observed})
}

func (c *openCalls) close(id string) (tool string, observed bool) {
	i := slices.IndexFunc(*c, func(e event.Event) bool { return e.CallID == id })
	if i < 0 {
		return "", true
	}
	e := (*c)[i]
	*c = slices.Delete(*c, i, i+1)
	return e.Tool, e.Observed
}

func logged(b []byte) []event.Event {
	text := clip(string(b), maxLog)
	if len(b) > maxLog {
		text += call.CutMarker(int64(len(b) - maxLog))
	}
	return []event.Event{{Kind: event.Log, Text: text, Observed: true}}
}

// clean is s as valid UTF-8 and no longer than a tool's result may be.
func clean(s string) string {
	var h call.HeadTail
	h.Write([]byte(s))
	text, _, _ := h.Text()
	return text
}

// blockText is the text of a content member: a string, or a list of blocks.
func blockText(raw json.RawMessage) string {
	if raw == nil {
		return ""
	}
	if raw[0] == '"' {
		return clean(str(raw))
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return clean(string(raw))
	}
	var parts []string
	for _, one := range list {
		b, ok := object(one)
		switch kind := b.str("type"); {
		case !ok:
		case kind == "text":
			parts = append(parts, b.str("text"))
		default:
			parts = append(parts, "["+clip(kind, 64)+"]")
		}
	}
	return clean(strings.Join(parts, "\n"))
}

// members is a JSON object whose values are still JSON. Names are exact.
type members map[string]json.RawMessage

func object(b []byte) (members, bool) {
	var m members
	err := json.Unmarshal(b, &m)
	return m, err == nil && m != nil
}

// partial is the members of an object whose end is missing, as far as they are
// whole.
func partial(b []byte) members {
	m := members{}
	dec := jsontext.NewDecoder(bytes.NewBuffer(b), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if dec.PeekKind() != '{' {
		return m
	}
	dec.ReadToken()
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			break
		}
		key := name.String()
		v, err := dec.ReadValue()
		if err != nil {
			break
		}
		m[key] = bytes.Clone(v)
	}
	return m
}

func (m members) str(name string) string { return str(m[name]) }

func str(raw json.RawMessage) string {
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

func (m members) num(name string) int64 {
	var f float64
	if raw := m[name]; len(raw) == 0 || json.Unmarshal(raw, &f) != nil || !(f >= 0 && f < 1<<53) {
		return 0
	}
	return int64(f)
}

func (m members) is(name string) bool { return string(m[name]) == "true" }

func (m members) obj(name string) members {
	o, _ := object(m[name])
	return o
}

func (m members) list(name string) []json.RawMessage {
	var l []json.RawMessage
	if raw := m[name]; len(raw) == 0 || json.Unmarshal(raw, &l) != nil {
		return nil
	}
	return l
}

// compact is raw as a value that can stand in an event: nil where there is
// none, and a note where it is larger than what a result may be.
func compact(raw json.RawMessage) json.RawMessage {
	switch {
	case len(raw) == 0:
		return nil
	case len(raw) > call.DefaultOutput:
		note, _ := json.Marshal(fmt.Sprintf("[%d bytes left out]", len(raw)))
		return note
	}
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return nil
	}
	// A string's bytes are copied as they are.
	return bytes.ToValidUTF8(b.Bytes(), []byte("\uFFFD"))
}
