package call

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestClip(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     int
	}{
		{"short", "abc", 3},
		{"exactly the limit", strings.Repeat("a", MaxEcho), MaxEcho},
		{"one over", strings.Repeat("a", MaxEcho+1), MaxEcho},
		{"a rune across the limit", strings.Repeat("a", MaxEcho-1) + "é", MaxEcho - 1},
		{"four bytes across the limit", strings.Repeat("a", MaxEcho-3) + "🦆", MaxEcho - 3},
		{"a rune that ends at the limit", strings.Repeat("a", MaxEcho-2) + "é" + "b", MaxEcho},
		{"no UTF-8 at all is not lost whole", strings.Repeat("\x80", 2*MaxEcho), MaxEcho - 3},
	} {
		if got := Clip(c.in); len(got) != c.want || !strings.HasPrefix(c.in, got) {
			t.Errorf("%s: kept %d bytes, want the first %d", c.name, len(got), c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := strings.Repeat(rapid.StringN(1, 8, -1).Draw(t, "s"), 200)
		got := Clip(s)
		if !strings.HasPrefix(s, got) || len(got) > MaxEcho || !utf8.ValidString(got) || len(s) > MaxEcho && len(got) < MaxEcho-3 {
			t.Fatalf("Clip kept %d of %d bytes", len(got), len(s))
		}
	})
}

func TestNotAvailableEchoesAtMostMaxEcho(t *testing.T) {
	if got := (&NotAvailable{"x"}).Error(); got != "tool 'x' is not available to this agent" {
		t.Errorf("got %q", got)
	}
	long := (&NotAvailable{strings.Repeat("x", 1<<20)}).Error()
	if len(long) != len("tool '' is not available to this agent")+MaxEcho {
		t.Errorf("%d bytes", len(long))
	}
}
