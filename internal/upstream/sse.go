package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

// events reads an event stream (WHATWG HTML, "Server-sent events") in bounded
// memory.
type events struct {
	r    *bufio.Reader
	max  int
	line []byte
	cr   bool // the last line ended with CR: an LF that follows belongs to it
	bom  bool // the beginning was looked at

	id    string        // of the last event, "" for none
	retry time.Duration // the server's wish, 0 for none
}

var errTooLong = errors.New("an event is too long")

func newEvents(r io.Reader, max int) *events {
	return &events{r: bufio.NewReaderSize(r, 32<<10), max: max}
}

// next is the data of the next event that has some. The bytes are the caller's.
// The error is errTooLong, or the reader's: io.EOF at the end, also where an event
// was not complete.
func (e *events) next() ([]byte, error) {
	var data []byte
	has := false
	for {
		line, err := e.read(e.max - len(data))
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if has {
				return data, nil
			}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(field) {
		case "data":
			if has {
				data = append(data, '\n')
			}
			data, has = append(data, value...), true
		case "id":
			if bytes.IndexByte(value, 0) < 0 && len(value) <= 1<<10 {
				e.id = string(value)
			}
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				e.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

// maxField is how many bytes a line may have beside data.
const maxField = 64

// read is the next line, valid until the next call.
func (e *events) read(limit int) ([]byte, error) {
	e.line = e.line[:0]
	if cap(e.line) > 64<<10 {
		e.line = nil
	}
	for {
		if _, err := e.r.Peek(1); err != nil {
			return nil, err
		}
		buf, _ := e.r.Peek(e.r.Buffered())
		if e.cr {
			e.cr = false
			if buf[0] == '\n' {
				_, _ = e.r.Discard(1)
				continue
			}
		}
		i := bytes.IndexAny(buf, "\r\n")
		n := i
		if i < 0 {
			n = len(buf)
		}
		if len(e.line)+n > limit+maxField {
			return nil, errTooLong
		}
		e.line = append(e.line, buf[:n]...)
		if i < 0 {
			_, _ = e.r.Discard(n)
			continue
		}
		e.cr = buf[i] == '\r'
		_, _ = e.r.Discard(i + 1)
		if !e.bom {
			e.bom = true
			e.line = bytes.TrimPrefix(e.line, []byte("\xef\xbb\xbf"))
		}
		return e.line, nil
	}
}
