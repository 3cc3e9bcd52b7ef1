package audit

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var anyText = rapid.OneOf(
	rapid.String(),
	rapid.SampledFrom([]string{"", "\x00\x1b[2J\x7f", "\u0085\u009b\u2028\u2029", "<&>", `"\`, "a\r\nb", "\uFEFF\U000E0041", "\uFFFD"}),
)

func anyRecord() *rapid.Generator[Record] {
	return rapid.Custom(func(t *rapid.T) Record {
		r := Record{
			Kind:     rapid.SampledFrom([]Kind{Refused, Begin, Answer, End, Early, Note}).Draw(t, "kind"),
			Call:     rapid.Int64().Draw(t, "call"),
			Tool:     anyText.Draw(t, "tool"),
			Effects:  anyText.Draw(t, "effects"),
			Origin:   anyText.Draw(t, "origin"),
			Decision: anyText.Draw(t, "decision"),
			Layer:    anyText.Draw(t, "layer"),
			Rule:     anyText.Draw(t, "rule"), Reason: anyText.Draw(t, "reason"),
			Outcome: Outcome(anyText.Draw(t, "outcome")),
			Micros:  rapid.Int64().Draw(t, "us"), ResultSize: rapid.Int().Draw(t, "size"),
			Cut: rapid.Int64().Draw(t, "cut"), Redacted: rapid.Int().Draw(t, "redacted"),
			Repaired: rapid.Bool().Draw(t, "repaired"), Invisible: rapid.Bool().Draw(t, "invisible"),
			What: anyText.Draw(t, "what"), Detail: anyText.Draw(t, "detail"),
			ArgumentsDigest: anyText.Draw(t, "digest"), ArgumentsSize: rapid.Int().Draw(t, "asize"),
		}
		if rapid.Bool().Draw(t, "args") {
			v := map[string]any{anyText.Draw(t, "k"): anyText.Draw(t, "v"), "n": rapid.Int64().Draw(t, "n"), "a": []any{nil, true}}
			r.Arguments, _ = json.Marshal(v)
		}
		return r
	})
}

// Any record comes back from its line as it went in, the line is one line, and
// encoding/json reads it the same.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRecord().Draw(t, "record")
		r.Seq, r.Prev, r.Time = 7, zeroHash, time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "s"), rapid.Int64Range(0, 1e9-1).Draw(t, "ns")).UTC()
		line := appendLine(nil, &r)
		if bytes.ContainsAny(line, "\n\r\x00\x1b") || bytes.ContainsAny(bytes.Replace(line, r.Arguments, nil, 1), "\x7f\u0085\u009b\u2028\u2029") {
			t.Fatalf("control characters in %q", line)
		}
		got, _, err := decodeLine(line, nil)
		if err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Fatalf("%s\n%s", line, diff)
		}
	})
}

func TestArgumentsAreKeptVerbatimOnOneLine(t *testing.T) {
	l, _, path := newLog(t, Options{})
	for in, want := range map[string]string{
		"{\n \"b\" : 9007199254740993,\r\n\t\"a\":\"\\u0041\\n<&>\" }\n": "{  \"b\" : 9007199254740993,  \t\"a\":\"\\u0041\\n<&>\" }",
		"null": "null", "1e400": "1e400", "[]": "[]", `""`: `""`,
	} {
		mustAppend(t, l, Record{Kind: Begin, Arguments: json.RawMessage(in)})
		b := read(t, path)
		if !bytes.Contains(b, []byte(`"arguments":`+want+"}")) {
			t.Errorf("%q is not in %s", want, b)
		}
	}
	head, _ := l.Close(Record{})
	if rep := verify(t, read(t, path), head); rep.Problem != "" {
		t.Error(rep.Problem)
	}
}

var benchRecord = Record{
	Kind: Begin, Tool: "memory_search", Effects: "read", Origin: "endpoint", Decision: "allow", Layer: "agent",
	Arguments: json.RawMessage(`{"query":"Q4 budget review","limit":5}`), ArgumentsSize: 38,
	ArgumentsDigest: "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8",
}

func BenchmarkAppend(b *testing.B) {
	l, _, path := newLog(b, Options{})
	b.ReportAllocs()
	for b.Loop() {
		mustAppend(b, l, benchRecord)
	}
	b.StopTimer()
	if info, err := os.Stat(path); err == nil {
		b.ReportMetric(float64(info.Size())/float64(b.N+1), "B/line")
	}
}

func BenchmarkBareWrite(b *testing.B) {
	f, err := os.OpenFile(filepath.Join(b.TempDir(), "f"), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	r := benchRecord
	r.Prev = zeroHash
	line := append(appendLine(nil, &r), '\n')
	for b.Loop() {
		if _, err := f.Write(line); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendDurable(b *testing.B) {
	l, _, _ := newLog(b, Options{})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := l.Append(benchRecord, true); err != nil {
				b.Fatal(err)
			}
		}
	})
}
