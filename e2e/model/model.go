// Package model is a scripted stand-in for the Anthropic Messages API on
// loopback. It drives a real agent CLI through a fixed list of steps and keeps
// what the CLI sent, so that a test can say what the model was offered and what
// it was told.
package model

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Step is what the model does in one turn: a call of Tool, else a call of Raw,
// else Text. Delay and Status go with any of them.
type Step struct {
	// Tool is the short name of a tool, as the server lists it. The call goes
	// to the offered tool that carries it, in whatever spelling the CLI gave it;
	// to Spelling+Tool where none does, which is a call the CLI did not announce.
	Tool string
	// Raw is the exact name of a tool, offered or not.
	Raw string
	// Args are the arguments of Tool or Raw, anything encoding/json takes. nil
	// is an empty object; a json.RawMessage goes out as it is.
	Args any
	// Text ends the turn with this text.
	Text string
	// Status answers with this HTTP status and an error body instead, Times
	// times before the step is played; Times 0 is always.
	Status int
	Times  int
	// Delay is waited before the answer; an aborted request ends it.
	Delay time.Duration
}

// Spelling is put before a short name that was not offered.
const Spelling = "mcp__drawbridge__"

// Request is one request the CLI made to the Messages API.
type Request struct {
	Method, Path string
	Model        string
	Stream       bool
	// Tools are the names offered, in order.
	Tools []string
	// System is the system prompt's text.
	System string
	// User is the text of all user messages, joined with newlines.
	User string
	// Results are the tool results in the conversation so far.
	Results []Result
	// Step is the index of the step that answered; -1 for a side request.
	Step int
	// Body is the request as it came.
	Body []byte
}

// Result is a tool result as the model sees it.
type Result struct {
	CallID  string
	Text    string
	IsError bool
}

// Server is the scripted model. Start makes one.
type Server struct {
	steps []Step
	http  *http.Server
	url   string
	done  chan struct{}

	mu       sync.Mutex
	requests []Request
	failures map[int]int
}

// Start listens on a loopback port and plays steps; the last one is repeated.
// The turn is told by the number of tool results in the conversation, so a
// request that is sent twice gets the same answer twice.
func Start(steps ...Step) (*Server, error) {
	if len(steps) == 0 {
		steps = []Step{{Text: "done"}}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{
		steps: steps, url: "http://" + l.Addr().String(), done: make(chan struct{}),
		failures: map[int]int{},
	}
	s.http = &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.done)
		s.http.Serve(l)
	}()
	return s, nil
}

// URL is what ANTHROPIC_BASE_URL is set to.
func (s *Server) URL() string { return s.url }

// Close ends the server and what it is answering.
func (s *Server) Close() {
	s.http.Close()
	<-s.done
}

// Requests are the conversation's requests so far. Side requests, such as
// token counts and titles, are left out.
func (s *Server) Requests() []Request {
	return slices.DeleteFunc(s.All(), func(r Request) bool { return r.Step < 0 })
}

// All are all requests so far, side requests too.
func (s *Server) All() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Offered are all tool names any request offered, sorted.
func (s *Server) Offered() []string {
	var names []string
	for _, r := range s.All() {
		names = append(names, r.Tools...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Results are the tool results of the longest conversation seen.
func (s *Server) Results() []Result {
	var longest []Result
	for _, r := range s.Requests() {
		if len(r.Results) > len(longest) {
			longest = r.Results
		}
	}
	return longest
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
	if err != nil {
		return
	}
	rec := read(body)
	rec.Method, rec.Path, rec.Step = r.Method, r.URL.Path, -1
	main := r.Method == http.MethodPost && r.URL.Path == "/v1/messages" && (rec.Stream || len(rec.Tools) > 0)
	var step Step
	if main {
		rec.Step = min(len(rec.Results), len(s.steps)-1)
		step = s.steps[rec.Step]
	}
	s.mu.Lock()
	s.requests = append(s.requests, rec)
	fail := main && step.Status != 0 && (step.Times == 0 || s.failures[rec.Step] < step.Times)
	if fail {
		s.failures[rec.Step]++
	}
	s.mu.Unlock()

	switch {
	case r.Method == http.MethodHead:
		return
	case strings.HasSuffix(r.URL.Path, "/count_tokens"):
		answer(w, http.StatusOK, map[string]any{"input_tokens": 10})
		return
	case r.URL.Path != "/v1/messages" || r.Method != http.MethodPost:
		answer(w, http.StatusNotFound, apiError("not_found_error", "no such path in the scripted model"))
		return
	case !main:
		step = Step{Text: "side"}
	}
	if !wait(r.Context(), step.Delay) {
		return
	}
	if fail {
		answer(w, step.Status, apiError("api_error", "the script says so"))
		return
	}
	msg := message(step, rec)
	if rec.Stream {
		stream(w, msg)
		return
	}
	answer(w, http.StatusOK, msg)
}

func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func apiError(kind, text string) any {
	return map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": text}}
}

func answer(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(b)
}

// usage is the same for every answer, so that a test can check the sums.
var usage = map[string]any{"input_tokens": 5, "output_tokens": 5}

func message(step Step, rec Request) map[string]any {
	block, stop := map[string]any{"type": "text", "text": step.Text}, "end_turn"
	name := step.Raw
	if step.Tool != "" {
		name = Spelling + step.Tool
		for _, offered := range rec.Tools {
			if offered == step.Tool || strings.HasSuffix(offered, "__"+step.Tool) {
				name = offered
				break
			}
		}
	}
	if name != "" {
		args := step.Args
		if args == nil {
			args = struct{}{}
		}
		stop = "tool_use"
		block = map[string]any{"type": "tool_use", "id": fmt.Sprintf("toolu_%04d", len(rec.Results)), "name": name, "input": args}
	}
	return map[string]any{
		"id": fmt.Sprintf("msg_%04d", len(rec.Results)), "type": "message", "role": "assistant", "model": rec.Model,
		"content": []any{block}, "stop_reason": stop, "stop_sequence": nil, "usage": usage,
	}
}

// stream sends msg as the Messages API's server-sent events.
func stream(w http.ResponseWriter, msg map[string]any) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(kind string, fields map[string]any) {
		fields["type"] = kind
		b, _ := json.Marshal(fields)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, b)
	}
	block := msg["content"].([]any)[0].(map[string]any)
	head := map[string]any{}
	for k, v := range msg {
		head[k] = v
	}
	head["content"], head["stop_reason"], head["usage"] = []any{}, nil, map[string]any{"input_tokens": 5, "output_tokens": 1}
	send("message_start", map[string]any{"message": head})
	if block["type"] == "tool_use" {
		input, _ := json.Marshal(block["input"])
		send("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{
			"type": "tool_use", "id": block["id"], "name": block["name"], "input": struct{}{},
		}})
		send("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "input_json_delta", "partial_json": string(input)}})
	} else {
		send("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{"type": "text", "text": ""}})
		send("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "text_delta", "text": block["text"]}})
	}
	send("content_block_stop", map[string]any{"index": 0})
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": msg["stop_reason"], "stop_sequence": nil}, "usage": map[string]any{"output_tokens": 5}})
	send("message_stop", map[string]any{})
}

// read takes from a request what a test asks about. What is not as the API
// has it is left empty: the script decides, not the request.
func read(body []byte) Request {
	var in struct {
		Model  string
		Stream bool
		System json.RawMessage
		Tools  []struct {
			Name, Type string
		}
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	rec := Request{Body: body}
	if json.Unmarshal(body, &in) != nil {
		return rec
	}
	rec.Model, rec.Stream, rec.System = in.Model, in.Stream, text(in.System)
	for _, t := range in.Tools {
		if t.Name == "" {
			t.Name = t.Type
		}
		rec.Tools = append(rec.Tools, t.Name)
	}
	var user []string
	for _, m := range in.Messages {
		if m.Role != "user" {
			continue
		}
		if t := text(m.Content); t != "" {
			user = append(user, t)
		}
		var blocks []struct {
			Type      string
			ToolUseID string `json:"tool_use_id"`
			Content   json.RawMessage
			IsError   bool `json:"is_error"`
		}
		if json.Unmarshal(m.Content, &blocks) != nil {
			continue
		}
		for _, b := range blocks {
			if b.Type == "tool_result" {
				rec.Results = append(rec.Results, Result{CallID: b.ToolUseID, Text: text(b.Content), IsError: b.IsError})
			}
		}
	}
	rec.User = strings.Join(user, "\n")
	return rec
}

// text is the text of a content member: a string, or blocks of which some are
// text.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var blocks []struct{ Type, Text string }
	if json.Unmarshal(raw, &blocks) != nil {
		return ""
	}
	var parts []string
	for _, b := range blocks {
		if b.Type == "text" {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}
