package call

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// Text is drawn from runes of every length and bytes that are none.
func bytesOfAnyKind() *rapid.Generator[[]byte] {
	return rapid.Custom(func(t *rapid.T) []byte {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "é", "漢", "🦆", "\n", "\xff", "\xe2", "\x80", "\xf0\x9f"}), 0, 60).Draw(t, "parts")
		return []byte(strings.Join(parts, ""))
	})
}

func TestHeadTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := bytesOfAnyKind().Draw(t, "in")
		h := HeadTail{Max: rapid.IntRange(1, 80).Draw(t, "max")}
		for rest := in; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			if w, err := h.Write(rest[:n]); w != n || err != nil {
				t.Fatalf("Write: %d %v", w, err)
			}
			rest = rest[n:]
		}
		valid := utf8.Valid(in)
		text, cut, repaired := h.Text()
		if !utf8.ValidString(text) {
			t.Fatalf("not UTF-8: %q", text)
		}
		if len(in) <= h.Max {
			if cut != 0 || repaired == valid || text != strings.ToValidUTF8(string(in), "\uFFFD") {
				t.Fatalf("it fits, and got %q cut %d repaired %v", text, cut, repaired)
			}
			return
		}
		head, tail, ok := strings.Cut(text, CutMarker(cut))
		if !ok {
			t.Fatalf("no marker for %d bytes in %q", cut, text)
		}
		if !valid {
			return
		}
		if repaired || !strings.HasPrefix(string(in), head) || !strings.HasSuffix(string(in), tail) {
			t.Fatalf("%q became %q", in, text)
		}
		if int64(len(head)+len(tail))+cut != int64(len(in)) {
			t.Fatalf("%d + %d kept and %d cut of %d", len(head), len(tail), cut, len(in))
		}
		if kept := len(head) + len(tail); kept > h.Max || kept < h.Max-6 {
			t.Fatalf("kept %d of %d", kept, h.Max)
		}
	})
}

func TestHeadTailMemoryIsBounded(t *testing.T) {
	h := HeadTail{Max: 1000}
	chunk := []byte(strings.Repeat("0123456789", 1000))
	for range 1000 {
		_, _ = h.Write(chunk)
	}
	if cap(h.head)+cap(h.tail) > 4*h.Max {
		t.Errorf("%d bytes held", cap(h.head)+cap(h.tail))
	}
	text, cut, _ := h.Text()
	want := strings.Repeat("0123456789", 75) + CutMarker(cut) + strings.Repeat("0123456789", 25)
	if cut != 10_000_000-1000 || text != want {
		t.Errorf("cut %d, text %q", cut, text)
	}
}

func TestHeadTailCutsNoRune(t *testing.T) {
	h := HeadTail{Max: 8} // 6 and 2
	_, _ = h.Write([]byte("aaaa漢漢漢b"))
	text, cut, repaired := h.Text()
	if want := "aaaa" + CutMarker(9) + "b"; text != want || cut != 9 || repaired {
		t.Errorf("got %q %d %v, want %q", text, cut, repaired, want)
	}
}

func TestHeadTailZeroValue(t *testing.T) {
	var h HeadTail
	if s, cut, repaired := h.Text(); s != "" || cut != 0 || repaired {
		t.Errorf("%q %d %v", s, cut, repaired)
	}
	_, _ = h.Write(make([]byte, DefaultOutput))
	if _, cut, _ := h.Text(); cut != 0 {
		t.Errorf("cut %d of exactly the default", cut)
	}
	_, _ = h.Write([]byte{'x'})
	if _, cut, _ := h.Text(); cut != 1 {
		t.Errorf("cut %d of one byte more", cut)
	}
}

func TestInvisible(t *testing.T) {
	for _, r := range []rune{
		0x00AD, 0x034F, 0x061C, 0x115F, 0x180E, 0x200B, 0x200D, 0x200E, 0x202A, 0x202E, 0x2060, 0x2064, 0x2066, 0x2069, 0x206A,
		0x3164, 0xFEFF, 0xFFA0, 0xFFF9, 0x1D173, 0xE0001, 0xE0041, 0xE007F, 0xE0100, 0xE01EF,
	} {
		if !Invisible("a" + string(r) + "b") {
			t.Errorf("%U is invisible", r)
		}
	}
	for _, s := range []string{"", "plain\ttext\r\n", "é ß İ", "漢字かな한글", "العربية", "a\u2028b", "🦆 ❤️", "\uFFFD", "\xff", "– — …", "\u00a0"} {
		if Invisible(s) {
			t.Errorf("%q has nothing invisible", s)
		}
	}
}
