package proc

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// split is what Lines must do, said without bounds on memory.
func split(in string, max int) []string {
	out := []string{}
	for len(in) > 0 {
		line, rest, _ := strings.Cut(in, "\n")
		in = rest
		line = strings.TrimSuffix(line, "\r")
		if len(line) > max {
			out = append(out, line[:max]+" CUT")
		} else {
			out = append(out, line)
		}
	}
	return out
}

// collect is what Lines makes of the chunks.
func collect(max int, chunks ...string) []string {
	got := []string{}
	l := NewLines(max, func(b []byte, cut bool) {
		s := string(b)
		if cut {
			s += " CUT"
		}
		got = append(got, s)
	})
	for _, c := range chunks {
		if n, err := io.WriteString(l, c); n != len(c) || err != nil {
			panic(fmt.Sprint(n, err))
		}
	}
	l.Close()
	l.Close()
	return got
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		name   string
		chunks []string
		want   []string
	}{
		{"nothing", nil, nil},
		{"one", []string{"abc\n"}, []string{"abc"}},
		{"no last newline", []string{"abc\nde"}, []string{"abc", "de"}},
		{"empty lines", []string{"\n\r\n\n"}, []string{"", "", ""}},
		{"in pieces", []string{"a", "b", "\r", "\nc\r\n"}, []string{"ab", "c"}},
		{"full", []string{"12345678\n"}, []string{"12345678"}},
		{"full with return", []string{"12345678\r\n", "x\n"}, []string{"12345678", "x"}},
		{"full with return, in pieces", []string{"12345678", "\r", "\n", "x\n"}, []string{"12345678", "x"}},
		{"return inside", []string{"12345678\r", "9\nx\n"}, []string{"12345678 CUT", "x"}},
		{"too long", []string{"123456789\nx\n"}, []string{"12345678 CUT", "x"}},
		{"too long in pieces", []string{"1234567", "89", "abc", "def\nx"}, []string{"12345678 CUT", "x"}},
		{"too long at the end", []string{"1234567", "89", "abc"}, []string{"12345678 CUT"}},
		{"full with return at the end", []string{"12345678\r"}, []string{"12345678"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := collect(8, c.chunks...)
			if strings.Join(got, "|") != strings.Join(c.want, "|") || len(got) != len(c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestLinesWriteAfterClose(t *testing.T) {
	l := NewLines(0, func([]byte, bool) { t.Error("called") })
	l.Close()
	if _, err := l.Write([]byte("x\n")); err != io.ErrClosedPipe {
		t.Error(err)
	}
}

func TestLinesAnyCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		max := rapid.IntRange(1, 20).Draw(t, "max")
		chunks := rapid.SliceOf(rapid.StringOf(rapid.SampledFrom([]rune("ab\r\n")))).Draw(t, "chunks")
		got, want := collect(max, chunks...), split(strings.Join(chunks, ""), max)
		if strings.Join(got, "|") != strings.Join(want, "|") || len(got) != len(want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\r\nb\n\nlong line here\nend"), 5, 3)
	f.Add([]byte("12345\r\n12345\r\r\n"), 5, 1)
	f.Add([]byte("\r"), 1, 1)
	f.Fuzz(func(t *testing.T, in []byte, max, step int) {
		if max < 1 || max > 1000 || step < 1 {
			t.Skip("not a limit")
		}
		var chunks []string
		for b := in; len(b) > 0; {
			n := min(step, len(b))
			chunks, b = append(chunks, string(b[:n])), b[n:]
		}
		got, want := collect(max, chunks...), split(string(in), max)
		if strings.Join(got, "|") != strings.Join(want, "|") || len(got) != len(want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

// A line far over every limit neither stops the reading nor fills the memory.
func TestField57_LongLinesBoundedMemory(t *testing.T) {
	const max = 1 << 20
	for _, size := range []int{70 << 10, 1 << 20, 20 << 20, 100 << 20, 300 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			var got []string
			held := 0
			l := NewLines(max, func(b []byte, cut bool) {
				got = append(got, fmt.Sprint(len(b), cut))
				held = len(b)
			})
			chunk := bytes.Repeat([]byte("x"), 32<<10)
			for n := 0; n < size; n += len(chunk) {
				l.Write(chunk[:min(len(chunk), size-n)])
				if cap(l.buf) > max+1 {
					t.Fatalf("holds %d bytes", cap(l.buf))
				}
			}
			io.WriteString(l, "\n{\"type\":\"result\"}\n")
			l.Close()
			if len(got) != 2 || got[0] != fmt.Sprint(min(size, max), size > max) || got[1] != "17 false" || held != 17 {
				t.Errorf("got %v", got)
			}
		})
	}
}
