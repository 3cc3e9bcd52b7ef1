//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/audit"
)

// These tests give the command a machine that lacks something.

// TestDiskFull: the disk with the record fills up in the middle of a run. A
// call whose line can't be written does not run, and the run says so.
func TestDiskFull(t *testing.T) {
	for name, flag := range map[string]string{"tools that write": "write_file", "tools that read": "read_file"} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, nil)
			disk, kept := filepath.Dir(p.state), filepath.Join(t.TempDir(), "kept")
			if err := os.MkdirAll(disk, 0o700); err != nil {
				t.Fatal(err)
			}
			// A page that is begun takes some lines more, so there are many.
			const calls = 30
			var script strings.Builder
			fmt.Fprintf(&script, "call %s {\"path\":\"f-before\",\"content\":\"x\"}\n", flag)
			fmt.Fprintf(&script, "exec dd if=/dev/zero of=%s/fill bs=4k 2>/dev/null; ls %[1]s\n", disk)
			for i := range calls {
				fmt.Fprintf(&script, "call %s {\"path\":\"f-%02d\",\"content\":%q}\n", flag, i, strings.Repeat("x", 600))
			}
			script.WriteString("say done\n")
			c := p.prepare("run", "--agent", "scripted", "--own-tools", "exec", "--allow", flag, "--json", "--", script.String())
			c.through(`mount --make-rprivate / && mount -t tmpfs -o size=256k,mode=0700 none ` + disk + ` || exit 77; "$@"; code=$?; rm -f ` + disk + `/fill; cp -r ` + disk + ` ` + kept + `; exit $code`)
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
			if os.Getuid() != 0 {
				c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
				c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
				c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
			}
			if err := c.Start(); err != nil {
				t.Skipf("no mount namespace can be made here: %v", err)
			}
			c.began()
			<-c.done
			if c.ProcessState.ExitCode() == 77 {
				t.Skipf("no file system can be mounted here: %s", c.err)
			}
			c.ends(5)
			c.says("is incomplete", "no space left on device", "hint: ")

			files, _ := filepath.Glob(filepath.Join(kept, "drawbridge", "runs", "*", "audit.jsonl"))
			if len(files) != 1 {
				t.Fatalf("records: %q", files)
			}
			b, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			rep, err := audit.Verify(bytes.NewReader(b), "")
			if err != nil || rep.Problem != "" {
				t.Errorf("record: %+v, %v", rep, err)
			}
			var begun []string
			_ = audit.Read(bytes.NewReader(b), func(r audit.Record) error {
				if r.Kind == audit.Begin {
					_, path, _ := strings.Cut(string(r.Arguments), `"path":"`)
					path, _, _ = strings.Cut(path, `"`)
					begun = append(begun, path)
				}
				return nil
			})
			if len(begun) == 0 || begun[0] != "f-before" || len(begun) > calls/2 {
				t.Errorf("on record: %q", begun)
			}
			ran, _ := filepath.Glob(filepath.Join(p.folder, "f-*"))
			for i := range ran {
				ran[i] = filepath.Base(ran[i])
			}
			// Promise 2: what ran is on record. The last line may be of a call
			// that did not get to run.
			for _, path := range ran {
				if !slices.Contains(begun, path) {
					t.Errorf("%s was written and is not on record", path)
				}
			}
			if flag == "write_file" && (len(ran) == 0 || len(ran) < len(begun)-1) {
				t.Errorf("written %q, on record %q", ran, begun)
			}
			p.swept(filepath.Dir(files[0]))
		})
	}
}

// TestNoPortIsLeft is port exhaustion: the one port that the system may choose
// is taken.
func TestNoPortIsLeft(t *testing.T) {
	p := newPlace(t, nil)
	const setting = "/proc/sys/net/ipv4/ip_local_port_range"
	before, err := os.ReadFile(setting)
	if err != nil {
		t.Skipf("the range of ports is not known: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if err := os.WriteFile(setting, fmt.Appendf(nil, "%d %d", port, port), 0o644); err != nil {
		t.Skipf("the range of ports can't be changed: %v", err)
	}
	defer func() {
		if err := os.WriteFile(setting, before, 0o644); err != nil {
			t.Error(err)
		}
	}()
	c := p.start("run", "--agent", "scripted", "--json", "--", "say a")
	c.ends(2)
	c.says("error: ", "127.0.0.1", "address already in use", "hint: ")
	if left, _ := filepath.Glob(filepath.Join(p.state, "runs", "*")); len(left) > 0 {
		t.Errorf("a run that never began is on record: %q", left)
	}
}

// TestStateDirectoryIsReadOnly needs somebody whom modes bind.
func TestStateDirectoryIsReadOnly(t *testing.T) {
	p := newPlace(t, nil)
	// Every folder on the way has to be open to somebody else.
	base, err := os.MkdirTemp("", "db")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range []string{base, base + "/own"} {
			_ = os.Chmod(dir, 0o700)
		}
		_ = os.RemoveAll(base)
	})
	own, temp := filepath.Join(base, "own"), filepath.Join(base, "temp")
	for _, dir := range []string{own, temp} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		const nobody = 65534
		attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		for _, dir := range []string{own, temp} {
			if err := os.Chown(dir, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chmod(own, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(base, 0o555); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"it can't be made": filepath.Join(base, "new"), "it can't be written": own} {
		t.Run(name, func(t *testing.T) {
			for _, args := range [][]string{{"run", "--agent", "scripted", "--folder", temp}, {"exec", "--folder", temp}, {"memory", "add", "--workspace", "w"}} {
				c := p.prepare(append(args, "--state-dir", dir, "--", "true")...)
				c.Dir, c.SysProcAttr = temp, attr
				c.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + temp, "TMPDIR=" + temp}
				c.begin().ends(2)
				c.says("error: state directory "+dir, "permission denied", "hint: give a directory that you can write")
			}
		})
	}
	if left, err := os.ReadDir(temp); err != nil && !errors.Is(err, fs.ErrPermission) || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
