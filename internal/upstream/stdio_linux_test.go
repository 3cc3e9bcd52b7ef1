package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

func TestAnswersOverStdio(t *testing.T) {
	spec, l := child(t, "odd", "")
	u := start(t, spec)
	if u.conn.modern || u.Instructions() != "be <kind>" {
		t.Errorf("%v %q", u.conn.modern, u.Instructions())
	}
	for _, c := range []struct{ do, want, err string }{
		{do: "noise", want: `{"ok":1}`},
		{do: "wrong ids", want: `{"ok":1}`},
		{do: "twice", want: `{"ok":1}`},
		{do: "batch", want: `{"ok":1}`},
		{do: "half", want: `{"ok":1}`},
		{do: "broken", err: "answered with what is no JSON"},
		{do: "no object", err: "answered with a result that is no object"},
		{do: "neither", err: "answered with a result that is no object"},
		{do: "error", err: "answered with error -32602: no [2J such <thing>"},
		{do: "UTF-8", want: "{\"a\":\"\xff\xfe\",\"\\ud800\":1}"},
	} {
		b, err := u.Call(t.Context(), "echo", do(c.do), nil)
		got := ""
		if err != nil {
			got = strings.TrimPrefix(err.Error(), "upstream up ")
		}
		if string(b) != c.want || got != c.err {
			t.Errorf("%s: %q %q", c.do, b, got)
		}
	}
	if !l.has("what is no message") || !strings.Contains(l.text(), "Now using node v20\n") {
		t.Errorf("notes: %s", l.text())
	}
}

func TestField80_StandardErrorNeverBlocks(t *testing.T) {
	spec, l := child(t, "odd", "")
	u := start(t, spec)
	if _, err := u.Call(t.Context(), "echo", do("stderr"), nil); err != nil {
		t.Fatal(err)
	}
	u.Close()
	if n := l.stderr.Len(); n != 10<<20 {
		t.Errorf("%d bytes arrived", n)
	}
}

func TestField87_RequestsOfTheServerAreAnswered(t *testing.T) {
	spec, l := child(t, "odd", "")
	u := start(t, spec)
	b, err := u.Call(t.Context(), "echo", do("asks"), nil)
	if err != nil {
		t.Fatal(err)
	}
	const no = `{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"not served by this client"}}`
	want := `{"ok":1,"got":[` + strings.Join([]string{no, no, no, `{"jsonrpc":"2.0","id":3,"result":{}}`, no, `{"jsonrpc":"2.0","id":"s1","result":{}}`}, ",") + `]}`
	want = strings.ReplaceAll(want, `"id":3`, `"id":`+itoa(u.ids.Load()))
	if string(b) != want {
		t.Errorf("%s\nwant\n%s", b, want)
	}
	if !l.has("keeps the one it began with") {
		t.Error(l.text())
	}
}

func TestProgress(t *testing.T) {
	spec, _ := child(t, "odd", "")
	u := start(t, spec)
	var got []string
	if _, err := u.Call(t.Context(), "echo", do("progress"), func(p []byte) { got = append(got, string(p)) }); err != nil {
		t.Fatal(err)
	}
	works(t, u, `{}`) // the progress after the answer has been read by then
	if want := `{"progress":1.10,"progressToken":` + itoa(u.ids.Load()-1) + `}`; len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %s", got, want)
	}
}

// What goes out and what comes back are the same bytes.
func TestBytesPassUnchanged(t *testing.T) {
	spec, _ := child(t, "plain", "")
	u := start(t, spec)
	rapid.Check(t, func(rt *rapid.T) {
		b, err := json.Marshal(map[string]any{"s": rapid.String().Draw(rt, "s"), "n": rapid.Int64().Draw(rt, "n")})
		if err != nil {
			rt.Fatal(err)
		}
		args := `{"big":9007199254740993, "f":1.10,"e":1E400,"u":"\u00e9\ud83e\udd86<&>","":{"z":[],"a":null} ,"x":` + string(b) + `}`
		got, err := u.Call(t.Context(), "echo", []byte(args), nil)
		want := `{"content":[],"params":{"name":"echo","arguments":` + args + `}}`
		if err != nil || string(got) != want {
			rt.Fatalf("%s %v, want\n%s", got, err, want)
		}
	})
	// Line breaks between tokens are blanks on a line.
	if got := works(t, u, "{\n\"a\":\r\n1}"); string(got) != `{"content":[],"params":{"name":"echo","arguments":{ "a":  1}}}` {
		t.Errorf("%s", got)
	}
	// A long message in many pieces.
	long := `{"a":"` + strings.Repeat("é", 1<<20) + `"}`
	if got := works(t, u, long); !bytes.Contains(got, []byte(long)) {
		t.Errorf("%d bytes", len(got))
	}
}

func TestManyAtOnce(t *testing.T) {
	spec, _ := child(t, "plain", "")
	u := start(t, spec)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			for j := range 50 {
				args := fmt.Sprintf(`{"i":%d,"j":%d,"pad":"%s"}`, i, j, strings.Repeat("x", j*i))
				if b, err := u.Call(t.Context(), "echo", []byte(args), nil); err != nil || !bytes.Contains(b, []byte(args)) {
					t.Errorf("%s %v", b, err)
				}
			}
		})
	}
	all.Wait()
}

func TestHugeResult(t *testing.T) {
	spec, _ := child(t, "odd", "")
	spec.MaxMessage = 1 << 20
	u := start(t, spec)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	e := fails2(t, u, "huge", TooLarge)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
	if e.Size < 64<<20 || !strings.Contains(e.Message, "1048576") {
		t.Errorf("%d %s", e.Size, e)
	}
	works(t, u, `{}`) // the connection lives
	u.Close()

	spec, _ = child(t, "odd", "")
	spec.MaxMessage = 80 << 20
	u = start(t, spec)
	b, err := u.Call(t.Context(), "echo", do("huge"), nil)
	if err != nil || len(b) < 64<<20 || !json.Valid(b) {
		t.Errorf("%d bytes %v", len(b), err)
	}
}

func TestCancelledCall(t *testing.T) {
	spec, l := child(t, "odd", "")
	u := start(t, spec)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := u.Call(ctx, "echo", do("late"), nil); err != context.DeadlineExceeded {
		t.Errorf("%v", err)
	}
	// The late answer is nobody's.
	time.Sleep(250 * time.Millisecond)
	if b := works(t, u, `{"n":1}`); !bytes.Contains(b, []byte(`{"n":1}`)) {
		t.Errorf("%s", b)
	}
	u.Close()
	if want := `cancelled {"requestId":` + itoa(u.ids.Load()-1); !strings.Contains(l.text(), want) {
		t.Errorf("%s, want %s", l.text(), want)
	}
}

func TestField92_EnvironmentIsWhatWasGiven(t *testing.T) {
	t.Setenv("FOO_TOKEN", "secret")
	spec, _ := child(t, "environment", "")
	b := works(t, start(t, spec), `{}`)
	var got struct{ Env []string }
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for _, kv := range got.Env {
		name, _, _ := strings.Cut(kv, "=")
		if name != serverEnv && name != "ARG" && name != "PATH" && name != "GORACE" && name != proc.MarkerEnv {
			t.Errorf("%s", kv)
		}
	}
}
