package proc

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// explain says why the system refused to start s. It looks at the files only
// now, so they may have changed; the error number stays what decides.
func explain(s Spec, errno unix.Errno) *StartError {
	e := &StartError{Err: errno}
	if err := enterable(s.Dir); err != nil {
		e.Message = fmt.Sprintf("can't start %s: its working directory %s: %v", s.Path, s.Dir, err)
		e.Hint = "name a folder that exists and that you may enter"
		return e
	}
	fi, statErr := os.Stat(s.Path)
	switch {
	case errno == unix.E2BIG:
		n := 0
		for _, v := range append(s.Args, s.Env...) {
			n += len(v) + 1
		}
		e.Message = fmt.Sprintf("can't start %s: its arguments and environment (%d bytes) are too long for this system", s.Path, n)
		e.Hint = "one argument or variable can have 128 KiB; give long input on standard input"
	case statErr != nil:
		e.Message = fmt.Sprintf("can't start %s: %v", s.Path, cause(statErr))
		e.Hint = "check that it is installed and the path is right"
	case fi.IsDir():
		e.Message = fmt.Sprintf("can't start %s: it is a directory", s.Path)
		e.Hint = "name the program in it"
	case errno == unix.EACCES && fi.Mode().Perm()&0o111 == 0:
		e.Message = fmt.Sprintf("can't start %s: it is not executable", s.Path)
		e.Hint = "chmod +x " + s.Path
	case errno == unix.ENOENT || errno == unix.EACCES || errno == unix.ENOTDIR || errno == unix.ELOOP:
		if in := interpreter(s.Path); in != "" {
			e.Message = fmt.Sprintf("can't start %s: its interpreter %q can't be started: %v", s.Path, in, errno)
			e.Hint = "install the interpreter or correct the first line of the file"
			if in[len(in)-1] == '\r' {
				e.Hint = "the file has Windows line ends; convert it"
			}
		} else {
			e.Message = fmt.Sprintf("can't start %s: %v, though the file is there", s.Path, errno)
			e.Hint = "a binary may need a dynamic loader this system lacks; a filesystem may be mounted noexec"
		}
	case errno == unix.ENOEXEC:
		e.Message = fmt.Sprintf("can't start %s: it is neither a script with a #! line nor a program for %s/%s", s.Path, runtime.GOOS, runtime.GOARCH)
		e.Hint = "add a #! line, or install the build for this system"
	default:
		e.Message = fmt.Sprintf("can't start %s: %v", s.Path, errno)
	}
	return e
}

// enterable says why dir can't be a working directory.
func enterable(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return cause(err)
	}
	if !fi.IsDir() {
		return unix.ENOTDIR
	}
	if err := unix.Access(dir, unix.X_OK); err != nil {
		return err
	}
	return nil
}

// cause is err without the operation and the path, which the message has.
func cause(err error) error {
	if pe, ok := err.(*fs.PathError); ok {
		return pe.Err
	}
	return err
}

// interpreter is the program the first line of the file names, or "".
func interpreter(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, 256) // all the kernel looks at
	n, _ := io.ReadFull(f, b)
	return shebang(b[:n])
}

// shebang is the program a #! line at the start of b names, as execve(2) reads
// it: a carriage return is part of the name.
func shebang(b []byte) string {
	line, ok := bytes.CutPrefix(b, []byte("#!"))
	if !ok {
		return ""
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	line = bytes.TrimLeft(line, " \t")
	if i := bytes.IndexAny(line, " \t\x00"); i >= 0 {
		line = line[:i]
	}
	return string(line)
}
