package proc

import (
	"bytes"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// plumbing is every pipe of one tree.
type plumbing struct {
	helper []*os.File // the helper's 0, 1, 2, ...
	theirs []*os.File // those of them to close here once the helper has them

	death   *os.File // our ends
	status  *os.File
	inputs  []*input
	outputs []*output
}

type input struct {
	pipe *os.File
	r    io.Reader
}

type output struct {
	pipe *os.File
	w    io.Writer // nil when it has failed
}

// newPlumbing makes the pipes s needs. What it returns with an error still has
// to be closed.
func newPlumbing(s *Spec) (*plumbing, error) {
	pl := &plumbing{}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return pl, err
	}
	pl.theirs = append(pl.theirs, null)
	spec, err := s.order()
	if err != nil {
		return pl, err
	}
	orders, err := pl.memory(spec)
	if err != nil {
		return pl, err
	}
	deathR, deathW, err := pl.pipe(false)
	if err != nil {
		return pl, err
	}
	pl.death = deathW
	statusR, statusW, err := pl.pipe(true)
	if err != nil {
		return pl, err
	}
	pl.status = statusR
	pl.helper = []*os.File{null, null, statusW, orders, deathR, statusW}

	if s.Terminal {
		pl.helper = append(pl.helper, os.Stdin, os.Stdout, os.Stderr)
	} else {
		if err := pl.feed(s.Stdin, null); err != nil {
			return pl, err
		}
		if err := pl.collect(s.Stdout, null); err != nil {
			return pl, err
		}
		if same(s.Stdout, s.Stderr) {
			pl.helper = append(pl.helper, pl.helper[fdChild+1])
		} else if err := pl.collect(s.Stderr, null); err != nil {
			return pl, err
		}
	}
	for _, b := range s.Files {
		if err := pl.feed(bytes.NewReader(b), null); err != nil {
			return pl, err
		}
	}
	return pl, nil
}

// same reports whether two writers are one. Some types can't be compared.
func same(a, b io.Writer) (yes bool) {
	defer func() { _ = recover() }()
	return a != nil && a == b
}

// memory is a file with content b that nobody has a name for.
func (pl *plumbing) memory(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("drawbridge", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "order")
	pl.theirs = append(pl.theirs, f)
	if _, err := f.WriteAt(b, 0); err != nil {
		return nil, err
	}
	return f, nil
}

// pipe makes a pipe of which this process keeps the read end or the write end.
// The kept end has deadlines; the other one blocks, as programs expect of what
// they are started with.
func (pl *plumbing) pipe(keepRead bool) (r, w *os.File, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	kept := fd[1]
	if keepRead {
		kept = fd[0]
	}
	if err := unix.SetNonblock(kept, true); err != nil {
		unix.Close(fd[0])
		unix.Close(fd[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	r, w = os.NewFile(uintptr(fd[0]), "pipe"), os.NewFile(uintptr(fd[1]), "pipe")
	if keepRead {
		pl.theirs = append(pl.theirs, w)
	} else {
		pl.theirs = append(pl.theirs, r)
	}
	return r, w, nil
}

// feed gives the helper a descriptor from which all of in can be read.
func (pl *plumbing) feed(in io.Reader, null *os.File) error {
	if in == nil {
		pl.helper = append(pl.helper, null)
		return nil
	}
	r, w, err := pl.pipe(false)
	if err != nil {
		return err
	}
	pl.helper = append(pl.helper, r)
	pl.inputs = append(pl.inputs, &input{w, in})
	return nil
}

// collect gives the helper a descriptor of which all goes to out.
func (pl *plumbing) collect(out io.Writer, null *os.File) error {
	if out == nil {
		pl.helper = append(pl.helper, null)
		return nil
	}
	r, w, err := pl.pipe(true)
	if err != nil {
		return err
	}
	pl.helper = append(pl.helper, w)
	pl.outputs = append(pl.outputs, &output{r, out})
	return nil
}

func (pl *plumbing) helperFiles() []*os.File { return pl.helper }

// close closes everything where no helper was started.
func (pl *plumbing) close() {
	closeAll(pl.theirs)
	closeAll([]*os.File{pl.death, pl.status})
	for _, c := range pl.inputs {
		c.pipe.Close()
	}
	for _, c := range pl.outputs {
		c.pipe.Close()
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// feed writes all there is, until nobody reads any more or the pipe is closed.
func (c *input) feed() {
	_, _ = io.Copy(struct{ io.Writer }{c.pipe}, c.r)
	c.pipe.Close()
}

// copy passes on what comes until every holder of the other end has closed it,
// or the deadline that is set when the tree is dead.
func (c *output) copy() {
	defer c.pipe.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.pipe.Read(buf)
		c.pass(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.rest(buf)
		}
		if err != nil {
			return
		}
	}
}

// pass hands b to the writer. After a failure it is dropped, so that the
// process does not block.
func (c *output) pass(b []byte) {
	if len(b) == 0 || c.w == nil {
		return
	}
	if _, err := c.w.Write(b); err != nil {
		c.w = nil
	}
}

// rest passes on what lies in the pipe, without waiting, at most what a pipe
// can hold: the tree is dead, and whoever else writes there is not of it.
func (c *output) rest(buf []byte) {
	raw, err := c.pipe.SyscallConn()
	if err != nil {
		return
	}
	c.pipe.SetReadDeadline(time.Time{})
	for total := 0; total < 1<<20; {
		n := 0
		_ = raw.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), buf)
			return true
		})
		if n <= 0 {
			return
		}
		c.pass(buf[:n])
		total += n
	}
}
