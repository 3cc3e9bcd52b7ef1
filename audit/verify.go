package audit

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

var kinds = [...]Kind{Open, Refused, Begin, Answer, End, Early, Note, Close}

// Report is what Verify found out.
type Report struct {
	// Lines is how many lines are whole and in their place. After a problem it
	// is how many were before it.
	Lines int64
	// Head is the hash of the last of them, 64 hex digits; 64 zeros for none.
	Head string
	// Torn: the file ends in the middle of a line. That is what a kill or a
	// power loss leaves behind, so it is no Problem; but it is also what
	// cutting the end off leaves behind, which only the head tells apart.
	Torn bool
	// Closed: the last line is a Close. Without it the run was killed, is still
	// going on, or its end was cut off.
	Closed bool
	// Run is what line 1 says of the run; nil without one.
	Run *Run
	// Unfinished are the lines that began a call of which no End tells the
	// outcome, in order. Such a call may have had its effect.
	Unfinished []int64
	// FirstBad is the number of the first line that was changed, added or
	// moved, or in whose place one is missing; 0 for none.
	FirstBad int64
	// Problem says what is wrong, naming the line; "" where nothing is.
	Problem string
}

// Verify reads a record and checks that it is whole: that every line is
// spelled the one way a record is, has its own number, and carries the hash of
// the line before; that the first and no other opens it, that nothing follows
// its close, that each call's end has a beginning, and that the totals are
// right. Where head is not "" it also has to be the hash of the last line.
//
// The record is read once, in memory bounded by MaxLine and the number of calls
// that are open at the same time. The error is that of r, and nothing else: what
// is wrong with the record is in the Report.
//
// Without a head, changes to the last line, lines cut off at the end, and a
// record that was written anew from some line on can't be told from the
// original.
func Verify(r io.Reader, head string) (Report, error) {
	v := verifier{
		in:    newLineReader(r),
		rep:   Report{Head: zeroHash},
		want:  strings.ToLower(head),
		calls: make(map[int64]bool),
		count: make(map[Kind]int64),
	}
	if b, err := hex.DecodeString(head); head != "" && (err != nil || 2*len(b) != len(zeroHash)) {
		v.rep.Problem = fmt.Sprintf("the given head is not %d hex digits", len(zeroHash))
		return v.rep, nil
	}
	for v.rep.Problem == "" {
		line, whole, err := v.in.next()
		if err == io.EOF {
			v.end()
			break
		}
		if err == errLong {
			v.bad(v.rep.Lines+1, "is longer than %d bytes", MaxLine)
			break
		}
		if err != nil {
			return v.rep, err
		}
		if !whole {
			v.torn()
			continue
		}
		if err := v.line(line); err != nil {
			return v.rep, err
		}
	}
	for seq, open := range v.calls {
		if open {
			v.rep.Unfinished = append(v.rep.Unfinished, seq)
		}
	}
	slices.Sort(v.rep.Unfinished)
	return v.rep, nil
}

type verifier struct {
	in      *lineReader
	rep     Report
	want    string // head, or ""
	reached int64  // the line whose hash is want
	parent  string // Prev of the last good line
	calls   map[int64]bool
	count   map[Kind]int64
	scratch []byte
}

func (v *verifier) bad(line int64, format string, args ...any) {
	v.rep.FirstBad = line
	v.rep.Problem = fmt.Sprintf("line %d ", line) + fmt.Sprintf(format, args...)
}

func (v *verifier) torn() {
	v.rep.Torn = true
	if v.rep.Closed {
		v.bad(v.rep.Lines+1, "was added: it comes after the close of the run")
	}
}

// line checks one whole line. An error is one of reading ahead.
func (v *verifier) line(line []byte) error {
	n := v.rep.Lines + 1
	rec, scratch, err := decodeLine(line, v.scratch)
	v.scratch = scratch
	if err != nil {
		// Blocks that never reached the disk before a power loss read as NUL.
		if bytes.IndexByte(line, 0) >= 0 {
			if _, _, eof := v.in.peek(); eof == io.EOF {
				v.torn()
				return nil
			}
		}
		v.bad(n, "was changed: %v", err)
		return nil
	}
	hash := hashLine(line)
	switch {
	case rec.Seq != n:
		return v.misplaced(n, rec, hash)
	case rec.Prev != v.rep.Head:
		return v.unchained(n, hash)
	case v.rep.Closed:
		v.bad(n, "was added: it comes after the close of the run")
		return nil
	}
	if problem := v.judge(n, &rec); problem != "" {
		v.bad(n, "%s", problem)
		return nil
	}
	v.rep.Lines, v.rep.Head, v.parent = n, hash, rec.Prev
	v.count[rec.Kind]++
	if hash == v.want {
		v.reached = n
	}
	return nil
}

// misplaced names the line to blame where a line has another's number.
func (v *verifier) misplaced(n int64, rec Record, hash string) error {
	if rec.Seq == n-1 && rec.Prev == v.parent && hash != v.rep.Head {
		// Two lines claim to be line n-1. The one the next line goes on from
		// is the original.
		next, _, err := v.next()
		if err != nil {
			return err
		}
		if next == hash || next == "" && v.want == hash {
			v.bad(n-1, "was added: the line after it is line %d of the record too, and the rest follows that one", n-1)
			return nil
		}
	}
	if rec.Seq > n {
		v.bad(n, "is missing or was moved: in its place is line %d of the record", rec.Seq)
		return nil
	}
	v.bad(n, "was added or moved: it is line %d of the record", rec.Seq)
	return nil
}

// unchained names the line to blame where a line does not carry the hash of
// the one before: either of the two may be the changed one.
func (v *verifier) unchained(n int64, hash string) error {
	if n == 1 {
		v.bad(1, "was changed: it refers to a line before it")
		return nil
	}
	next, last, err := v.next()
	if err != nil {
		return err
	}
	switch {
	case next == hash, last && v.want == hash:
		v.bad(n-1, "was changed: line %d carries another hash of it", n)
	case last && v.want == "":
		v.bad(n-1, "or line %d was changed: the one does not follow from the other", n)
	default:
		v.bad(n, "was changed or added: it does not follow from line %d", n-1)
	}
	return nil
}

// next is the Prev of the line to come, "" where it can't be read; last reports
// that there is none.
func (v *verifier) next() (prev string, last bool, err error) {
	line, whole, err := v.in.peek()
	if err == io.EOF || err == nil && !whole {
		return "", true, nil
	}
	if err == errLong {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	rec, _, err := decodeLine(line, nil)
	if err != nil {
		return "", false, nil
	}
	return rec.Prev, false, nil
}

// judge says what is wrong with a line that is in its place, or "".
func (v *verifier) judge(n int64, r *Record) string {
	if !slices.Contains(kinds[:], r.Kind) {
		return fmt.Sprintf("is of no known kind: %q", r.Kind)
	}
	if (r.Kind == Open) != (n == 1) {
		if n == 1 {
			return "does not open a run"
		}
		return "opens a run a second time"
	}
	if (r.Run != nil) != (r.Kind == Open) || r.Totals != nil && r.Kind != Close {
		return fmt.Sprintf("has members that a line of kind %q does not have", r.Kind)
	}
	switch r.Kind {
	case Open:
		if r.Run.Version != Version {
			return fmt.Sprintf("says format %d: this program knows format %d only", r.Run.Version, Version)
		}
		v.rep.Run = r.Run
	case Begin:
		v.calls[n] = true
	case Answer:
		if _, ok := v.calls[r.Call]; !ok {
			return fmt.Sprintf("answers for a call that is not open: %d", r.Call)
		}
		if r.Decision == "deny" {
			v.calls[r.Call] = false
		}
	case End:
		if _, ok := v.calls[r.Call]; !ok && r.Outcome != Unrecorded {
			return fmt.Sprintf("ends a call that is not open: %d", r.Call)
		}
		delete(v.calls, r.Call)
	case Refused:
		delete(v.calls, r.Call)
	case Close:
		for _, k := range kinds {
			if r.Totals[string(k)] != v.count[k] {
				return fmt.Sprintf("counts %d lines of kind %q: there are %d", r.Totals[string(k)], k, v.count[k])
			}
		}
		v.rep.Closed = true
	}
	return ""
}

// end judges the record as a whole.
func (v *verifier) end() {
	n := v.rep.Lines
	switch {
	case n == 0 && !v.rep.Torn:
		v.bad(1, "is missing: the record is empty")
	case v.want == "" || v.want == v.rep.Head:
	case v.reached > 0:
		v.bad(v.reached+1, "was added: the given head is that of line %d", v.reached)
	case v.rep.Closed:
		v.bad(n, "was changed: the given head is not its hash; or the whole record was written anew")
	default:
		v.bad(n+1, "is missing: the record ends before the given head, or was written anew")
	}
}

// Read calls fn with every line of a record, in order, and stops at the first
// error of fn, which it returns. A line that no Log could have written is an
// error that names it; an end in the middle of a line is none. The chain is
// not checked: that is what Verify is for.
func Read(r io.Reader, fn func(Record) error) error {
	in := newLineReader(r)
	var scratch []byte
	for n := int64(1); ; n++ {
		line, whole, err := in.next()
		if err == io.EOF || err == nil && !whole {
			return nil
		}
		if err != nil {
			return fmt.Errorf("line %d of the audit record: %w", n, err)
		}
		var rec Record
		rec, scratch, err = decodeLine(line, scratch)
		if err != nil {
			if bytes.IndexByte(line, 0) >= 0 {
				if _, _, eof := in.peek(); eof == io.EOF {
					return nil
				}
			}
			return fmt.Errorf("line %d of the audit record was changed: %w", n, err)
		}
		if err := fn(rec); err != nil {
			return err
		}
	}
}

var errLong = errors.New("the line is too long")

// lineReader hands out lines of up to MaxLine bytes, without copying those that
// fit its buffer.
type lineReader struct {
	r    *bufio.Reader
	long []byte

	ahead bool // line, whole and err were read by peek
	line  []byte
	whole bool
	err   error
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10)}
}

// peek reads one line ahead. The line handed out before it is no longer valid.
func (l *lineReader) peek() (line []byte, whole bool, err error) {
	if !l.ahead {
		l.line, l.whole, l.err = l.read()
		l.ahead = true
	}
	return l.line, l.whole, l.err
}

// next returns a line without its newline, valid until the next call. whole
// is false for the last one where it has no newline. The error is io.EOF after
// the last line, errLong, or that of the reader.
func (l *lineReader) next() (line []byte, whole bool, err error) {
	line, whole, err = l.peek()
	l.ahead = false
	return line, whole, err
}

func (l *lineReader) read() ([]byte, bool, error) {
	l.long = l.long[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		if len(l.long)+len(part) > MaxLine+1 {
			return nil, false, errLong
		}
		switch {
		case err == nil && len(l.long) == 0:
			return part[:len(part)-1], true, nil
		case err == nil:
			l.long = append(l.long, part...)
			return l.long[:len(l.long)-1], true, nil
		case err == bufio.ErrBufferFull:
			l.long = append(l.long, part...)
		case err == io.EOF:
			if len(l.long)+len(part) == 0 {
				return nil, false, io.EOF
			}
			l.long = append(l.long, part...)
			return l.long, false, nil
		default:
			return nil, false, err
		}
	}
}
