package memory

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSegment(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"", ""},
		{" \t\n!?*\"", ""},
		{"Q4 budget review: Thu 14:00.", "q4 budget review thu 14 00"},
		{"POL-358", "pol 358 pol358"},
		{"don't don’t", "don t don t dont"},
		{"38.101 (C++)", "38 101 c 38101"},
		{"-a- b_ _c a--b", "a b c a b"},
		{"getUserName", "get user name getusername"},
		{"HTTPServer SHA256Sum 4GB iPhone", "http server sha256 sum 4gb i phone httpserver sha256sum iphone"},
		{"pkg/http_client.getUser", "pkg http client get user pkghttpclientgetuser httpclient getuser"},
		{"kim@example.org", "kim example org kimexampleorg"},
		{"Straße STRASSE ẞ", "strasse strasse ss"},
		{"İstanbul ISPARTA ısparta", "istanbul isparta isparta"},
		{"Köln Ko\u0308ln Łódź Ærø", "koln koln lodz aero"},
		{"ＦＵＬＬ１２", "full12"},
		{"部署方案", "部署 署方 方案 部 署 方 案"},
		{"部", "部"},
		{"部署 部署", "部署 部署 部 署"},
		{"重跑gen-itgc后50条", "重跑 gen itgc 后 50 条 重 跑 genitgc"},
		{"ｶﾞｰ", "ガー ガ ー"},
		{"한국어", "한국 국어 한 국 어"},
		{"हिन्दी", "हिन्दी"},
		{"con\u200Btract\u00AD \uFEFFx", "contract x"},
		{"a\u202Eb \U000E0041\U000E0042c", "ab c"},
		{"\xff\xfe a\xffb", "a b"},
	} {
		if d := cmp.Diff(c.out, Segment(c.in)); d != "" {
			t.Errorf("Segment(%q) (-want +got):\n%s", c.in, d)
		}
	}
}

func TestSegmentCutsLongTokens(t *testing.T) {
	if got := Segment(strings.Repeat("é", 5000)); got != strings.Repeat("e", maxToken) {
		t.Errorf("%d bytes", len(got))
	}
}

func TestParseQuery(t *testing.T) {
	term := func(words string, whole string) Term { return Term{Words: strings.Fields(words), Whole: whole} }
	prefix := func(t Term) Term { t.Prefix = true; return t }
	pairsOf := func(words string) Term { return Term{Words: strings.Fields(words), paired: true} }
	for _, c := range []struct {
		in    string
		terms []Term
	}{
		{"", nil},
		{`" ( * ^ - : {} '`, nil},
		{"budget Budget BUDGET", []Term{term("budget", "")}},
		{"NEAR(a b) OR NOT c", []Term{term("near", ""), term("a", ""), term("b", ""), term("or", ""), term("not", ""), term("c", "")}},
		{"POL-358", []Term{term("pol 358", "pol358")}},
		{"x.getUser", []Term{term("x get user", "xgetuser")}},
		{"fix*", []Term{prefix(term("fix", ""))}},
		{"fix＊", []Term{prefix(term("fix", ""))}},
		{"fi* fix * *fix", []Term{term("fi", ""), term("fix", "")}},
		{"http_cli*", []Term{prefix(term("http cli", "httpcli"))}},
		{"部署方案*", []Term{pairsOf("部署 署方 方案")}},
		{"部", []Term{pairsOf("部")}},
	} {
		if d := cmp.Diff(c.terms, ParseQuery(c.in).Terms, cmp.AllowUnexported(Term{})); d != "" {
			t.Errorf("ParseQuery(%q) (-want +got):\n%s", c.in, d)
		}
	}
}

func TestLoose(t *testing.T) {
	got := ParseQuery("POL-358 部署方案 署方").Loose().Terms
	want := []Term{{Words: []string{"pol", "358"}, Whole: "pol358"}}
	for _, p := range []string{"部署", "署方", "方案"} {
		want = append(want, Term{Words: []string{p}, paired: true})
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(Term{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestQueryIsBounded(t *testing.T) {
	for _, in := range []string{
		strings.Repeat("部署方案今天讨论了", 2000), strings.Repeat("a/b_", 5000), strings.Repeat("x1 y2 z3 ", 5000), strings.Repeat("z", 1<<20),
	} {
		checkQuery(t, ParseQuery(in))
		checkQuery(t, ParseQuery(in).Loose())
	}
	var many strings.Builder
	for i := range 1000 {
		many.WriteString("w" + strings.Repeat("x", i%40) + " ")
	}
	checkQuery(t, ParseQuery(many.String()))
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func checkQuery(t fataler, q Query) {
	t.Helper()
	if len(q.Terms) > maxTerms {
		t.Fatalf("%d terms", len(q.Terms))
	}
	for _, term := range q.Terms {
		if len(term.Words) == 0 || len(term.Words) > maxTerms {
			t.Fatalf("%d words in a term", len(term.Words))
		}
		for _, w := range term.Words {
			checkToken(t, w)
		}
		if term.Whole != "" {
			checkToken(t, term.Whole)
		}
	}
}

// checkToken holds what a Store relies on.
func checkToken(t fataler, s string) {
	t.Helper()
	if s == "" || !utf8.ValidString(s) || len(s) > maxToken*utf8.UTFMax {
		t.Fatalf("token %q", s)
	}
	for _, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsNumber(r) && !unicode.IsMark(r) || 'A' <= r && r <= 'Z' {
			t.Fatalf("token %q has %U", s, r)
		}
	}
}

func checkText(t fataler, text string) {
	t.Helper()
	segments := Segment(text)
	tokens := map[string]bool{}
	if segments != "" {
		for s := range strings.SplitSeq(segments, " ") {
			checkToken(t, s)
			tokens[s] = true
		}
	}
	for _, field := range append(strings.Fields(text), text) {
		q := ParseQuery(field)
		checkQuery(t, q)
		checkQuery(t, q.Loose())
		for _, term := range q.Terms {
			for _, w := range term.Words {
				if !tokens[w] {
					t.Fatalf("word %q of %q is not in the segments %q", w, field, segments)
				}
			}
			if term.Whole != "" && !tokens[term.Whole] {
				t.Fatalf("whole %q of %q is not in the segments %q", term.Whole, field, segments)
			}
		}
	}
}

func TestPropertyTokensOfAWordAreInItsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkText(t, rapid.String().Draw(t, "text")) })
}

func FuzzSegmentAndQuery(f *testing.F) {
	for _, s := range []string{
		"", "Q4 budget review: Thu 14:00.", "POL-358 fixed on 2026-05-08: don't use 38.101 (C++) state-of-the-art",
		"今天讨论了部署方案", "重跑gen-itgc后50条清零", "サンドボックス修正テスト", "Straße İıI ﬁ ＡＢ", "\xff\xfe\x00", "e\u0301\u0301 \u0301", "คำไทย हिन्दी 한국어",
		"getUserName http_client.HTTPServer", "*fix* \"a\" NEAR(b)", "\u200B\u202E\U000E0041", "ﷺ ½ ㎏",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > MaxText {
			t.Skip("longer than a note")
		}
		checkText(t, text)
	})
}

func BenchmarkSegment(b *testing.B) {
	for name, text := range map[string]string{
		"ascii": "Q4 budget review: Thu 14:00. Kim takes the notes, getUserName stays.",
		"mixed": "今天讨论了部署方案，Straße und Köln, getUserName stays.",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Segment(text)
			}
		})
	}
}
