package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const runToken = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"

func TestField67_TokenInEveryEncoding(t *testing.T) {
	for _, v := range []string{runToken, `p"ä\ss<&>/ö w+?=x`, "zwölf€\U0001F512key", "line1secret\nline2secret"} {
		s := New(v)
		once, _ := json.Marshal(v)
		twice, _ := json.Marshal(string(once))
		ascii := escapeJSON(v, true, false)
		for name, text := range map[string]string{
			"raw": v, "twice": v + v, "in words": "x" + v + "y",
			"hex": hex.EncodeToString([]byte(v)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(v))),
			"query": url.QueryEscape(v), "path": url.PathEscape(v), "lower": lowerEscapes(url.QueryEscape(v)),
			"JSON": string(once), "JSON in JSON": string(twice), "ASCII JSON": ascii,
			"std": base64.StdEncoding.EncodeToString([]byte(v)), "url": base64.URLEncoding.EncodeToString([]byte(v)),
			"raw std": base64.RawStdEncoding.EncodeToString([]byte(v)), "raw url": base64.RawURLEncoding.EncodeToString([]byte(v)),
		} {
			out, n := s.String("before " + text + " after")
			if n == 0 || !strings.HasPrefix(out, "before ") || !strings.HasSuffix(out, " after") || strings.Contains(out, text) {
				t.Errorf("%s of %q: %d in %q", name, v, n, out)
			}
		}
		for lead := range 7 {
			text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("u", lead) + ":" + v + ":tail"))
			out, n := s.String(text)
			if n == 0 {
				t.Errorf("base64 after %d bytes: %q", lead, out)
			}
			// What is left must not tell more than the shared characters at
			// the edges do.
			if len(out)-len(Mask) > (lead+1)*8/6+14 {
				t.Errorf("base64 after %d bytes leaves %q", lead, out)
			}
		}
	}
}

func TestSecretsLeavesAlone(t *testing.T) {
	var none *Secrets
	for _, s := range []*Secrets{none, {}, New(), New("short", "", "       x      ", "redacted", "[redacted]"), New(runToken)} {
		for _, text := range []string{"", "x", "short", "a redacted text", runToken[:63], strings.Repeat("5e", 100)} {
			if out, n := s.String(text); n != 0 || out != text {
				t.Errorf("%q became %q", text, out)
			}
			in := []byte(text)
			if out, n := s.Bytes(in); n != 0 || len(in) > 0 && &out[0] != &in[0] {
				t.Errorf("%q became %q", text, out)
			}
		}
	}
}

func TestSecretsOverlap(t *testing.T) {
	s := New("abcdefgh12", "h12345678", "abcdefgh12XYZ")
	for in, want := range map[string]string{
		"<abcdefgh12345678>":            "<[redacted]>",
		"<abcdefgh12XYZ>":               "<[redacted]>",
		"<abcdefgh12XY>":                "<[redacted]XY>",
		"abcdefgh12abcdefgh12h12345678": "[redacted][redacted][redacted]",
		"aabcdefgh12h1234567":           "a[redacted]h1234567",
	} {
		if out, _ := s.String(in); out != want {
			t.Errorf("%q: %q, want %q", in, out, want)
		}
		if out := stream(t, s, []byte(in), 1); out != want {
			t.Errorf("%q in single bytes: %q, want %q", in, out, want)
		}
	}
}

func stream(t interface{ Fatal(...any) }, s *Secrets, in []byte, sizes ...int) string {
	var out bytes.Buffer
	w := s.Writer(&out)
	for i := 0; len(in) > 0; i++ {
		n := min(max(sizes[i%len(sizes)], 1), len(in))
		if m, err := w.Write(in[:n]); m != n || err != nil {
			t.Fatal(m, err)
		}
		in = in[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// naive is what find is measured against: every place of every pattern.
func naive(s *Secrets, b []byte) string {
	covered := make([]bool, len(b)+1)
	starts := make([]bool, len(b)+1) // a Mask begins here
	end := 0
	for i := range b {
		longest := 0
		for _, p := range s.patterns {
			if bytes.HasPrefix(b[i:], p) {
				longest = max(longest, len(p))
			}
		}
		if longest == 0 {
			continue
		}
		if i >= end {
			starts[i] = true
		}
		for j := i; j < i+longest; j++ {
			covered[j] = true
		}
		end = max(end, i+longest)
	}
	var out strings.Builder
	for i, c := range b {
		if starts[i] {
			out.WriteString(Mask)
		}
		if !covered[i] {
			out.WriteByte(c)
		}
	}
	return out.String()
}

// However a text is cut into writes, the same comes out as in one piece, and
// that is what the slow and obvious search finds.
func TestStreamEqualsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alphabet := rapid.SampledFrom([]string{"a", "b", "ab", "\"", "\\", "ä"})
		value := rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(alphabet, 8, 14).Draw(t, "parts"), "")
		})
		values := rapid.SliceOfN(value, 1, 4).Draw(t, "values")
		s := New(values...)
		parts := rapid.SliceOfN(rapid.OneOf(alphabet, rapid.SampledFrom(values)), 0, 30).Draw(t, "text")
		in := []byte(strings.Join(parts, ""))
		whole, _ := s.Bytes(in)
		if want := naive(s, in); string(whole) != want {
			t.Fatalf("%q: %q, want %q", in, whole, want)
		}
		sizes := rapid.SliceOfN(rapid.IntRange(1, 20), 1, 5).Draw(t, "sizes")
		if out := stream(t, s, in, sizes...); out != string(whole) {
			t.Fatalf("%q in pieces of %v: %q, want %q", in, sizes, out, whole)
		}
	})
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestWriter(t *testing.T) {
	s := New(runToken)
	var out bytes.Buffer
	w := s.Writer(&out)
	io.WriteString(w, "a line\n> ")
	if out.String() != "a line\n> " {
		t.Errorf("held back what is no secret: %q", out.String())
	}
	io.WriteString(w, runToken[:40])
	if out.String() != "a line\n> " {
		t.Errorf("let a part of a secret out: %q", out.String())
	}
	if err := w.Close(); err != nil || out.String() != "a line\n> "+runToken[:40] {
		t.Errorf("%v, %q", err, out.String())
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if _, err := w.Write([]byte("x")); err == nil {
		t.Error("Write after Close")
	}

	boom := errors.New("boom")
	for _, s := range []*Secrets{nil, s} {
		w := s.Writer(failing{boom})
		if _, err := w.Write([]byte("text")); err != boom {
			t.Error(err)
		}
		if err := w.Close(); err != boom {
			t.Error(err)
		}
	}

	big := strings.Repeat("x", chunk-30) + runToken + strings.Repeat("y", 3*chunk)
	want := strings.ReplaceAll(big, runToken, Mask)
	bw := s.Writer(&out).(*writer)
	out.Reset()
	for range 20 {
		io.WriteString(bw, big)
	}
	bw.Close()
	if out.String() != strings.Repeat(want, 20) {
		t.Error("a long stream came out changed")
	}
	if cap(bw.pending) > 4*chunk {
		t.Errorf("%d bytes kept", cap(bw.pending))
	}
}

func FuzzSecrets(f *testing.F) {
	f.Add("hunter2hunter2", "say hunter2hunter2", 3)
	f.Add("äöü\"\\\n\x00<>&/", "\xff", 1)
	f.Add("aaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaa", 7)
	f.Add("\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8", "\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8", 2)
	f.Fuzz(func(t *testing.T, value, text string, size int) {
		if len(value) > 200 {
			return
		}
		s := New(value)
		in := []byte(text + value + text)
		out, _ := s.Bytes(in)
		if want := naive(s, in); string(out) != want {
			t.Fatalf("%q, want %q", out, want)
		}
		if got := stream(t, s, in, min(max(size, 1), 1000)); got != string(out) {
			t.Fatalf("stream %q, whole %q", got, out)
		}
	})
}

func BenchmarkBytes32K(b *testing.B) {
	s := New(runToken, "sk-0123456789abcdefghijkl", "hunter2hunter2")
	text := prose(32 << 10)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s.Bytes(text)
	}
}

func BenchmarkWriterLines(b *testing.B) {
	s := New(runToken, "sk-0123456789abcdefghijkl", "hunter2hunter2")
	w := s.Writer(io.Discard)
	line := prose(200)
	b.SetBytes(200)
	for b.Loop() {
		w.Write(line)
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		New(runToken)
	}
}

func prose(n int) []byte {
	const text = "The token budget of a run is set by the operator: see https://example.com/docs?page=2 for more. " +
		"func main() { x := a[i] - b_c; if x == 3 { return } } // Über 日本語\n"
	return []byte(strings.ToValidUTF8(strings.Repeat(text, n/len(text)+1)[:n], ""))
}
