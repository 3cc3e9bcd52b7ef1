// Package config knows where the policy file is and how it is read. A file in
// the current directory is never taken by itself: a cloned repository must not
// say what may run.
package config

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// Name is what a policy file is called.
const Name = "drawbridge.yaml"

// Default is $XDG_CONFIG_HOME/drawbridge/drawbridge.yaml, or the same in
// ~/.config. A relative XDG_CONFIG_HOME is ignored, as the XDG base directory
// specification asks. "" is where there is no home directory.
func Default(getenv func(string) string) string {
	if d := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "drawbridge", Name)
	}
	if h := getenv("HOME"); filepath.IsAbs(h) {
		return filepath.Join(h, ".config", "drawbridge", Name)
	}
	if h, err := os.UserHomeDir(); err == nil && filepath.IsAbs(h) {
		return filepath.Join(h, ".config", "drawbridge", Name)
	}
	return ""
}

// Source is a policy file that was read.
type Source struct {
	Path string // absolute
	Data []byte
}

// Read reads the file at path, up to max+1 bytes of it. Errors are of kind
// Usage, one for a missing file matches fs.ErrNotExist. Only a regular file is
// read, and none that every user of the machine could change.
func Read(path string, max int64) (*Source, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "policy file %s", path)
	}
	info, err := os.Stat(abs) // before it is opened: opening a pipe waits
	if err == nil {
		err = usable(path, info)
	}
	var f *os.File
	if err == nil {
		f, err = os.Open(abs)
	}
	if err != nil {
		hint := ""
		if errors.Is(err, fs.ErrNotExist) {
			hint = "drawbridge init writes one to start from"
		}
		return nil, fault.Wrap(err, fault.Usage, hint, "policy file")
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil {
		err = usable(path, info)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "policy file")
	}
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "policy file %s", path)
	}
	return &Source{Path: abs, Data: data}, nil
}

func usable(path string, info fs.FileInfo) error {
	switch {
	case !info.Mode().IsRegular():
		return fault.New(fault.Usage, "give the path of a file", "%s is not a file", path)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0:
		return fault.New(fault.Usage, "chmod o-w "+path, "%s can be changed by every user of this machine", path)
	}
	return nil
}

// CheckPlace refuses a policy file that is reached through a link inside a
// run's folder: the run could put another file in the place of the link. The
// file itself may lie in the folder, the file tools leave it alone. file is
// absolute.
func CheckPlace(file, folder string) error {
	home, err := filepath.Abs(folder)
	if err != nil {
		return fault.Wrap(err, fault.Usage, "", "folder %s", folder)
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	inside := func(dir string) bool {
		rel, err := filepath.Rel(home, dir)
		return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
	}
	root := filepath.VolumeName(file) + string(filepath.Separator)
	dir, parts := root, split(strings.TrimPrefix(file, root))
	for links := 0; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		if part == ".." {
			dir = filepath.Dir(dir)
			continue
		}
		next := filepath.Join(dir, part)
		target, err := os.Readlink(next)
		if err != nil { // no link
			dir = next
			continue
		}
		if links++; inside(dir) || links > 255 {
			return fault.New(fault.Usage, "give the path of the file itself", "policy file %s is reached through a link inside the run's folder, %s, which the run could change", file, next)
		}
		if filepath.IsAbs(target) {
			dir, target = root, strings.TrimPrefix(target, root)
		}
		parts = append(split(target), parts...)
	}
	return nil
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}
