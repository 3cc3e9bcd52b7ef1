package control

import (
	"bufio"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

var question = approve.Question{
	ID: "Q1", Run: "r1", Tool: "delete_file", Arguments: `{"path":"a.txt"}`, State: approve.Pending,
	Asked: time.Date(2026, 12, 1, 3, 0, 0, 0, time.UTC),
}

func TestParseRequest(t *testing.T) {
	for _, c := range []struct {
		line string
		ok   bool
	}{
		{`{"version":1,"nonce":"n","op":"pending"}`, true},
		{`{"version":1,"nonce":"n","op":"answer","id":"Q1","yes":true,"remember":true,"note":"ok"}`, true},
		{`{"version":1,"nonce":"n","op":"answer","id":"Q1"}`, true},
		{``, false},
		{`[]`, false},
		{`null`, false},
		{`{"version":1,"nonce":"n","op":"pending"}{}`, false},
		{`{"version":2,"nonce":"n","op":"pending"}`, false},
		{`{"nonce":"n","op":"pending"}`, false},
		{`{"version":1,"nonce":"n"}`, false},
		{`{"version":1,"nonce":"n","op":"shutdown"}`, false},
		{`{"version":1,"nonce":"n","op":"answer"}`, false},
		{`{"version":1,"nonce":"n","op":"pending","id":"Q1"}`, false},
		{`{"version":1,"nonce":"n","op":"pending","yes":true}`, false},
		{`{"version":1,"nonce":"n","op":"answer","id":"Q1","remember":true}`, false},
		{`{"version":1,"nonce":"n","op":"answer","id":"Q1","yes":"true"}`, false},
		{`{"version":1,"nonce":"n","op":"answer","id":"Q1","yes":1}`, false},
		// Two readings.
		{`{"version":1,"nonce":"n","op":"answer","id":"Q1","yes":false,"yes":true}`, false},
		{`{"version":1,"nonce":"n","op":"answer","id":"Q1","Yes":true}`, false},
		// Who answers is not the client's to say.
		{`{"version":1,"nonce":"n","op":"answer","id":"Q1","yes":true,"by":"terminal"}`, false},
		{"{\"version\":1,\"nonce\":\"n\",\"op\":\"answer\",\"id\":\"\xff\"}", false},
		{strings.Repeat("[", 60000), false},
	} {
		if _, err := parseRequest([]byte(c.line)); (err == nil) != c.ok {
			t.Errorf("%.100s: %v", c.line, err)
		}
	}
}

func TestFailuresKeepTheirMeaning(t *testing.T) {
	for _, is := range []error{approve.ErrUnknown, approve.ErrSettled, ErrRefused, nil} {
		err := errors.New("the store is locked")
		if is != nil {
			err = fmt.Errorf("%w: %w", is, err)
		}
		_, got := readAnswer(bufio.NewReader(strings.NewReader(string(encode(failed(err))))))
		if got == nil || got.Error() != err.Error() {
			t.Errorf("%v arrives as %v", err, got)
		}
		for _, e := range []error{approve.ErrUnknown, approve.ErrSettled, ErrRefused} {
			if errors.Is(got, e) != (e == is) {
				t.Errorf("%v: is %v is %v", got, e, errors.Is(got, e))
			}
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	a := answer{Version: version, Questions: []approve.Question{{Plan: strings.Repeat("x", maxAnswer)}}}
	if b := encode(a); len(b) > maxText*2 || !strings.Contains(string(b), "the questions have") {
		t.Errorf("%d bytes: %.200s", len(b), b)
	}
	if b := encode(failed(errors.New(strings.Repeat("ä", maxAnswer) + "\xff"))); len(b) > maxText*2 {
		t.Errorf("%d bytes", len(b))
	}
	for in, want := range map[string]string{
		strings.Repeat("x", maxAnswer+10):           "more than",
		`{"version":1}`:                             "ended the connection",
		"nonsense\n":                                "can't be read",
		`{"version":7,"nonce":[]}` + "\n":           "it speaks version 7",
		`{"version":1,"error":{"kind":"x"}}\n`:      "ended the connection",
		`{"version":1,"error":{"kind":"x"}}` + "\n": "gives no reason",
	} {
		if a, err := readAnswer(bufio.NewReader(strings.NewReader(in))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %+v, %v", in, a, err)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(`{"version":1,"nonce":"n","op":"answer","id":"Q1","yes":true,"remember":true,"note":"ok"}`))
	f.Add([]byte(`{"version":1,"nonce":"n","op":"pending"}`))
	f.Add([]byte(`{"version":1,"nonce":"n","op":"answer","id":"\u0000"}`))
	f.Add([]byte(`{"version":1e0,"op":"pending","op":"answer"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseRequest(line)
		if err != nil {
			if r != (request{}) {
				t.Errorf("%+v beside %v", r, err)
			}
			return
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseRequest(b); err != nil || again != r {
			t.Errorf("%+v came back as %+v, %v", r, again, err)
		}
	})
}

func FuzzReadAnswer(f *testing.F) {
	f.Add(encode(answer{Version: version, Questions: []approve.Question{question}}))
	f.Add(encode(failed(approve.ErrSettled)))
	f.Add([]byte(`{"version":1,"questions":[null]}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := readAnswer(bufio.NewReader(strings.NewReader(string(b))))
		if err != nil || a.Error != nil {
			if err == nil {
				t.Errorf("a failure is no error: %+v", a)
			}
			return
		}
		again, err := parseAnswer(encode(a))
		if err != nil {
			return // a time that can't be written
		}
		if !reflect.DeepEqual(encode(again), encode(a)) {
			t.Errorf("%+v came back as %+v", a, again)
		}
	})
}
