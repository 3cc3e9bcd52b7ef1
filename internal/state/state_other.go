//go:build !unix

package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

func private(path string, info fs.FileInfo) error {
	if !info.IsDir() {
		return fault.New(fault.Usage, "give a directory", "state directory %s is not a directory", path)
	}
	return nil
}

// mark relies on the system refusing to rename or remove an open file.
func (d *Dir) mark(id string) (*os.File, error) {
	return os.OpenFile(filepath.Join(d.live(), id), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// OpenFile opens a regular file of the state directory. Whatever else was put
// in its place is an error.
func OpenFile(path string, flag int) (*os.File, error) {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.Join(err, errNotRegular)}
	}
	return os.OpenFile(path, flag, 0)
}

func tryLock(path string) (*os.File, error) {
	if err := os.Rename(path, path+".dead"); err != nil {
		return nil, err
	}
	if err := os.Rename(path+".dead", path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

func (d *Dir) alive(id string) bool {
	_, err := os.Stat(filepath.Join(d.live(), id))
	return err == nil
}
