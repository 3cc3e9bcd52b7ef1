package call

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// DefaultOutput is how many bytes of text one result may have when nothing
// else is configured. Claude Code drops a whole result above 25,000 tokens.
const DefaultOutput = 64 << 10

// HeadTail keeps what is written to it up to Max bytes, and of more the first
// three quarters of Max and the last quarter, in bounded memory. The zero value
// keeps DefaultOutput bytes. It is for one goroutine at a time.
type HeadTail struct {
	Max  int // bytes kept, the marker aside; 0 is DefaultOutput
	head []byte
	tail []byte // ring, once full
	next int
	n    int64
}

// Write never fails.
func (h *HeadTail) Write(p []byte) (int, error) {
	n := len(p)
	h.n += int64(n)
	if room := h.headMax() - len(h.head); room > 0 {
		take := min(room, len(p))
		h.head = append(h.head, p[:take]...)
		p = p[take:]
	}
	tailMax := h.max() - h.headMax()
	if len(p) > tailMax {
		p = p[len(p)-tailMax:]
	}
	for len(p) > 0 {
		if len(h.tail) < tailMax {
			take := min(tailMax-len(h.tail), len(p))
			h.tail = append(h.tail, p[:take]...)
			p = p[take:]
			continue
		}
		c := copy(h.tail[h.next:], p)
		h.next = (h.next + c) % tailMax
		p = p[c:]
	}
	return n, nil
}

func (h *HeadTail) max() int {
	if h.Max <= 0 {
		return DefaultOutput
	}
	return h.Max
}

func (h *HeadTail) headMax() int { return h.max() - h.max()/4 }

// Text is what was kept: valid UTF-8, with a marker in the place of what is
// missing. cut is how many of the written bytes are missing; repaired reports
// whether bytes that are no UTF-8 were replaced. More may be written after it.
func (h *HeadTail) Text() (s string, cut int64, repaired bool) {
	tail := append(append([]byte(nil), h.tail[h.next:]...), h.tail[:h.next]...)
	missing := h.n - int64(len(h.head)) - int64(len(tail))
	if missing == 0 {
		return repair(string(h.head) + string(tail))
	}
	// What the cut itself split is trimmed, not replaced: it is no fault of
	// the text.
	head := h.head
	for i := 1; i < utf8.UTFMax && i <= len(head); i++ {
		if b := head[len(head)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(head[len(head)-i:]) {
				head = head[:len(head)-i]
			}
			break
		}
	}
	for i := 0; i < utf8.UTFMax-1 && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
		tail = tail[1:]
	}
	missing = h.n - int64(len(head)) - int64(len(tail))
	hs, _, r1 := repair(string(head))
	ts, _, r2 := repair(string(tail))
	return hs + CutMarker(missing) + ts, missing, r1 || r2
}

// CutMarker is the text that stands where n bytes were left out.
func CutMarker(n int64) string { return fmt.Sprintf("\n[... %d bytes left out ...]\n", n) }

func repair(s string) (string, int64, bool) {
	if utf8.ValidString(s) {
		return s, 0, false
	}
	return strings.ToValidUTF8(s, "\uFFFD"), 0, true
}

// Invisible reports whether s holds characters a person reading it can't see
// or that reorder what is seen: Unicode's Default_Ignorable_Code_Point (tags,
// zero-width and bidi controls, fillers, the supplementary variation selectors
// that can carry bytes) and the interlinear annotation controls. The variation
// selectors of the basic plane are left out: ordinary emoji have them.
func Invisible(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		switch {
		case r < 0xAD, r >= 0xFE00 && r <= 0xFE0F:
			return false
		case r == 0xAD, r == 0x034F, r == 0x061C, r == 0x115F, r == 0x1160,
			r == 0x17B4, r == 0x17B5, r >= 0x180B && r <= 0x180F,
			r >= 0x200B && r <= 0x200F, r >= 0x202A && r <= 0x202E,
			r >= 0x2060 && r <= 0x206F, r == 0x3164, r == 0xFEFF, r == 0xFFA0,
			r >= 0xFFF0 && r <= 0xFFFB, r >= 0x1BCA0 && r <= 0x1BCA3,
			r >= 0x1D173 && r <= 0x1D17A, r >= 0xE0000 && r <= 0xE0FFF:
			return true
		}
		return false
	})
}
