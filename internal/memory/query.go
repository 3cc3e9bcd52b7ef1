package memory

import (
	"strings"
	"unicode/utf8"
)

const (
	// maxTerms is how many terms of a query count; the first ones do.
	maxTerms = 32
	// minPrefix is how many characters must stand before a '*'. Fewer would
	// match, and merge, half of the index.
	minPrefix = 3
)

// Query is what to look for. Its tokens are in the form Segment makes, so none
// holds a character any search language gives a meaning to.
type Query struct {
	Terms []Term // at most 32, no two alike
}

// Term is one word of a query. A note has it where Words stand next to each
// other in this order, or where Whole stands.
type Term struct {
	Words []string // never empty, at most 32
	Whole string   // "" for none
	// Prefix lets the last of Words, and Whole, be the beginning of a token.
	Prefix bool
	paired bool
}

// ParseQuery reads what a person or a model typed. Any text is a query: there
// are no operators, and quotes, colons, parentheses, AND or NOT mean nothing.
// A '*' immediately after a word of three letters or more finds words that
// begin so (after stemming where the Store stems: fix* finds fix, fixed and
// fixture). Text without a letter or digit is an empty query, which finds
// nothing.
func ParseQuery(text string) Query {
	if len(text) > MaxText {
		text = text[:MaxText]
	}
	var ts terms
	scan(text, func(w word) bool {
		t := Term{Words: w.parts, paired: w.paired}
		if len(t.Words) > maxTerms {
			t.Words = t.Words[:maxTerms]
		}
		if len(w.wholes) > 0 {
			t.Whole = w.wholes[0]
		}
		t.Prefix = w.star && !w.paired && utf8.RuneCountInString(t.Words[len(t.Words)-1]) >= minPrefix
		return ts.add(t)
	})
	return Query{Terms: ts.list}
}

// Loose is the query for notes that have only some of its terms. The pairs of a
// run of characters count singly in it: a sentence in Chinese is one run, and
// hardly ever found whole.
func (q Query) Loose() Query {
	var ts terms
	for _, t := range q.Terms {
		if !t.paired {
			if !ts.add(t) {
				break
			}
			continue
		}
		for _, w := range t.Words {
			if !ts.add(Term{Words: []string{w}, paired: true}) {
				break
			}
		}
	}
	return Query{Terms: ts.list}
}

type terms struct {
	list []Term
	seen map[string]bool
}

// add reports whether there is room for more.
func (ts *terms) add(t Term) bool {
	key := strings.Join(t.Words, " ") + "\n" + t.Whole
	if t.Prefix {
		key += "*"
	}
	if ts.seen == nil {
		ts.seen = map[string]bool{}
	}
	if !ts.seen[key] {
		ts.seen[key] = true
		ts.list = append(ts.list, t)
	}
	return len(ts.list) < maxTerms
}
