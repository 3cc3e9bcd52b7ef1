package sqlite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/memory"
)

// vocabulary makes words that look like words; word i is drawn with a frequency
// of about 1/i, as in a natural text.
func vocabulary(n int) []string {
	const consonants, vowels = "bcdfghjklmnprstvz", "aeiou"
	r := rand.New(rand.NewPCG(1, 2))
	words := make([]string, n)
	for i := range words {
		var b strings.Builder
		for range 2 + r.IntN(3) {
			b.WriteByte(consonants[r.IntN(len(consonants))])
			b.WriteByte(vowels[r.IntN(len(vowels))])
		}
		words[i] = b.String()
	}
	return words
}

// corpus fills workspace "big" with n notes of about 20 words, all of which have
// "the", and workspace "small" with 10.
func corpus(t testing.TB, store memory.Store, n int) {
	words := vocabulary(20_000)
	r := rand.New(rand.NewPCG(3, 4))
	zipf := rand.NewZipf(r, 1.1, 1, uint64(len(words)-1))
	make := func(ws string, i int) memory.Note {
		text := []string{"the"}
		for range 10 + r.IntN(20) {
			text = append(text, words[zipf.Uint64()])
		}
		switch {
		case i%2 == 0:
			text = append(text, "budget")
		default:
			text = append(text, "lunch")
		}
		if i%1000 == 1 {
			text = append(text, "contract 部署方案")
		}
		return memory.Note{ID: fmt.Sprint(i), Workspace: ws, Text: strings.Join(text, " "), Run: "run", Time: time.Unix(int64(i), 0)}
	}
	var batch []memory.Note
	flush := func() {
		if _, err := store.Add(context.Background(), batch); err != nil {
			t.Fatal(err)
		}
		batch = batch[:0]
	}
	for i := range n {
		batch = append(batch, make("big", i))
		if i%(n/10) == n/20 {
			batch = append(batch, make("small", i))
		}
		if len(batch) >= 1000 {
			flush()
		}
	}
	flush()
}

var searches = []struct{ name, workspace, query string }{
	{"rare", "big", "contract"},
	{"cjk", "big", "部署方案"},
	{"half", "big", "budget"},
	{"every", "big", "the"},
	{"every_and_half", "big", "the budget"},
	{"some_of_common_and_rare", "big", "the budget of the contract"},
	{"never_together_rare", "big", "budget contract"},
	{"never_together_common", "big", "budget lunch"},
	{"sentence", "big", "what did we decide about the budget for the contract review"},
	{"none", "big", "zzzz"},
	{"prefix", "big", "contr*"},
	{"prefix_common", "big", "bud*"},
	{"small_every", "small", "the"},
	{"small_some", "small", "the contract"},
	{"elsewhere", "nobody", "the"},
}

// BenchmarkSearch is memory_search over 100,000 notes, without the gate. The
// promise is a p50 under 5 ms for every kind of word.
func BenchmarkSearch(b *testing.B) {
	db := open(b)
	store := db.Notes()
	corpus(b, store, 100_000)
	service := memory.NewService(store, nil)
	for _, s := range searches {
		b.Run(s.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				if _, err := service.Search(b.Context(), s.workspace, s.query, 10); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "p95-us")
		})
	}
}

// BenchmarkAdd is one durable note, as memory_add stores it.
func BenchmarkAdd(b *testing.B) {
	service := memory.NewService(open(b).Notes(), nil)
	for b.Loop() {
		if _, err := service.Add(b.Context(), memory.Note{Workspace: "w", Text: "Q4 budget review: Thu 14:00."}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is opening and closing a database that exists.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "drawbridge.db")
	for b.Loop() {
		db, err := Open(b.Context(), path)
		if err != nil {
			b.Fatal(err)
		}
		db.Close()
	}
}
