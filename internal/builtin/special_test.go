//go:build unix

package builtin

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func TestSpecialFiles(t *testing.T) {
	b := newBox(t)
	b.must(syscall.Mkfifo(filepath.Join(b.folder, "fifo"), 0o644))
	t.Chdir(b.folder) // a socket's path is short
	l, err := net.Listen("unix", "sock")
	b.must(err)
	defer l.Close()
	paths := []string{"fifo", "sock", "link"}
	b.link("fifo", "link")
	if syscall.Mknod(filepath.Join(b.folder, "null"), syscall.S_IFCHR|0o666, 1<<8|3) == nil {
		paths = append(paths, "null")
	}
	for _, p := range paths {
		b.everyTool(p, func(tool string, r call.Result) {
			if !r.IsError || all(r) != neutral(p) {
				t.Errorf("%s %s: %s", tool, p, all(r))
			}
		})
	}
	if got := b.ok("list_files", args{}); !strings.Contains(got, "fifo (special file)\n") {
		t.Errorf("list: %q", got)
	}
	b.ok("search_files", args{"pattern": "x"})
}

// A FIFO that takes a file's place just before it is opened must not keep the
// call waiting for somebody to write.
func TestFifoSwappedIn(t *testing.T) {
	b := newBox(t)
	stop := make(chan struct{})
	wg := b.churn("f", stop,
		func(p string) { os.WriteFile(p, []byte("SENT"), 0o644) },
		func(p string) { syscall.Mkfifo(p, 0o644) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
			b.everyTool("f", func(string, call.Result) {})
			b.call("search_files", args{"pattern": "SENT"})
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("a call hangs")
	}
	close(stop)
	wg.Wait()
}

func TestFilesHaveTheUsersMode(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	b := newBox(t)
	b.ok("write_file", args{"path": "d/f", "content": "x"})
	for p, want := range map[string]os.FileMode{"d": 0o750, "d/f": 0o640} {
		if info, err := os.Stat(filepath.Join(b.folder, p)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", p, info.Mode(), err)
		}
	}
	b.put("private", "x")
	b.must(os.Chmod(filepath.Join(b.folder, "private"), 0o606))
	b.ok("edit_file", args{"path": "private", "old": "x", "new": "y"})
	if info, err := os.Stat(filepath.Join(b.folder, "private")); err != nil || info.Mode().Perm() != 0o606 {
		t.Errorf("private: %v %v", info.Mode(), err)
	}
}
