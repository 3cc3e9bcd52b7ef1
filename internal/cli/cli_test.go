package cli

import (
	"strings"
	"testing"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":          "plain\ttext\n",
		"\x1b[2Jdrawbridge: ask": `\u{1b}[2Jdrawbridge: ask`,
		"a\rb\bc\x7f":            `a\u{d}b\u{8}c\u{7f}`,
		"\u202egnp.exe":          `\u{202e}gnp.exe`,
		"a\u200bb\ufeffc":        `a\u{200b}b\u{feff}c`,
		"\U000e0041":             `\u{e0041}`,
		"größe 部署":               "größe 部署",
		"\u009b31m":              `\u{9b}31m`,
	} {
		if got := visible(in); got != want {
			t.Errorf("visible(%q) = %q, want %q", in, got, want)
		}
	}
	if got := line("one\ntwo\r\nthree", 100); strings.ContainsAny(got, "\n\r") {
		t.Errorf("line kept a line end: %q", got)
	}
	if got := line(strings.Repeat("ä", 100), 11); got != "äääää..." {
		t.Errorf("line cut to %q", got)
	}
}

func TestParseAge(t *testing.T) {
	for in, ok := range map[string]bool{"30d": true, "12h": true, "0s": true, "-1d": false, "soon": false, "": false, "d": false, "99999999d": false} {
		if _, err := parseAge(in); (err == nil) != ok {
			t.Errorf("parseAge(%q) = %v", in, err)
		}
	}
}
