package memory

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxToken is how many characters of a token are kept. Longer runs without a
// break are data, not words; index and query cut them alike.
const maxToken = 64

// Segment cuts text into the tokens a Store indexes: lower case, separated by
// single spaces, each of letters, digits and marks only.
//
// First come the words in their order, so that neighbours can be searched as a
// phrase:
//   - Letters are compared without case, width and (in Latin, Greek, Cyrillic,
//     Hebrew and Arabic) diacritics; ß is ss, dotless and dotted i are i.
//   - Identifiers are cut at a single _ . - / \ @ or apostrophe between two
//     letters or digits and where the case changes (getUserName, HTTPServer).
//   - Scripts written without spaces, and Hangul, whose words carry particles,
//     become overlapping pairs of characters.
//
// Then follow, once each, what finds a word another way: an identifier as a
// whole without its separators, and the single characters of the paired
// scripts.
func Segment(text string) string {
	var b strings.Builder
	b.Grow(len(text) + len(text)/4)
	seen := map[string]bool{}
	var extras []string
	add := func(s string) {
		if !seen[s] {
			seen[s] = true
			extras = append(extras, s)
		}
	}
	put := func(s string) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(s)
	}
	scan(text, func(w word) bool {
		for _, p := range w.parts {
			put(p)
		}
		for _, s := range w.wholes {
			add(s)
		}
		if w.paired {
			for i, p := range w.parts {
				_, n := utf8.DecodeRuneInString(p)
				if n == len(p) {
					break // the only character of its run is a word already
				}
				add(p[:n])
				if i == len(w.parts)-1 {
					add(p[n:])
				}
			}
		}
		return true
	})
	for _, s := range extras {
		put(s)
	}
	return b.String()
}

// word is one word of a text as scan finds it.
type word struct {
	parts  []string // never empty
	wholes []string // the whole identifier first, then names inside it
	paired bool     // parts are pairs of characters
	star   bool     // a '*' follows immediately
}

// scan calls yield for each word of text until it returns false.
func scan(text string, yield func(word) bool) {
	s := normalize(text)
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		var w word
		switch classOf(r) {
		case paired:
			end := runEnd(s, i, paired)
			w = word{paired: true, parts: pairs(s[i:end])}
			i = end
		case letter:
			w, i = identifier(s, i)
		default:
			i += n
			continue
		}
		w.star = i < len(s) && s[i] == '*'
		if !yield(w) {
			return
		}
	}
}

// identifier reads the word at s[i:] and returns the index behind it. Its names
// are what a path or an address joins, and the pieces of those that are cut only
// where the case changes: http_client and getUserName in http_client.getUserName.
func identifier(s string, i int) (word, int) {
	var w word
	var whole, name strings.Builder
	var names []string
	pieces, joined := 0, 0
	endName := func() {
		if joined > 1 {
			names = append(names, token(name.String()))
		}
		name.Reset()
		joined = 0
	}
	for {
		end := runEnd(s, i, letter)
		piece := s[i:end]
		parts := splitCase(piece)
		for _, p := range parts {
			w.parts = append(w.parts, token(p))
		}
		if len(parts) > 1 {
			names = append(names, token(piece))
		}
		whole.WriteString(piece)
		name.WriteString(piece)
		pieces++
		joined++
		i = end
		j, n := utf8.DecodeRuneInString(s[i:])
		next, _ := utf8.DecodeRuneInString(s[i+n:])
		how := joins(j)
		if how == apart || classOf(next) != letter {
			break
		}
		if how == path {
			endName()
		}
		i += n
	}
	endName()
	if pieces > 1 {
		w.wholes = append(w.wholes, token(whole.String()))
	}
	w.wholes = append(w.wholes, names...)
	return w, i
}

// normalize brings text to compatibility form (UAX #15) and drops what people
// leave out when they search: diacritics of the scripts that are read without
// them, and characters that are not seen. It keeps case. The last step composes
// again, because Hangul syllables and voiced kana fall apart in the first and
// are letters of their own.
func normalize(s string) string {
	ascii := true
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			ascii = false
			break
		}
	}
	if ascii {
		return s
	}
	return norm.NFC.String(strings.Map(func(r rune) rune {
		if r >= utf8.RuneSelf && (unicode.Is(dropped, r) || unicode.Is(unicode.Cf, r)) {
			return -1
		}
		return r
	}, norm.NFKD.String(s)))
}

// dropped is diacritics, vowel points and variation selectors.
var dropped = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x0300, 0x036F, 1}, // combining diacritical marks
		{0x0483, 0x0489, 1}, // Cyrillic titlo and thousands
		{0x0591, 0x05BD, 1}, {0x05BF, 0x05BF, 1}, {0x05C1, 0x05C2, 1},
		{0x05C4, 0x05C5, 1}, {0x05C7, 0x05C7, 1}, // Hebrew points
		{0x0610, 0x061A, 1}, {0x0640, 0x0640, 1}, {0x064B, 0x065F, 1},
		{0x0670, 0x0670, 1}, {0x06D6, 0x06DC, 1}, {0x06DF, 0x06E4, 1},
		{0x06E7, 0x06E8, 1}, {0x06EA, 0x06ED, 1}, // Arabic marks and tatweel
		{0x1AB0, 0x1AFF, 1}, {0x1DC0, 0x1DFF, 1}, {0x20D0, 0x20FF, 1},
		{0xFE00, 0xFE0F, 1}, {0xFE20, 0xFE2F, 1},
	},
	R32: []unicode.Range32{{0xE0100, 0xE01EF, 1}},
}

// token is the form in which one part is compared.
func token(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	n := 0
	for _, r := range s {
		if n++; n > maxToken {
			break
		}
		switch r = unicode.ToLower(r); r {
		case 'ß':
			b.WriteString("ss")
		case 'ı':
			b.WriteByte('i')
		case 'ς':
			b.WriteRune('σ')
		case 'æ':
			b.WriteString("ae")
		case 'œ':
			b.WriteString("oe")
		case 'ø':
			b.WriteByte('o')
		case 'ł':
			b.WriteByte('l')
		case 'đ':
			b.WriteByte('d')
		case 'ħ':
			b.WriteByte('h')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// splitCase cuts before an upper-case letter that follows a lower-case one, and
// before one that follows an upper-case letter or digit and begins a word:
// get|User, HTTP|Server, SHA256|Sum, but not 4GB.
func splitCase(s string) []string {
	var parts []string
	start := 0
	var prev rune
	for i, r := range s {
		if i > 0 && unicode.IsUpper(r) {
			next, _ := utf8.DecodeRuneInString(s[i+utf8.RuneLen(r):])
			if unicode.IsLower(prev) || unicode.IsLower(next) && (unicode.IsUpper(prev) || unicode.IsDigit(prev)) {
				parts = append(parts, s[start:i])
				start = i
			}
		}
		prev = r
	}
	return append(parts, s[start:])
}

// pairs is the overlapping pairs of the characters of s, or s where it is one.
func pairs(s string) []string {
	var ps []string
	prev, at := 0, 0
	for i := range s {
		if at >= 2 {
			ps = append(ps, s[prev:i])
			_, n := utf8.DecodeRuneInString(s[prev:])
			prev += n
		}
		at++
	}
	return append(ps, s[prev:])
}

type class int

const (
	other class = iota
	letter
	paired
	mark
)

func classOf(r rune) class {
	switch {
	case r < utf8.RuneSelf:
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' {
			return letter
		}
		return other
	case unicode.IsMark(r):
		return mark
	case r == 'ー', unicode.IsLetter(r) && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana,
		unicode.Hangul, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar):
		return paired
	case unicode.IsLetter(r), unicode.IsNumber(r):
		return letter
	}
	return other
}

// runEnd is the end of the run of class c that starts at s[i:]. Marks belong to
// what they follow.
func runEnd(s string, i int, c class) int {
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		if k := classOf(r); k != c && k != mark {
			break
		}
		i += n
	}
	return i
}

type joint int

const (
	apart joint = iota
	inName
	path
)

// joins is what a single r between two letters or digits does.
func joins(r rune) joint {
	switch r {
	case '_', '-', '\'', '’', '\u2010':
		return inName
	case '.', '/', '\\', '@':
		return path
	}
	return apart
}
