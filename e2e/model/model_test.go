package model

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

func post(t *testing.T, s *Server, path, body string) (int, string) {
	t.Helper()
	res, err := http.Post(s.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// turn is a request with results tool results.
func turn(stream bool, results int) string {
	messages := []any{map[string]any{"role": "user", "content": "hello"}}
	for range results {
		messages = append(messages,
			map[string]any{"role": "assistant", "content": []any{}},
			map[string]any{"role": "user", "content": []any{map[string]any{"type": "tool_result", "tool_use_id": "x", "is_error": true, "content": []any{map[string]any{"type": "text", "text": "r"}}}}})
	}
	b, _ := json.Marshal(map[string]any{
		"model": "m", "stream": stream, "system": []any{map[string]any{"type": "text", "text": "sys"}}, "messages": messages,
		"tools": []any{map[string]any{"name": "mcp__s__search"}, map[string]any{"type": "web_search"}},
	})
	return string(b)
}

func TestScript(t *testing.T) {
	s, err := Start(
		Step{Tool: "search", Args: json.RawMessage(`{"n":9007199254740993}`)},
		Step{Tool: "hidden"}, Step{Raw: "Bash", Args: map[string]any{"a": 1}}, Step{Status: 529, Times: 1, Text: "after"}, Step{Text: "end", Delay: time.Millisecond},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, want := range []string{`"name":"mcp__s__search"`, `"name":"mcp__drawbridge__hidden"`, `"name":"Bash"`, `"type":"api_error"`} {
		if _, got := post(t, s, "/v1/messages", turn(false, i)); !strings.Contains(got, want) {
			t.Errorf("turn %d: %s", i, got)
		}
	}
	if code, got := post(t, s, "/v1/messages?beta=true", turn(false, 3)); code != 200 || !strings.Contains(got, `"text":"after"`) {
		t.Errorf("%d %s", code, got)
	}
	for _, n := range []int{4, 9} {
		if _, got := post(t, s, "/v1/messages", turn(false, n)); !strings.Contains(got, `"text":"end"`) || !strings.Contains(got, `"end_turn"`) {
			t.Errorf("%s", got)
		}
	}
	if _, got := post(t, s, "/v1/messages/count_tokens", turn(false, 0)); got != `{"input_tokens":10}` {
		t.Errorf("%s", got)
	}
	if _, got := post(t, s, "/v1/messages", `{"model":"m","messages":[]}`); !strings.Contains(got, `"text":"side"`) {
		t.Errorf("%s", got)
	}
	for _, bad := range []string{"", "[", `{"messages":1}`, `{"tools":[],"stream":true,"messages":[{"role":"user","content":[{"type":"tool_result","content":7}]}]}`} {
		post(t, s, "/v1/messages", bad)
	}
	if code, _ := post(t, s, "/v1/models", ""); code != 404 {
		t.Error(code)
	}
	reqs := s.Requests()
	if len(reqs) != 8 || reqs[1].Step != 1 || reqs[6].Step != 4 || reqs[2].System != "sys" || reqs[0].User != "hello" {
		t.Errorf("%d requests, %+v", len(reqs), reqs)
	}
	if r := s.Results(); len(r) != 9 || r[0] != (Result{CallID: "x", Text: "r", IsError: true}) {
		t.Errorf("%+v", r)
	}
	if got := strings.Join(s.Offered(), " "); got != "mcp__s__search web_search" {
		t.Error(got)
	}
}

func TestStream(t *testing.T) {
	s, err := Start(Step{Tool: "search", Args: map[string]any{"q": "<x>"}}, Step{Text: "end"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, want := range []string{"message_start content_block_start content_block_delta content_block_stop message_delta message_stop"} {
		_, body := post(t, s, "/v1/messages", turn(true, i))
		var kinds []string
		for sc := bufio.NewScanner(bytes.NewReader([]byte(body))); sc.Scan(); {
			if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
				var e struct{ Type string }
				if err := json.Unmarshal([]byte(data), &e); err != nil {
					t.Errorf("%s: %v", data, err)
				}
				kinds = append(kinds, e.Type)
			}
		}
		if got := strings.Join(kinds, " "); got != want {
			t.Errorf("turn %d: %s", i, got)
		}
	}
}

func TestCloseEndsADelayedAnswer(t *testing.T) {
	s, err := Start(Step{Text: "x", Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := http.Post(s.URL()+"/v1/messages", "application/json", strings.NewReader(turn(false, 0))); err == nil {
			res.Body.Close()
		}
	}()
	for len(s.All()) == 0 {
		time.Sleep(time.Millisecond)
	}
	s.Close()
	<-done
}
