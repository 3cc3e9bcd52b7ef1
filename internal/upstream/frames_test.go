package upstream

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func TestFrames(t *testing.T) {
	type line struct {
		text string
		size int64
		id   string
	}
	rapid.Check(t, func(rt *rapid.T) {
		const most = 40
		var in bytes.Buffer
		var want []line
		for range rapid.IntRange(0, 12).Draw(rt, "lines") {
			n := rapid.IntRange(0, 2*most).Draw(rt, "length")
			text := strings.Repeat("x", n)
			if rapid.Bool().Draw(rt, "message") {
				id := fmt.Sprint(rapid.IntRange(0, 999).Draw(rt, "id"))
				text = `{"a":{"id":7},"b":"\"id\":8","id":` + id + `,"c":["id",9]}`
				want = append(want, line{"", int64(len(text)), id})
			} else if n <= most {
				want = append(want, line{text: text})
			} else {
				want = append(want, line{size: int64(n)})
			}
			in.WriteString(text + "\n")
		}
		in.WriteString("rest")
		var got []line
		f := &frames{
			max:  most,
			line: func(b []byte, _ bool) { got = append(got, line{text: string(b)}) },
			over: func(s *scan, size int64) { got = append(got, line{size: size, id: string(s.id)}) },
		}
		for b := in.Bytes(); len(b) > 0; {
			n := min(len(b), rapid.IntRange(1, 50).Draw(rt, "piece"))
			_, _ = f.Write(b[:n])
			b = b[n:]
			if cap(f.buf) > most {
				rt.Fatalf("%d bytes are held", cap(f.buf))
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			rt.Fatalf("got %v\nwant %v", got, want)
		}
	})
}

// Whatever the scan says of a message that a reader can read, the reader says too.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":5,"result":{"id":6}}`, `{"result":[{"id":1}],"id":12}`, `{"id":"x","result":1}`, `{"id":1,"method":"m"}`,
		`{"a":"\\","id":3}`, `{"a":"\"id\":4"}`, ` { "id" : -7 } `, `{"i\u0064":1}`, `[{"id":1}]`, `{"id":1,"id":2}`,
	} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		var s scan
		cut = min(max(cut, 0), len(b))
		s.feed(b[:cut])
		s.feed(b[cut:])
		if len(s.id) > maxScanned || len(s.text) > maxScanned+1 {
			t.Fatalf("%d and %d bytes kept", len(s.id), len(s.text))
		}
		if !call.IsJSON(b) || bytes.Contains(b, []byte(`\u`)) {
			return
		}
		m, _ := readMessage(b)
		want, ok := m.answers()
		got, is := s.message().answers()
		if ok != is || got != want {
			t.Fatalf("%q: %d %v, want %d %v", b, got, is, want, ok)
		}
	})
}

// Nothing a server prints does more than be dropped.
func FuzzStdout(f *testing.F) {
	for _, s := range []string{
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n", "banner\n{\"id\":1,\"error\":null}\n", "[[],null,{\"id\":1}]\n", "{\"id\":1,\"method\":\"ping\"}\n",
		"{\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1}}\n", "\xef\xbb\xbf{\"id\":1,\"result\":\"\xff\"}\r\n", "{\"id\":1,\"error\":[]}\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		spec := &Spec{Name: "up"}
		spec.defaults()
		s := &stdio{spec: spec, dead: make(chan struct{}), waiting: map[int64]*waiter{}, out: outbox{messages: make(chan []byte, outgoing)}, noise: noise{to: io.Discard}}
		w := &waiter{done: make(chan outcome, 1), progress: func([]byte) {}}
		s.waiting[1] = w
		_, _ = (&frames{max: 256, line: s.line, over: s.over}).Write(b)
		select {
		case o := <-w.done:
			if o.err == nil && o.answer.failure == nil && o.answer.result != nil && !call.IsJSON(o.answer.result) {
				t.Fatalf("%q", o.answer.result)
			}
		default:
		}
		close(s.out.messages)
		for m := range s.out.messages {
			if !call.IsJSON(m) || bytes.Count(m, []byte("\n")) != 1 {
				t.Fatalf("replied %q", m)
			}
		}
	})
}
