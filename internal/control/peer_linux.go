package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// place is where a server listens.
type place struct {
	listener *net.UnixListener
	folder   *os.File
	socket   unix.Stat_t
}

// listen binds the socket by way of a descriptor of the folder: the path of a
// socket may have 108 bytes (unix(7)), and a state directory may lie deeper.
func listen(folder string) (*place, error) {
	dir, err := openFolder(folder)
	if err != nil {
		return nil, err
	}
	p := &place{folder: dir}
	if err := p.bind(); err != nil {
		_ = dir.Close()
		return nil, err
	}
	return p, nil
}

func (p *place) bind() error {
	var st unix.Stat_t
	fd := int(p.folder.Fd())
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("the folder is of uid %d with mode %04o", st.Uid, st.Mode&0o7777)
	}
	// The mode a socket has when it is bound is the one its file gets, less the
	// umask, which may take bits of the owner away as well.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error { return unix.Fchmod(fd, 0o600) })
	}}
	l, err := private.Listen(context.Background(), "unix", socketPath(p.folder))
	if err != nil {
		return err
	}
	p.listener = l.(*net.UnixListener)
	p.listener.SetUnlinkOnClose(false) // what lies there then may be another's
	err = unix.Fstatat(fd, SocketName, &p.socket, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && p.socket.Mode&0o777 != 0o600 {
		err = unix.Fchmodat(fd, SocketName, 0o600, 0)
	}
	if err != nil {
		p.unlink()
		_ = l.Close()
		return os.NewSyscallError("make it private", err)
	}
	return nil
}

func socketPath(folder *os.File) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(folder.Fd())), SocketName)
}

func (p *place) close() {
	p.unlink()
	_ = p.listener.Close()
	_ = p.folder.Close()
}

// unlink removes the socket, where it is still the one that was bound.
func (p *place) unlink() {
	var now unix.Stat_t
	fd := int(p.folder.Fd())
	if unix.Fstatat(fd, SocketName, &now, unix.AT_SYMLINK_NOFOLLOW) == nil && now.Dev == p.socket.Dev && now.Ino == p.socket.Ino {
		_ = unix.Unlinkat(fd, SocketName, 0)
	}
}

// openFolder opens a directory, and not through a link in its place.
func openFolder(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// dial connects to a run, and makes sure that it is not code of that run that
// waits there instead.
func dial(ctx context.Context, folder string) (*net.UnixConn, error) {
	dir, err := openFolder(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNobody, err)
	} else if err != nil {
		return nil, err
	}
	defer dir.Close()
	var st unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), SocketName, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT:
		return nil, fmt.Errorf("%w: there is no %s", ErrNobody, SocketName)
	case err != nil:
		return nil, os.NewSyscallError("fstatat", err)
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return nil, fmt.Errorf("%s was replaced by something that is no socket", SocketName)
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", socketPath(dir))
	for errors.Is(err, unix.EAGAIN) && ctx.Err() == nil { // the queue is full: somebody floods it
		time.Sleep(time.Millisecond)
		c, err = new(net.Dialer).DialContext(ctx, "unix", socketPath(dir))
	}
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNobody, plain(err))
	} else if err != nil {
		return nil, plain(err)
	}
	conn := c.(*net.UnixConn)
	if err := genuine(conn, filepath.Base(folder)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// genuine is an error where code of the run itself, or another user, listens in
// the place of the run's drawbridge.
func genuine(conn *net.UnixConn, run string) error {
	cred, fd, err := credentials(conn)
	if err != nil {
		return err
	}
	if fd >= 0 {
		defer unix.Close(fd)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d", SocketName, cred.Uid)
	}
	o, err := proc.OriginOf(int(cred.Pid))
	if err != nil {
		return fmt.Errorf("can't tell who listens on %s: %w", SocketName, err)
	}
	if o.Run == run || strings.HasPrefix(o.Run, run+"/") {
		return fmt.Errorf("code of the run listens on %s in the place of its drawbridge (process %d, %s)", SocketName, cred.Pid, o.Name)
	}
	return nil
}

// peer is a process that has connected and is not refused.
type peer struct {
	uid  uint32
	pid  int
	name string
	fd   int // of the process
}

// String is the peer as a question's By names it.
func (p *peer) String() string { return fmt.Sprintf("uid %d pid %d (%s)", p.uid, p.pid, p.name) }

func (p *peer) close() { _ = unix.Close(p.fd) }

// judge is the peer of conn, or why it is not heard.
func judge(conn *net.UnixConn) (*peer, error) {
	cred, fd, err := credentials(conn)
	if err != nil {
		return nil, refusal("can't tell who connects: %w", err)
	}
	if fd < 0 {
		// Before Linux 6.5. What makes up for it is that the request comes later.
		if fd, err = unix.PidfdOpen(int(cred.Pid), 0); err != nil {
			return nil, refusal("can't open process %d: %w", cred.Pid, err)
		}
	}
	p := &peer{uid: cred.Uid, pid: int(cred.Pid), fd: fd}
	if err := p.judge(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *peer) judge() error {
	if int(p.uid) != os.Geteuid() {
		return refusal("process %d is of uid %d", p.pid, p.uid)
	}
	if p.pid <= 0 {
		return refusal("the process is not of this process's namespace")
	}
	o, err := proc.OriginOf(p.pid)
	if err != nil {
		return refusal("%w", err)
	}
	if p.name = o.Name; o.Run != "" {
		return refusal("process %d (%s) belongs to run %s", p.pid, o.Name, o.Run)
	}
	return p.same()
}

// same makes sure that the process number is still of the process that
// connected.
func (p *peer) same() error {
	if err := unix.PidfdSendSignal(p.fd, 0, nil, 0); err != nil {
		return refusal("process %d is gone", p.pid)
	}
	return nil
}

// readLine reads the request. Every part of it must be sent by the peer itself.
func (p *peer) readLine(conn *net.UnixConn) ([]byte, error) {
	line := make([]byte, 0, 1024)
	buf := make([]byte, 8<<10)
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred)) // and no room for descriptors
	for {
		n, m, flags, _, err := conn.ReadMsgUnix(buf, oob)
		if err != nil {
			return nil, fmt.Errorf("no request: %w", err)
		}
		if err := p.sent(oob[:m], flags); err != nil {
			return nil, err
		}
		line = append(line, buf[:n]...)
		i := bytes.IndexByte(line, '\n')
		switch {
		case i == len(line)-1 && i < maxRequest:
			return line, nil
		case i >= 0 && i < maxRequest:
			return nil, errors.New("there is more than one request")
		case len(line) >= maxRequest:
			return nil, fmt.Errorf("the request has more than %d bytes", maxRequest)
		}
	}
}

func (p *peer) sent(oob []byte, flags int) error {
	if flags&unix.MSG_CTRUNC != 0 {
		return refusal("process %d sent descriptors", p.pid)
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err == nil && len(messages) == 1 {
		if c, err := unix.ParseUnixCredentials(&messages[0]); err == nil {
			if int(c.Pid) == p.pid && c.Uid == p.uid {
				return nil
			}
			return refusal("process %d connected, and process %d of uid %d sends", p.pid, c.Pid, c.Uid)
		}
	}
	return refusal("process %d sends without credentials", p.pid)
}

// credentials are those of the process at the other end, at the time it
// connected or began to listen; fd is a descriptor of it, -1 where the kernel
// gives none. From here on what arrives carries the credentials of its sender.
func credentials(conn *net.UnixConn) (cred *unix.Ucred, fd int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, -1, err
	}
	fd = -1
	err = control(raw, func(s int) error {
		var err error
		if cred, err = unix.GetsockoptUcred(s, unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return os.NewSyscallError("SO_PEERCRED", err)
		}
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
			return os.NewSyscallError("SO_PASSCRED", err)
		}
		f, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err == unix.ENOPROTOOPT {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("SO_PEERPIDFD", err)
		}
		fd = f
		return nil
	})
	return cred, fd, err
}

func control(c syscall.RawConn, f func(fd int) error) (err error) {
	if cerr := c.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}
