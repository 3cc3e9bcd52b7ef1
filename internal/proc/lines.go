package proc

import (
	"bytes"
	"io"
)

const defaultLineMax = 1 << 20

// Lines is an io.Writer that cuts what is written into lines and hands each to
// a function, in bounded memory however long a line is. It is for one
// goroutine at a time.
type Lines struct {
	max    int
	fn     func(line []byte, cut bool)
	buf    []byte
	skip   bool // the head of this line is delivered, its rest is not wanted
	closed bool
}

// NewLines returns Lines that call fn for every line, without its "\n" or
// "\r\n"; an empty line counts. A line of more than max bytes is delivered
// once, as its first max bytes with cut set, and the rest of it is skipped. max
// below 1 is 1 MiB. The slice is valid during the call only.
func NewLines(max int, fn func(line []byte, cut bool)) *Lines {
	if max < 1 {
		max = defaultLineMax
	}
	return &Lines{max: max, fn: fn}
}

// Write takes the next bytes. It fails only after Close, with io.ErrClosedPipe.
func (l *Lines) Write(p []byte) (int, error) {
	if l.closed {
		return 0, io.ErrClosedPipe
	}
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part, ended := p, i >= 0
		if ended {
			part, p = p[:i], p[i+1:]
		} else {
			p = nil
		}
		l.add(part, ended)
	}
	return n, nil
}

// Close delivers a last line that has no newline. Closing again does nothing.
func (l *Lines) Close() error {
	if !l.closed && !l.skip && len(l.buf) > 0 {
		l.deliver(l.buf)
	}
	l.closed, l.buf = true, nil
	return nil
}

func (l *Lines) add(part []byte, ended bool) {
	switch {
	case l.skip:
	case len(l.buf) == 0 && ended:
		l.deliver(part)
	default:
		// One byte more than max is held, as it may be the \r of the line's end.
		l.grow(part[:min(len(part), l.max+1-len(l.buf))], len(part))
		switch {
		case ended && !l.skip:
			l.deliver(l.buf)
		case !l.skip && len(l.buf) > l.max && l.buf[l.max] != '\r':
			l.head(l.buf)
		}
	}
	if ended {
		l.skip = false
		l.release()
	}
}

// grow appends taken, the part of want bytes that there is room for. Where not
// all of it fits the line is too long for sure.
func (l *Lines) grow(taken []byte, want int) {
	if need := len(l.buf) + len(taken); need > cap(l.buf) {
		bigger := make([]byte, len(l.buf), min(max(2*cap(l.buf), need, 512), l.max+1))
		copy(bigger, l.buf)
		l.buf = bigger
	}
	l.buf = append(l.buf, taken...)
	if len(taken) < want {
		l.head(l.buf)
	}
}

// deliver hands over a whole line.
func (l *Lines) deliver(line []byte) {
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	if len(line) > l.max {
		l.fn(line[:l.max], true)
		return
	}
	l.fn(line, false)
}

func (l *Lines) head(line []byte) {
	l.fn(line[:l.max], true)
	l.skip = true
	l.release()
}

// release empties the buffer; one that a long line made large is given back.
func (l *Lines) release() {
	if cap(l.buf) > 64<<10 {
		l.buf = nil
	}
	l.buf = l.buf[:0]
}
