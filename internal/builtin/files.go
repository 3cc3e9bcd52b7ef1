package builtin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// Files says which folder the file tools work in.
type Files struct {
	// Folder is the run's folder, absolute. It must exist, and be neither the
	// root of the file system nor a folder of the kernel's (/proc, /sys, /dev),
	// nor Home or a folder around it, nor inside what is protected.
	Folder string
	// Home is the user's home folder, where what else runs as the user keeps
	// its keys and its start files; "" is none.
	Home string
	// Protected are further absolute paths, of files or folders that may not
	// exist yet, which the tools neither read nor change although they lie
	// inside Folder: the policy file, the state directory. A file that is the
	// same one under another name (a hard link) is protected too.
	Protected []string
	// MaxRead is how many bytes of text one result may have; 0 is
	// call.DefaultOutput, and less than 1 KiB is 1 KiB.
	MaxRead int64
}

// FileSet is one run's file tools. It is safe for concurrent use.
//
// Every path is walked name by name on open folder handles, never checked first
// and used afterwards, so nothing that changes meanwhile leads outside the
// folder or into a protected file. Links are followed where they lead to
// something inside.
//
// Protected at any depth, whatever the case and spelling, and before they exist:
//
//   - .git and .vscode can be read, not changed. DESIGN section 8 asks this of
//     .git/hooks and .git/config; all of .git is closed because a commondir, a
//     worktree's or a submodule's configuration or a .git file that points
//     elsewhere also make git run programs. So does a folder that only looks
//     like a repository (HEAD, objects, refs), so none can be made.
//   - .git's config, .mcp.json, .claude, .codex, .gemini and .qwen hold other
//     programs' credentials and can't be read either.
type FileSet struct {
	root *os.Root
	// prefixes are the spellings an absolute path inside the folder may start
	// with: as configured, and with links resolved.
	prefixes  []string
	protected []string   // absolute
	closed    [][]string // keys below the folder of those protected paths that lie in it
	max       int

	// writing makes read-change-replace one step among this run's own calls.
	writing sync.Mutex

	searchTime  time.Duration
	searchBytes int64
}

// NewFiles opens the folder. The caller closes the FileSet. Errors are
// *fault.Error with kind Usage.
func NewFiles(c Files) (*FileSet, error) {
	if !filepath.IsAbs(c.Folder) {
		return nil, fault.New(fault.Usage, "give an absolute path", "folder %q is not absolute", c.Folder)
	}
	folder := filepath.Clean(c.Folder)
	real, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return nil, fault.Wrap(bare(err), fault.Usage, "create it, or name another folder", "can't use folder %s", folder)
	}
	if real == filepath.Dir(real) || kernelFolder(real) {
		return nil, fault.New(fault.Usage, "name the project's own folder", "folder %s can't be a run's folder", folder)
	}
	if c.Home != "" {
		if _, ok := below(real, resolve(c.Home)); ok {
			return nil, fault.New(fault.Usage, "name the folder of the work, not your home: keys and start files lie there", "folder %s is your home folder, or around it", folder)
		}
	}
	for _, name := range strings.Split(filepath.ToSlash(real), "/") {
		if _, g := guardOf(key(name)); g != free {
			return nil, fault.New(fault.Usage, "name the project's own folder", "folder %s lies in %s, which the file tools don't change", folder, name)
		}
	}
	f := &FileSet{
		prefixes:    []string{filepath.ToSlash(folder), filepath.ToSlash(real)},
		max:         int(c.MaxRead),
		searchTime:  10 * time.Second,
		searchBytes: 256 << 20,
	}
	if c.MaxRead <= 0 {
		f.max = call.DefaultOutput
	}
	f.max = max(f.max, 1<<10)
	for _, p := range c.Protected {
		if !filepath.IsAbs(p) {
			return nil, fault.New(fault.Usage, "give an absolute path", "protected path %q is not absolute", p)
		}
		f.protected = append(f.protected, p)
		if _, ok := below(resolve(p), real); ok {
			return nil, fault.New(fault.Usage, "keep it outside the folders runs work in, or name another folder",
				"folder %s lies in %s, which runs can't reach", folder, p)
		}
		if rel, ok := below(real, resolve(p)); ok {
			f.closed = append(f.closed, keys(strings.Split(rel, "/")))
		}
	}
	if f.root, err = os.OpenRoot(real); err != nil {
		return nil, fault.Wrap(bare(err), fault.Usage, "name a folder you can read", "can't use folder %s", folder)
	}
	return f, nil
}

// below is the way from folder to path, with slashes, where path is folder or
// lies in it.
func below(folder, path string) (rel string, ok bool) {
	rel, err := filepath.Rel(folder, path)
	rel = filepath.ToSlash(rel)
	return rel, err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// resolve follows the links of as much of path as exists.
func resolve(path string) string {
	path = filepath.Clean(path)
	rest := ""
	for p := path; ; {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			return filepath.Join(real, rest)
		}
		parent := filepath.Dir(p)
		if parent == p {
			return path
		}
		rest = filepath.Join(filepath.Base(p), rest)
		p = parent
	}
}

func kernelFolder(path string) bool {
	for _, k := range []string{"/proc", "/sys", "/dev"} {
		if path == k || strings.HasPrefix(path, k+"/") && !strings.HasPrefix(path, "/dev/shm/") {
			return true
		}
	}
	return false
}

// Close gives the folder back. Calls in flight fail.
func (f *FileSet) Close() error { return f.root.Close() }

// Tools are read_file, list_files, search_files, write_file, edit_file and
// delete_file.
func (f *FileSet) Tools() []call.Tool {
	return []call.Tool{f.readTool(), f.listTool(), f.searchTool(), f.writeTool(), f.editTool(), f.deleteTool()}
}

// tool makes a call.Tool of a function with typed arguments. What the function
// returns as an error becomes an isError result in words.
func tool[A any](name, description, schema string, effects call.Effects,
	run func(ctx context.Context, args A) (call.Result, error),
) call.Tool {
	return call.Tool{
		Name: name, Description: description, InputSchema: []byte(schema), Effects: effects,
		Run: func(ctx context.Context, inv call.Invocation) (call.Result, error) {
			var args A
			if err := decode(inv, &args); err != nil {
				return call.Errorf("the arguments do not fit %s: %v", name, err), nil
			}
			if err := ctx.Err(); err != nil {
				return call.Result{}, err
			}
			r, err := run(ctx, args)
			if err != nil && ctx.Err() != nil {
				return call.Result{}, ctx.Err()
			}
			if err != nil {
				r = call.Errorf("%v", err)
			}
			return r, nil
		},
	}
}

// The ways in which a path is no good. errRefused stands for every reason that
// has to do with where the path leads, so that its answer tells nothing about
// what is there.
var (
	errRefused = errors.New("path can't be used")
	errMissing = errors.New("no such file or folder")
	errNotDir  = errors.New("not a folder")
	errIsDir   = errors.New("is a folder")
	errMoved   = errors.New("kept changing meanwhile: try again")
)

// explain turns an error about path into words for the model. It never names a
// path that the model didn't send.
func explain(path string, err error) error {
	path = call.Clip(path)
	if errors.Is(err, errRefused) {
		return fmt.Errorf("path %q can't be used: give a path inside the run's folder, names joined by single slashes, "+
			"as list_files shows it; not used are .. and paths or links that lead outside, special files, "+
			"and protected files (.git, .vscode, .mcp.json and the settings of agents)", path)
	}
	if errors.Is(err, fs.ErrClosed) {
		return errors.New("the run has ended")
	}
	return fmt.Errorf("%q: %w", path, bare(err))
}

// bare is err without the path and the system call it happened in.
func bare(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errMissing
	case errors.Is(err, fs.ErrPermission):
		return errors.New("permission denied")
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return errors.New(e.Error())
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}
