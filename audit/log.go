package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

var (
	// ErrBroken: a line could be neither written nor taken back, or an fsync
	// failed. After a failed fsync the kernel may have dropped the pages it
	// could not write, so a later fsync that succeeds proves nothing. The log
	// takes no further line.
	ErrBroken = errors.New("the audit record is broken")
	// ErrClosed: the Close line is written.
	ErrClosed = errors.New("the audit record is closed")
	// ErrChanged: the file is not what was written to it.
	ErrChanged = errors.New("the audit record was changed while the run was writing it")
)

// zeroHash is the Prev of line 1.
var zeroHash = strings.Repeat("0", 2*sha256.Size)

// Options change how a Log works. The zero value is ready to use.
type Options struct {
	// Follow is called with every line, in order, once the kernel has it. The
	// log is locked meanwhile: Follow must be quick and must not call the Log.
	// nil: nobody follows.
	Follow func(Record)
	// Mask is applied to Tool, Layer, Rule, Reason, What and Detail of every
	// line before it is written: the place to take known secrets out. It must
	// be safe for concurrent use. nil: text is written as it is.
	Mask func(string) string
	// Now is the clock. nil: time.Now.
	Now func() time.Time
}

// Log writes the record of one run. Its methods are safe for concurrent use.
type Log struct {
	path   string
	info   os.FileInfo
	follow func(Record)
	mask   func(string) string
	now    func() time.Time

	mu     sync.Mutex
	synced sync.Cond // a sync ended, or err was set
	f      file
	end    int64 // size of the file up to its last whole line
	seq    int64
	head   string
	counts map[Kind]int64
	buf    []byte
	err    error // wraps ErrBroken

	syncing bool
	durable int64 // the last line known to be on the disk
	dirDone bool  // the directory entry is on the disk

	closed    bool
	closeOnce sync.Once
	closeErr  error
}

// file is what a Log needs of an *os.File opened with O_APPEND.
type file interface {
	io.WriteCloser
	Truncate(size int64) error
	Sync() error
}

// Create makes the record of a run at path and writes its Open line. The file
// must not exist; its mode is 0600 under any umask. run.Version is set here.
// A failure leaves no file behind.
//
// The directory entry is made durable with the first durable line. That the
// directory itself survives a power loss is up to whoever made it.
func Create(path string, run Run, o Options) (*Log, error) {
	return create(path, run, o, func(f *os.File) file { return f })
}

func create(path string, run Run, o Options, wrap func(*os.File) file) (*Log, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create the audit record: %w", err)
	}
	l := &Log{
		path:   path,
		follow: o.Follow,
		mask:   o.Mask,
		now:    o.Now,
		f:      wrap(f),
		head:   zeroHash,
		counts: make(map[Kind]int64),
	}
	l.synced.L = &l.mu
	if l.now == nil {
		l.now = time.Now
	}
	run.Version = Version
	run.Scope = append(make([]string, 0, len(run.Scope)), run.Scope...)
	err = f.Chmod(0o600)
	if err == nil {
		l.info, err = f.Stat()
	}
	if err == nil {
		_, err = l.append(Record{Kind: Open, Run: &run})
	}
	if err != nil {
		l.f.Close()
		os.Remove(path)
		return nil, fmt.Errorf("create the audit record: %w", err)
	}
	return l, nil
}

// Append writes one line and returns it with Seq, Prev and Time filled in. A
// Begin or a Refused without a Call gets its own Seq there.
//
// When Append returns nil the line MUST have reached the kernel in a single
// write, and so survives the death of this process. Where durable is true it
// MUST be on the disk as well, and so survive a power loss; concurrent callers
// share an fsync, but only one that began after their own write.
//
// When Append returns an error the effect the line announces must not happen.
// A failed or short write (a full disk, say) is taken back, so the record
// stays whole and a later Append may work; the error then does not wrap
// ErrBroken. A record that is not one this format can hold (a kind that is not
// for Append, arguments that are not plain JSON, more than MaxLine bytes) is an
// error too and writes nothing.
func (l *Log) Append(r Record, durable bool) (Record, error) {
	switch r.Kind {
	case Refused, Begin, Answer, End, Early, Note:
	default:
		return Record{}, fmt.Errorf("append to the audit record: a line of kind %q can't be appended", r.Kind)
	}
	r.Run, r.Totals = nil, nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return Record{}, ErrClosed
	}
	r, err := l.append(r)
	if err == nil && durable {
		err = l.awaitDisk(r.Seq)
	}
	if err != nil {
		return Record{}, err
	}
	return r, nil
}

// append writes a line. l.mu is held, but for Create.
func (l *Log) append(r Record) (Record, error) {
	if l.err != nil {
		return r, l.err
	}
	if len(r.Arguments) > 0 {
		r.Arguments = bytes.TrimSpace(r.Arguments)
		if err := checkValue(r.Arguments); err != nil {
			return r, fmt.Errorf("append to the audit record: the arguments are not one plain JSON value: %w", err)
		}
	}
	if l.mask != nil {
		for _, s := range [...]*string{&r.Tool, &r.Layer, &r.Rule, &r.Reason, &r.What, &r.Detail} {
			if *s != "" {
				*s = l.mask(*s)
			}
		}
	}
	r.Seq, r.Prev, r.Time = l.seq+1, l.head, l.now().Round(0).UTC()
	if y := r.Time.Year(); y < 0 || y > 9999 {
		return r, fmt.Errorf("append to the audit record: the clock says year %d", y)
	}
	if r.Call == 0 && (r.Kind == Begin || r.Kind == Refused) {
		r.Call = r.Seq
	}
	l.buf = appendLine(l.buf[:0], &r)
	line := l.buf
	if cap(line) > 64<<10 {
		l.buf = nil
	}
	if len(line) > MaxLine {
		return r, fmt.Errorf("append to the audit record: a line of %d bytes is over the limit of %d", len(line), MaxLine)
	}
	head := hashLine(line)
	line = append(line, '\n')
	if n, err := l.f.Write(line); err != nil || n != len(line) {
		if err == nil {
			err = io.ErrShortWrite
		}
		if terr := l.f.Truncate(l.end); terr != nil {
			l.fail(fmt.Errorf("%w and can't be taken back: %w", err, terr))
			return r, l.err
		}
		return r, fmt.Errorf("append to the audit record: %w", err)
	}
	l.end += int64(len(line))
	l.seq, l.head = r.Seq, head
	l.counts[r.Kind]++
	if l.follow != nil {
		l.follow(r)
	}
	return r, nil
}

// awaitDisk returns when line seq is on the disk. l.mu is held, and released
// while an fsync runs, so that others can write lines for the next one.
func (l *Log) awaitDisk(seq int64) error {
	for l.durable < seq {
		switch {
		case l.err != nil:
			return l.err
		case l.syncing:
			l.synced.Wait()
		default:
			l.lead()
		}
	}
	return nil
}

// lead makes every line written so far durable. l.mu is held on entry and
// return.
func (l *Log) lead() {
	covered, dir := l.seq, !l.dirDone
	l.syncing = true
	l.mu.Unlock()
	err := l.f.Sync()
	if err == nil && dir {
		err = syncDir(filepath.Dir(l.path))
	}
	l.mu.Lock()
	l.syncing = false
	if err != nil {
		l.fail(err)
	} else {
		l.durable, l.dirDone = covered, true
	}
	l.synced.Broadcast()
}

// fail breaks the log for good. l.mu is held.
func (l *Log) fail(err error) {
	if l.err == nil {
		l.err = fmt.Errorf("%w: %w", ErrBroken, err)
	}
	l.synced.Broadcast()
}

// Head is the hash of the last line written, 64 hex digits.
func (l *Log) Head() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Totals is how many lines of each kind were written. The caller owns it.
func (l *Log) Totals() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.totals()
}

func (l *Log) totals() map[string]int64 {
	m := make(map[string]int64, len(l.counts))
	for k, n := range l.counts {
		m[string(k)] = n
	}
	return m
}

// Close appends the Close line, makes it durable, and reads the file again. r
// may carry What, Detail and Outcome, and in Totals how often each kind of
// early refusal happened; its Kind is set here, and to its Totals are added
// those of the lines before it (a kind's name is a reserved key).
//
// head is the hash of the last line that was written, also when err is not
// nil. err wraps ErrChanged where the file, or the file now found at its path,
// differs from what was written, with the first line that does; and ErrBroken
// where the log was broken. A second Close does nothing and returns the same.
func (l *Log) Close(r Record) (head string, err error) {
	l.closeOnce.Do(func() { l.closeErr = l.close(r) })
	return l.Head(), l.closeErr
}

func (l *Log) close(r Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Kind, r.Run = Close, nil
	totals := maps.Clone(r.Totals)
	if totals == nil {
		totals = make(map[string]int64)
	}
	for _, k := range kinds {
		delete(totals, string(k))
	}
	maps.Copy(totals, l.totals())
	r.Totals = totals
	r, err := l.append(r)
	l.closed = true
	if err == nil {
		err = l.awaitDisk(r.Seq)
	}
	for l.syncing {
		l.synced.Wait()
	}
	return errors.Join(err, l.compare(), l.f.Close())
}

// compare reads the file back. It is opened by its path, because that is where
// a reader will look for it, and never waits or reads without end, whatever is
// found there.
func (l *Log) compare() error {
	flags := os.O_RDONLY
	if runtime.GOOS != "windows" {
		flags |= syscall.O_NONBLOCK
	}
	f, err := os.OpenFile(l.path, flags, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if !os.SameFile(info, l.info) {
		return fmt.Errorf("%w: another file is in its place", ErrChanged)
	}
	same, err := l.leadsToHead(io.LimitReader(f, l.end+1))
	if err != nil {
		return fmt.Errorf("read the audit record back: %w", err)
	}
	if same {
		return nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	rep, err := Verify(io.LimitReader(f, l.end+MaxLine), l.head)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrChanged, err)
	case rep.Problem != "":
		return fmt.Errorf("%w: %s", ErrChanged, rep.Problem)
	case rep.Torn:
		return fmt.Errorf("%w: bytes that are no line follow line %d", ErrChanged, rep.Lines)
	}
	return ErrChanged
}

// leadsToHead reports whether r holds the lines that were written and nothing
// else: the head is over the last line, which holds the hash of the line before
// it, and so on to the first.
func (l *Log) leadsToHead(r io.Reader) (bool, error) {
	in := &lineReader{r: bufio.NewReaderSize(r, 8<<10)} // records are mostly short
	prev, read := zeroHash, int64(0)
	for n := int64(1); ; n++ {
		line, whole, err := in.next()
		if err == io.EOF {
			return prev == l.head && read == l.end, nil
		}
		if errors.Is(err, errLong) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		start := fmt.Appendf(nil, `{"seq":%d,"prev":"%s",`, n, prev)
		if !whole || !bytes.HasPrefix(line, start) {
			return false, nil
		}
		prev = hashLine(line)
		read += int64(len(line)) + 1
	}
}

func hashLine(line []byte) string {
	sum := sha256.Sum256(line)
	var digits [2 * sha256.Size]byte
	hex.Encode(digits[:], sum[:])
	return string(digits[:])
}

// syncDir makes the entries of a directory durable, where the system has a
// notion of that.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}
