//go:build unix

package state

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

func private(path string, info fs.FileInfo) error {
	if !info.IsDir() {
		return fault.New(fault.Usage, "give a directory", "state directory %s is not a directory", path)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fault.New(fault.Usage, "use a directory of your own", "state directory %s belongs to another user (uid %d)", path, st.Uid)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fault.New(fault.Usage, "chmod 700 "+path, "state directory %s can be read by others (mode %04o)", path, mode)
	}
	if err := unix.Access(path, unix.W_OK|unix.X_OK); err != nil {
		return fault.Wrap(err, fault.Usage, "give a directory that you can write, with --state-dir or XDG_STATE_HOME", "state directory %s is not writable", path)
	}
	return nil
}

// mark locks before it shows the name, so that no sweep finds it unlocked.
func (d *Dir) mark(id string) (*os.File, error) {
	made := filepath.Join(d.live(), newMark+id)
	f, err := lockFile(made)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(made, filepath.Join(d.live(), id)); err != nil {
		_ = os.Remove(made)
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// lockFile makes path and holds it locked until the file is closed. The kernel
// drops the lock at any death, so a mark that can be locked is of a dead run.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// OpenFile opens a regular file of the state directory. Whatever else was put
// in its place is an error: a link is not followed and a FIFO not waited for.
func OpenFile(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	}
	return f, nil
}

func tryLock(path string) (*os.File, error) {
	f, err := OpenFile(path, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (d *Dir) alive(id string) bool {
	f, err := OpenFile(filepath.Join(d.live(), id), os.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	// A shared lock does not disturb another reader asking the same.
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}
