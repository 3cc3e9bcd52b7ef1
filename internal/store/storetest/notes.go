// Package storetest is what every store has to do, as tests. A store's own
// package runs the suite unchanged against an empty store of its kind.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/memory"
)

// Notes runs the contract of memory.Store. open returns an empty store and
// leaves closing it to t.Cleanup.
func Notes(t *testing.T, open func(t *testing.T) memory.Store) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s memory.Store)
	}{
		{"RoundTrip", roundTrip},
		{"OddTexts", oddTexts},
		{"SkipsKnownIDs", skipsKnownIDs},
		{"EmptyIsNoError", emptyIsNoError},
		{"ListOrderAndPages", listOrderAndPages},
		{"Delete", deletes},
		{"DeleteRun", deletesRun},
		{"Field48_WorkspacesApart", workspacesApart},
		{"Field107_TextIsNotSyntax", textIsNotSyntax},
		{"Field108_CJK", cjk},
		{"FoldedScripts", foldedScripts},
		{"Identifiers", identifiers},
		{"Ranking", ranking},
		{"RankingWithCommonWords", rankingWithCommonWords},
		{"ContextEnds", contextEnds},
		{"Concurrent", concurrent},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
	t.Run("PropertyWordFindsItsNote", func(t *testing.T) { wordFindsItsNote(t, open(t)) })
	t.Run("PropertyNoLeakBetweenWorkspaces", func(t *testing.T) { noLeak(t, open(t)) })
	t.Run("PropertyModel", func(t *testing.T) { behavesAsModel(t, open(t)) })
}

var day = time.Date(2026, 12, 1, 14, 0, 0, 123456789, time.UTC)

func note(ws, id, text string) memory.Note {
	return memory.Note{Workspace: ws, ID: id, Text: text, Time: day}
}

func add(t testing.TB, s memory.Store, notes ...memory.Note) {
	t.Helper()
	if n, err := s.Add(t.Context(), notes); err != nil || n != len(notes) {
		t.Fatalf("Add = %d, %v; want %d", n, err, len(notes))
	}
}

// search is the ids of what text finds.
func search(t testing.TB, s memory.Store, ws, text string) []string {
	t.Helper()
	notes, err := s.Search(t.Context(), ws, memory.ParseQuery(text), 10)
	if err != nil {
		t.Fatalf("Search(%.100q): %v", text, err)
	}
	if notes == nil {
		t.Fatalf("Search(%.100q) = nil, want an empty slice", text)
	}
	return ids(notes)
}

func ids(notes []memory.Note) []string {
	out := []string{}
	for _, n := range notes {
		out = append(out, n.ID)
	}
	return out
}

type tb interface {
	Helper()
	Fatal(...any)
}

func list(t tb, s memory.Store, ws string, f memory.Filter) []memory.Note {
	t.Helper()
	var out []memory.Note
	for n, err := range s.List(context.Background(), ws, f) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func want(t testing.TB, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func roundTrip(t *testing.T, s memory.Store) {
	full := memory.Note{ID: "a1", Workspace: "w", Text: "Q4 budget review: Thu 14:00.", Run: "r", Agent: "claude", Channel: "ch-ops", User: "kim", Time: day}
	add(t, s, full)
	want(t, "List", list(t, s, "w", memory.Filter{}), []memory.Note{full})
	got, err := s.Search(t.Context(), "w", memory.ParseQuery("budget"), 10)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "Search", got, []memory.Note{full})
}

func oddTexts(t *testing.T, s memory.Store) {
	texts := []string{"", "a\x00b", "line\r\nline\n", " padded ", "\u202Eevil", "'; DROP TABLE notes; --", "😀", strings.Repeat("x", memory.MaxText), strings.Repeat("部", memory.MaxText/3)}
	for i, text := range texts {
		add(t, s, note("w", fmt.Sprint(i), text))
	}
	for i, n := range list(t, s, "w", memory.Filter{}) {
		if n.Text != texts[i] {
			t.Errorf("text %.40q came back as %.40q", texts[i], n.Text)
		}
	}
}

func skipsKnownIDs(t *testing.T, s memory.Store) {
	add(t, s, note("w", "a", "first"))
	n, err := s.Add(t.Context(), []memory.Note{note("w", "a", "second"), note("w", "b", "third"), note("w", "b", "fourth"), note("v", "a", "fifth")})
	if err != nil || n != 2 {
		t.Fatalf("Add = %d, %v; want 2", n, err)
	}
	want(t, "w", list(t, s, "w", memory.Filter{}), []memory.Note{note("w", "a", "first"), note("w", "b", "third")})
	want(t, "v", list(t, s, "v", memory.Filter{}), []memory.Note{note("v", "a", "fifth")})
	want(t, "skipped text", search(t, s, "w", "second fourth"), []string{})
}

func emptyIsNoError(t *testing.T, s memory.Store) {
	want(t, "search", search(t, s, "nobody", "word"), []string{})
	want(t, "list", len(list(t, s, "nobody", memory.Filter{})), 0)
	if n, err := s.Delete(t.Context(), "nobody", []string{"a"}); n != 0 || err != nil {
		t.Errorf("Delete = %d, %v", n, err)
	}
	if n, err := s.DeleteRun(t.Context(), "nobody", "r"); n != 0 || err != nil {
		t.Errorf("DeleteRun = %d, %v", n, err)
	}
	if n, err := s.Add(t.Context(), nil); n != 0 || err != nil {
		t.Errorf("Add = %d, %v", n, err)
	}
	add(t, s, note("w", "a", "word"))
	for _, limit := range []int{0, -1} {
		if got, err := s.Search(t.Context(), "w", memory.ParseQuery("word"), limit); got == nil || len(got) != 0 || err != nil {
			t.Errorf("Search with limit %d = %v, %v", limit, got, err)
		}
	}
	if got, err := s.Search(t.Context(), "w", memory.Query{}, 10); got == nil || len(got) != 0 || err != nil {
		t.Errorf("Search of nothing = %v, %v", got, err)
	}
}

func listOrderAndPages(t *testing.T, s memory.Store) {
	const count = 150
	var notes []memory.Note
	var evens []string
	for i := range count {
		n := note("w", fmt.Sprint(i), "text")
		n.Time = day.Add(-time.Duration(i) * time.Hour) // the order is that of adding
		if i%2 == 0 {
			n.Run = "even"
			evens = append(evens, n.ID)
		}
		notes = append(notes, n)
	}
	add(t, s, notes...)
	got := list(t, s, "w", memory.Filter{})
	want(t, "oldest first", got, notes)
	got = list(t, s, "w", memory.Filter{Newest: true})
	slices.Reverse(got)
	want(t, "newest first", got, notes)
	want(t, "of a run", ids(list(t, s, "w", memory.Filter{Run: "even"})), evens)
	want(t, "of an unknown run", len(list(t, s, "w", memory.Filter{Run: "odd"})), 0)

	seen := 0
	for n, err := range s.List(t.Context(), "w", memory.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Delete(t.Context(), "w", []string{n.ID}); err != nil {
			t.Fatal(err)
		}
		if seen++; seen == 100 {
			break
		}
	}
	want(t, "left after deleting while listing", len(list(t, s, "w", memory.Filter{})), count-100)
}

func deletes(t *testing.T, s memory.Store) {
	add(t, s, note("w", "a", "alpha"), note("w", "b", "beta"), note("v", "a", "alpha"))
	n, err := s.Delete(t.Context(), "w", []string{"a", "a", "none"})
	if err != nil || n != 1 {
		t.Fatalf("Delete = %d, %v; want 1", n, err)
	}
	want(t, "w", search(t, s, "w", "alpha"), []string{})
	want(t, "v", search(t, s, "v", "alpha"), []string{"a"})
	add(t, s, note("w", "a", "again"))
	want(t, "the id can be used again", search(t, s, "w", "again"), []string{"a"})
	want(t, "what it was is gone", search(t, s, "w", "alpha"), []string{})
}

func deletesRun(t *testing.T, s memory.Store) {
	mk := func(ws, id, run string) memory.Note {
		n := note(ws, id, "word")
		n.Run = run
		return n
	}
	add(t, s, mk("w", "a", "r1"), mk("w", "b", "r2"), mk("w", "c", "r1"), mk("w", "d", ""), mk("v", "e", "r1"))
	n, err := s.DeleteRun(t.Context(), "w", "r1")
	if err != nil || n != 2 {
		t.Fatalf("DeleteRun = %d, %v; want 2", n, err)
	}
	want(t, "w", search(t, s, "w", "word"), []string{"d", "b"})
	want(t, "v", search(t, s, "v", "word"), []string{"e"})
}

func workspacesApart(t *testing.T, s memory.Store) {
	names := []string{"ws-personal", "ws-client", "ws-client2", "WS-CLIENT", "ws-client ", "ws%", "*", "", "w\x00s"}
	for i, ws := range names {
		add(t, s, note(ws, fmt.Sprint("n", i), "Client X contract renews 2027-01-31"))
	}
	for i, ws := range names {
		id := fmt.Sprint("n", i)
		for _, q := range []string{"contract", "contr*", "client x contract", "ws-client contract", "2027"} {
			want(t, fmt.Sprintf("%q in %q", q, ws), search(t, s, ws, q), []string{id})
		}
		want(t, "list", ids(list(t, s, ws, memory.Filter{})), []string{id})
		for j := range names {
			if i == j {
				continue
			}
			if n, err := s.Delete(t.Context(), ws, []string{fmt.Sprint("n", j)}); n != 0 || err != nil {
				t.Errorf("deleted note %d of another workspace from %q: %v", j, ws, err)
			}
		}
	}
	for i, ws := range names {
		want(t, "still there", search(t, s, ws, "contract"), []string{fmt.Sprint("n", i)})
	}
}

func textIsNotSyntax(t *testing.T, s memory.Store) {
	add(t, s, note("w", "hit", "POL-358 fixed on 2026-05-08: don't use 38.101 (C++) state-of-the-art"), note("w", "miss", "nothing here"))
	for _, q := range []string{
		"POL-358", "pol358", "358", "2026-05-08", "2026", "fixed:", "don't", "don’t", "dont", "38.101", "C++", "state-of-the-art",
		`"fixed`, "^fixed", "fix*", "FIX*", "fixe*", "-fixed", "+fixed", "fixed)", "(fixed", "{fixed}", "fixed\x00", "segments:fixed",
		"art NEAR state", "NEAR(fixed art)", "fixed AND NOT use", "pol-358 OR nowhere",
	} {
		got := search(t, s, "w", q)
		want(t, q, got, []string{"hit"})
	}
	for _, q := range []string{
		`"`, `""`, `'`, "*", "**", "( ", ")", "{}", "^", "-", "+", ":", "", " ", "\n", "\x00", "😀", "'; --", "col:x", "{a b}", "AND", "OR", "NOT", "NEAR", "fi*", "f*",
	} {
		want(t, q, search(t, s, "w", q), []string{})
	}
	want(t, "sql", search(t, s, "w", "'; DROP TABLE notes--"), []string{})
	want(t, "long, without the word", search(t, s, "w", strings.Repeat("zebra ", 2000)), []string{})
	want(t, "long, with it", search(t, s, "w", "fixed "+strings.Repeat("a1b2 ", 2000)), []string{"hit"})
	want(t, "one long token", search(t, s, "w", strings.Repeat("z", 10000)), []string{})
	want(t, "not UTF-8", search(t, s, "w", "\xff\xfefixed\xff"), []string{"hit"})
}

func cjk(t *testing.T, s memory.Store) {
	add(t, s,
		note("w", "zh", "今天讨论了部署方案"), note("w", "mixed", "重跑gen-itgc后50条清零"),
		note("w", "ja", "サンドボックス修正テスト"), note("w", "ko", "회의에서 예산을 논의했다"), note("w", "th", "การประชุมวันพฤหัส"))
	for q, id := range map[string]string{
		"部署": "zh", "部署方案": "zh", "讨论": "zh", "案": "zh", "今": "zh", "方": "zh", "署": "zh",
		"itgc": "mixed", "gen": "mixed", "gen-itgc": "mixed", "后": "mixed", "50": "mixed", "清零": "mixed", "重跑": "mixed", "重": "mixed", "零": "mixed",
		"サンドボックス": "ja", "修正": "ja", "ｻﾝﾄﾞﾎﾞｯｸｽ": "ja", "回议 修正": "ja",
		"회의": "ko", "예산": "ko", "예산 논의": "ko", "ประชุม": "th",
		"明天的部署方案是什么": "zh", // a sentence: part of it is enough
	} {
		want(t, q, search(t, s, "w", q), []string{id})
	}
	for _, q := range []string{"悬", "署部", "회사"} {
		want(t, q, search(t, s, "w", q), []string{})
	}
}

func foldedScripts(t *testing.T, s memory.Store) {
	for i, c := range []struct{ text, queries string }{
		{"Die Straße nach Köln", "strasse|STRASSE|straße|Strasse|koln|KÖLN|Ko\u0308ln"},
		{"ISPARTA İstanbul ılık", "isparta|ısparta|ISPARTA|istanbul|İSTANBUL|ilik|ılık|ILIK"},
		{"ＦＵＬＬｗｉｄｔｈ １２３", "fullwidth|FULLWIDTH|123"},
		{"ΟΔΥΣΣΕΎΣ", "οδυσσευς|Οδυσσεύς"},
		{"Ёлка Юрий", "елка|ЁЛКА|юрии|юрий"},
		{"Łódź Søren œuvre", "lodz|soren|oeuvre|ŁÓDŹ"},
		{"שָׁלוֹם", "שלום"},
		{"مُحَمَّد", "محمد"},
		{"हिन्दी", "हिन्दी"},
		{"con\u200Btract re\u00ADview", "contract|review|con\u200Btract"},
		{"naïve café", "naive|cafe|cafe\u0301|NAÏVE"},
		{"ﬁrewall", "firewall|ﬁrewall"},
	} {
		id := fmt.Sprint(i)
		add(t, s, note("w", id, c.text))
		for q := range strings.SplitSeq(c.queries, "|") {
			want(t, fmt.Sprintf("%q in %q", q, c.text), search(t, s, "w", q), []string{id})
		}
	}
}

func identifiers(t *testing.T, s memory.Store) {
	add(t, s, note("w", "hit", "call getUserName in pkg/http_client.HTTPServer, mail kim@example.org, see SHA256Sum"))
	for _, q := range []string{
		"getUserName", "getusername", "GETUSERNAME", "username get", "user", "get user name", "get_user_name", "name",
		"http_client", "httpclient", "client.HTTPServer", "HTTPServer", "httpserver", "server", "http-server", "pkg/http_client.HTTPServer",
		"kim@example.org", "example.org", "kim", "sha256sum", "sha256", "getUser*", "http_cli*",
	} {
		want(t, q, search(t, s, "w", q), []string{"hit"})
	}
	want(t, "parts in another order are another name", search(t, s, "w", "name_user_get"), []string{})
}

func ranking(t *testing.T, s memory.Store) {
	add(t, s,
		note("w", "both-old", "budget review in March"),
		note("w", "long", "budget review "+strings.Repeat("and much else besides ", 1500)),
		note("w", "rare", "the review"),
		note("w", "common1", "budget a"), note("w", "common2", "budget b"), note("w", "common3", "budget c"),
		note("w", "both-new", "review of the budget in June"),
		note("w", "none", "lunch"))
	got := search(t, s, "w", "budget review")
	want(t, "all terms, then the rarer one, the newest first", got,
		[]string{"both-new", "both-old", "long", "rare", "common3", "common2", "common1"})
	notes, err := s.Search(t.Context(), "w", memory.ParseQuery("budget review"), 2)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "limit", ids(notes), []string{"both-new", "both-old"})
}

func rankingWithCommonWords(t *testing.T, s memory.Store) {
	notes := []memory.Note{note("w", "needle", "the needle")}
	for i := range 3 * memory.Candidates {
		notes = append(notes, note("w", fmt.Sprint(i), "the hay"))
	}
	add(t, s, notes...)
	got := search(t, s, "w", "the sharp needle")
	if len(got) != 10 || got[0] != "needle" {
		t.Errorf("got %v, want needle first of 10", got)
	}
	want(t, "both words", search(t, s, "w", "needle the")[0], "needle")
}

func contextEnds(t *testing.T, s memory.Store) {
	add(t, s, note("w", "a", "word"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check := func(what string, err error) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", what, err)
		}
	}
	_, err := s.Add(ctx, []memory.Note{note("w", "b", "word")})
	check("Add", err)
	_, err = s.Search(ctx, "w", memory.ParseQuery("word"), 10)
	check("Search", err)
	_, err = s.Delete(ctx, "w", []string{"a"})
	check("Delete", err)
	_, err = s.DeleteRun(ctx, "w", "")
	check("DeleteRun", err)
	for _, err = range s.List(ctx, "w", memory.Filter{}) {
	}
	check("List", err)
	want(t, "nothing changed", search(t, s, "w", "word"), []string{"a"})
}

func concurrent(t *testing.T, s memory.Store) {
	const workers, each = 8, 25
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			ws := fmt.Sprint("ws", w%2)
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				if n, err := s.Add(t.Context(), []memory.Note{note(ws, id, "worker "+id)}); n != 1 || err != nil {
					t.Errorf("Add = %d, %v", n, err)
				}
				if got, err := s.Search(t.Context(), ws, memory.ParseQuery(id), 100); err != nil || !slices.Contains(ids(got), id) {
					t.Errorf("note %s not found: %v", id, err)
				}
			}
		})
	}
	wg.Wait()
	want(t, "notes", len(list(t, s, "ws0", memory.Filter{}))+len(list(t, s, "ws1", memory.Filter{})), workers*each)
}

// text draws strings of words in many scripts, with separators between.
func text() *rapid.Generator[string] {
	piece := rapid.OneOf(
		rapid.StringMatching(`[a-zA-Z0-9]{1,8}`),
		rapid.StringMatching(`[ßİıäöéøŁß]{1,4}`),
		rapid.StringMatching(`\p{Han}{1,4}`),
		rapid.StringMatching(`[\p{Hangul}\p{Katakana}\p{Thai}\p{Devanagari}\p{Arabic}]{1,5}`),
		rapid.SampledFrom([]string{" ", " ", "\n", "-", "_", ".", "'", `"`, "*", "(", ":", "/", "😀", "\x00", "\u200B", "\u0301"}),
		rapid.String(),
	)
	return rapid.Map(rapid.SliceOfN(piece, 0, 12), func(ps []string) string { return strings.ToValidUTF8(strings.Join(ps, ""), "") })
}

func wordFindsItsNote(t *testing.T, s memory.Store) {
	count := 0
	rapid.Check(t, func(t *rapid.T) {
		count++
		ws := fmt.Sprint("w", count)
		body := text().Draw(t, "text")
		if n, err := s.Add(context.Background(), []memory.Note{note(ws, "a", body)}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		for _, word := range strings.Fields(body) {
			q := memory.ParseQuery(word)
			got, err := s.Search(context.Background(), ws, q, 5)
			if err != nil {
				t.Fatalf("%q: %v", word, err)
			}
			if len(q.Terms) > 0 && len(got) != 1 {
				t.Fatalf("%q does not find %q (terms %+v, segments %q)", word, body, q.Terms, memory.Segment(body))
			}
		}
	})
}

func noLeak(t *testing.T, s memory.Store) {
	count := 0
	rapid.Check(t, func(t *rapid.T) {
		count++
		a, b := fmt.Sprint("a", count), fmt.Sprint("b", count)
		body := text().Draw(t, "text")
		q := text().Draw(t, "query")
		if n, err := s.Add(context.Background(), []memory.Note{note(a, "x", body)}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		for _, ws := range []string{b, q, body} {
			for _, query := range []string{body, q, a, "workspace:" + a} {
				got, err := s.Search(context.Background(), ws, memory.ParseQuery(query), 100)
				if err != nil || got == nil || len(got) != 0 {
					t.Fatalf("search %q in %q: %v, %v", query, ws, got, err)
				}
			}
			if ws != a && len(list(t, s, ws, memory.Filter{})) != 0 {
				t.Fatal("leak")
			}
		}
	})
}

// behavesAsModel compares random sequences of operations with a map.
func behavesAsModel(t *testing.T, s memory.Store) {
	count := 0
	rapid.Check(t, func(t *rapid.T) {
		count++
		model := map[string][]memory.Note{}
		workspace := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("m%d-%d", count, rapid.IntRange(0, 2).Draw(t, "workspace"))
		})
		id := rapid.StringMatching(`[a-e]`)
		word := rapid.SampledFrom([]string{"alpha", "beta", "gamma", "部署"})
		drop := func(ws string, gone func(memory.Note) bool) int {
			before := len(model[ws])
			model[ws] = slices.DeleteFunc(model[ws], gone)
			return before - len(model[ws])
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				n := note(workspace.Draw(t, "ws"), id.Draw(t, "id"), word.Draw(t, "word"))
				n.Run = rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "run")
				wantN := 1
				if slices.ContainsFunc(model[n.Workspace], func(m memory.Note) bool { return m.ID == n.ID }) {
					wantN = 0
				} else {
					model[n.Workspace] = append(model[n.Workspace], n)
				}
				if got, err := s.Add(context.Background(), []memory.Note{n}); got != wantN || err != nil {
					t.Fatalf("Add = %d, %v; want %d", got, err, wantN)
				}
			},
			"delete": func(t *rapid.T) {
				ws, id := workspace.Draw(t, "ws"), id.Draw(t, "id")
				wantN := drop(ws, func(n memory.Note) bool { return n.ID == id })
				if got, err := s.Delete(context.Background(), ws, []string{id}); got != wantN || err != nil {
					t.Fatalf("Delete = %d, %v; want %d", got, err, wantN)
				}
			},
			"delete run": func(t *rapid.T) {
				ws := workspace.Draw(t, "ws")
				wantN := drop(ws, func(n memory.Note) bool { return n.Run == "r1" })
				if got, err := s.DeleteRun(context.Background(), ws, "r1"); got != wantN || err != nil {
					t.Fatalf("DeleteRun = %d, %v; want %d", got, err, wantN)
				}
			},
			"list": func(t *rapid.T) {
				ws := workspace.Draw(t, "ws")
				if d := cmp.Diff(ids(model[ws]), ids(list(t, s, ws, memory.Filter{}))); d != "" {
					t.Fatalf("list of %s:\n%s", ws, d)
				}
			},
			"search": func(t *rapid.T) {
				ws, w := workspace.Draw(t, "ws"), word.Draw(t, "word")
				var hits []string
				for _, n := range slices.Backward(model[ws]) {
					if n.Text == w {
						hits = append(hits, n.ID)
					}
				}
				got, err := s.Search(context.Background(), ws, memory.ParseQuery(w), 10)
				if err != nil || !slices.Equal(ids(got), hits) {
					t.Fatalf("search %s in %s = %v, %v; want %v", w, ws, ids(got), err, hits)
				}
			},
		})
	})
}
