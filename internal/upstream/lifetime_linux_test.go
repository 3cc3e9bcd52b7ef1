package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestDeathMidCall(t *testing.T) {
	for _, c := range []struct{ do, says string }{
		{"die", "ended (exit code 3); it last said: out of [31m cheese, [masked]; the call may have run, and was not sent again"},
		{"die with a half line", "ended"},
		{"killed", "ended (SIGKILL); it last said: waiting"},
		{"deaf", "closed its standard input"},
	} {
		t.Run(c.do, func(t *testing.T) {
			spec, l := child(t, "odd", "")
			spec.Mask = func(s string) string { return strings.ReplaceAll(s, "s3cr3t-value", "[masked]") }
			u := start(t, spec)
			waiting := make(chan error, 1)
			go func() {
				_, err := u.Call(t.Context(), "echo", do("wait"), nil)
				waiting <- err
			}()
			for !strings.Contains(l.text(), "waiting") {
				time.Sleep(time.Millisecond)
			}
			if c.do == "deaf" {
				go func() { _, _ = u.Call(t.Context(), "echo", do(c.do), nil) }()
				for len(waiting) == 0 { // until a write finds nobody
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					_, _ = u.Call(ctx, "echo", do("wait"), nil)
					cancel()
				}
			} else if e := fails2(t, u, c.do, Died); !strings.Contains(e.Message, c.says) {
				t.Errorf("%s", e)
			}
			if e, ok := (<-waiting).(*Error); !ok || e.Code != Died || !strings.Contains(e.Message, c.says) {
				t.Errorf("the other call: %v", e)
			}
			// The next call has a new server, which was told nothing again.
			begun := time.Now()
			if b := works(t, u, `{"again":1}`); !bytes.Contains(b, []byte(`{"again":1}`)) {
				t.Errorf("%s", b)
			}
			if took := time.Since(begun); took > 15*time.Second {
				t.Errorf("%v until it worked again", took)
			}
			if n := strings.Count(l.text(), "waiting"); c.do != "deaf" && n != 1 {
				t.Errorf("%d calls waited", n)
			}
			if !l.has("was connected again") {
				t.Error(l.text())
			}
		})
	}
	t.Run("an answer before the end counts", func(t *testing.T) {
		spec, _ := child(t, "odd", "")
		u := start(t, spec)
		for range 5 {
			if b, err := u.Call(t.Context(), "echo", do("answer and die"), nil); err != nil || string(b) != `{"ok":1}` {
				t.Fatalf("%s %v", b, err)
			}
			// The server is about to end; the next call may still meet it.
			for {
				if _, err := u.Call(t.Context(), "echo", do(""), nil); err == nil {
					break
				}
			}
		}
	})
}

func TestRestartsBackOff(t *testing.T) {
	spec, _ := child(t, "odd", "")
	u := start(t, spec)
	var last error
	for range 12 {
		if _, last = u.Call(t.Context(), "echo", do("die"), nil); last.(*Error).Code == Unavailable {
			break
		}
	}
	if e := last.(*Error); e.Code != Unavailable || !strings.Contains(e.Message, "does not stay up (started ") {
		t.Errorf("%v", last)
	}
}

func TestHandshakes(t *testing.T) {
	for _, c := range []struct {
		server string
		modern bool
		probe  time.Duration
	}{
		{"plain", false, 10 * time.Second},
		{"dies of the probe", false, 10 * time.Second},
		{"silent before initialize", false, 50 * time.Millisecond},
		{"slow and modern", true, 20 * time.Millisecond},
		{"floods standard error", false, 10 * time.Second},
	} {
		t.Run(c.server, func(t *testing.T) {
			spec, l := child(t, c.server, "")
			spec.ProbeWait = c.probe
			u := start(t, spec)
			if u.conn.modern != c.modern {
				t.Errorf("modern: %v", u.conn.modern)
			}
			b := works(t, u, `{"a":1}`)
			if !bytes.Contains(b, []byte(`{"a":1}`)) {
				t.Errorf("%s", b)
			}
			if c.modern && !bytes.Contains(b, []byte(`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`)) {
				t.Errorf("%s", b)
			}
			if n := strings.Count(l.text(), "probed"); n > 1 {
				t.Errorf("probed %d times", n)
			}
		})
	}
	t.Run("asks for input", func(t *testing.T) {
		spec, _ := child(t, "asks for input", "")
		fails(t, start(t, spec), t.Context(), "echo", Malformed)
	})
	for server, want := range map[string]string{
		"dies at once": "ended (exit code 7); it last said: no license, before it had listed its tools",
		"never lists":  "did not list its tools within 500ms",
	} {
		t.Run(server, func(t *testing.T) {
			spec, _ := child(t, server, "")
			if server == "never lists" {
				spec.StartTime = 500 * time.Millisecond
			}
			u, err := Start(t.Context(), spec)
			if e, ok := err.(*Error); u != nil || !ok || !strings.Contains(e.Message, want) {
				t.Errorf("%v", err)
			}
			left(t, spec.Marker)
		})
	}
	t.Run("no such program", func(t *testing.T) {
		spec, _ := child(t, "plain", "")
		spec.Command = []string{"/nonexistent/server"}
		if _, err := Start(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "can't be started") {
			t.Errorf("%v", err)
		}
	})
}

func TestField46_Pages(t *testing.T) {
	spec, l := child(t, "pages", "")
	u := start(t, spec)
	if d := u.Tools(); len(d) != 2 || d[1].Name != "later_tool" {
		t.Errorf("%+v", d)
	}
	if _, err := u.Call(t.Context(), "later_tool", []byte(`{}`), nil); err != nil {
		t.Error(err)
	}
	if !l.has("echo: it is listed twice; the first one counts") {
		t.Error(l.text())
	}
	for arg, want := range map[string]string{"loop": "leads to a page that was there before", "endless": "on more than 1000 pages"} {
		spec, _ := child(t, "pages", arg)
		if _, err := Start(t.Context(), spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

func TestField84_OneBadDefinitionHarmsNoOther(t *testing.T) {
	schema := `"inputSchema":{"type":"object"}`
	list := []string{
		`null`, `7`, `{"description":"nameless",` + schema + `}`, `{"name":"",` + schema + `}`,
		`{"name":"tags","description":"Reads a file` + "\U000E0061\U000E006C" + `",` + schema + `}`,
		`{"name":"zero","inputSchema":{"type":"object","properties":{"a\u200b":{}}}}`,
		`{"name":"esc","title":"\u001b[2J",` + schema + `}`,
		`{"name":"a/b",` + schema + `}`, `{"name":"a*",` + schema + `}`, `{"name":" a",` + schema + `}`, `{"name":"` + strings.Repeat("n", 129) + `",` + schema + `}`,
		`{"name":"two","name":"too",` + schema + `}`, `{"name":"variant","Name":"x",` + schema + `}`,
		`{"name":"big","description":"` + big + `",` + schema + `}`,
		`{"name":"output","outputSchema":{"description":"x"},` + schema + `}`,
		`{"name":"mirror","inputSchema":{"type":"object","properties":{"a":{"type":"array","x-mcp-header":"A"}}}}`,
		`{"name":"null description","description":null,` + schema + `,"n":9007199254740993}`,
		`{"name":"Größe (cm)","description":"line\nbreak",` + schema + `}`,
		`{"name":"echo","inputSchema":{}}`,
	}
	spec, l := child(t, "list", "["+strings.Join(list, " ,")+"]")
	u := start(t, spec)
	want := []string{"", "", "", "", "", "", "", "", "", "", "", ""}
	got := []string{}
	for _, d := range u.Tools() {
		if d.Hidden == "" {
			got = append(got, d.Name)
			continue
		}
		fails(t, u, t.Context(), d.Name, Unavailable)
	}
	if s := fmt.Sprint(got); s != "[null description Größe (cm) echo]" {
		t.Errorf("shown: %s\n%s", s, l.text())
	}
	if n := len(u.Tools()) - len(got); n != len(want) {
		t.Errorf("%d hidden, want %d\n%s", n, len(want), l.text())
	}
	for _, d := range u.Tools() {
		sum := sha256.Sum256(d.Raw)
		if d.Digest != "sha256:"+hex.EncodeToString(sum[:]) {
			t.Errorf("digest of %s", d.Name)
		}
		if d.Name == "null description" && string(d.Raw) != list[16] {
			t.Errorf("%s", d.Raw)
		}
	}
	works(t, u, `{}`)
}

func TestField22_ListsThatAreNone(t *testing.T) {
	for arg, want := range map[string]string{"null": "without an array", `{}`: "without an array", "[null]": ""} {
		spec, _ := child(t, "list", arg)
		u, err := Start(t.Context(), spec)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
		if u != nil {
			if len(u.Tools()) != 0 {
				t.Errorf("%s: %v", arg, u.Tools())
			}
			u.Close()
		}
	}
}

func TestChangedDefinitionIsRefused(t *testing.T) {
	spec, l := child(t, "changes", t.TempDir())
	u := start(t, spec)
	for _, name := range []string{"echo", "other", "gone"} {
		if _, err := u.Call(t.Context(), name, []byte(`{}`), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := u.Call(t.Context(), "other", []byte(`{"die":1}`), nil); err.(*Error).Code != Died {
		t.Fatal(err)
	}
	works(t, u, `{}`)
	for _, name := range []string{"other", "gone"} {
		if e := fails(t, u, t.Context(), name, Changed); !strings.Contains(e.Message, "definition_changed") {
			t.Error(e)
		}
	}
	fails(t, u, t.Context(), "new", Unavailable)
	if len(u.Tools()) != 3 || !l.has("tool other has another definition") {
		t.Errorf("%v\n%s", u.Tools(), l.text())
	}
}

func TestField82_CloseLeavesNothing(t *testing.T) {
	t.Run("a stubborn one is killed with its child", func(t *testing.T) {
		spec, _ := child(t, "stubborn", "")
		spec.EOFWait, spec.TermWait = 200*time.Millisecond, 200*time.Millisecond
		u := start(t, spec)
		done := make(chan error, 1)
		go func() {
			_, err := u.Call(t.Context(), "echo", []byte(`{}`), nil)
			done <- err
		}()
		<-done
		begun := time.Now()
		u.Close()
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%v", took)
		}
		left(t, spec.Marker)
	})
	t.Run("one that finishes its work is let", func(t *testing.T) {
		dir := t.TempDir()
		spec, _ := child(t, "flushes", dir)
		spec.EOFWait = 10 * time.Second
		start(t, spec).Close()
		if _, err := os.Stat(filepath.Join(dir, "flushed")); err != nil {
			t.Error(err)
		}
		left(t, spec.Marker)
	})
	t.Run("a call under way fails", func(t *testing.T) {
		spec, l := child(t, "odd", "")
		u := start(t, spec)
		waiting := make(chan error, 1)
		go func() {
			_, err := u.Call(t.Context(), "echo", do("wait"), nil)
			waiting <- err
		}()
		for !strings.Contains(l.text(), "waiting") {
			time.Sleep(time.Millisecond)
		}
		u.Close()
		if e, ok := (<-waiting).(*Error); !ok || e.Code != Closed {
			t.Errorf("%v", e)
		}
	})
	t.Run("one that does not read", func(t *testing.T) {
		spec, l := child(t, "does not read", "")
		spec.EOFWait, spec.TermWait = 200*time.Millisecond, 200*time.Millisecond
		u := start(t, spec)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() {
				if _, err := u.Call(ctx, "echo", []byte(`{"a":"`+strings.Repeat("x", 8<<10)+`"}`), nil); err != context.DeadlineExceeded {
					t.Errorf("%v", err)
				}
			})
		}
		calls.Wait()
		_ = l
		u.Close()
		left(t, spec.Marker)
	})
}
