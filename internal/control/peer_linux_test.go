package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// childName is argument 0 of this test binary started as a child.
const childName = "control-test-child"

// child does one thing after the other. Those that start another child give it
// all that follows. Attackers speak the protocol by themselves, as nothing keeps
// them to our client.
func child(ops []string) {
	attr := &os.ProcAttr{Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{}}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(err)
	for i, op := range ops {
		rest := ops[i+1:]
		switch op {
		case "setsid": // the next child
			attr.Sys.Setsid = true
		case "bare": // the next child has no environment
			attr.Env = []string{}
		case "closed": // the next child has nothing of ours open
			attr.Files, attr.Dir = []*os.File{null, null, null}, "/"
		case "bg": // starts the rest, waits for it
			p := spawn(attr, rest)
			_, _ = p.Wait()
			return
		case "stay": // starts the rest and goes on living
			spawn(attr, rest)
			nap()
			return
		case "leave": // starts the rest and ends
			spawn(attr, rest)
			return
		case "orphan": // waits until its parent is gone
			for n := 0; os.Getppid() == parentAtStart && n < 200; n++ {
				time.Sleep(time.Millisecond)
			}
		case "answer": // FOLDER FILE: answers Q1 and writes to FILE what it got
			note(rest[1], attack(rest[0]))
			return
		case "client": // FOLDER FILE: the same, with our client
			note(rest[1], fmt.Sprint(Answer(context.Background(), rest[0], "Q1", approve.Answer{Yes: true})))
			return
		case "hand": // FOLDER FILE: connects, lets another process speak and ends
			c, err := net.Dial("unix", short(rest[0]))
			must(err)
			f, err := c.(*net.UnixConn).File()
			must(err)
			attr.Files = append(attr.Files, f)
			spawn(attr, []string{"speak", rest[1]})
			if len(rest) > 2 { // and stays
				nap()
			}
			return
		case "speak": // FILE: on a connection it was given
			c, err := net.FileConn(os.NewFile(3, "connection"))
			must(err)
			note(rest[0], speak(c))
			return
		case "listen": // FOLDER FILE: in the place of a run's drawbridge, or as one of its own
			_, err := Listen(rest[0], &desk{}, Options{})
			note(rest[1], fmt.Sprint(err))
			nap()
		case "terminal": // FILE: asks Q1 at the terminal, and writes the answer to FILE
			sitting(rest[0])
			return
		case "behind":
			behind(rest)
			return
		case "flood": // FOLDER: connects as fast as it can
			for path, all := short(rest[0]), []net.Conn(nil); ; {
				if c, err := net.Dial("unix", path); err == nil {
					all = append(all, c)
				} else if len(all) > 0 {
					_ = all[0].Close()
					all = all[1:]
				}
			}
		default:
			fmt.Fprintln(os.Stderr, "no such thing to do:", op)
			os.Exit(99)
		}
	}
}

var parentAtStart = os.Getppid()

func nap() { time.Sleep(2 * time.Minute) }

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(98)
	}
}

func spawn(attr *os.ProcAttr, ops []string) *os.Process {
	p, err := os.StartProcess("/proc/self/exe", append([]string{childName}, ops...), attr)
	must(err)
	return p
}

// note writes a file whole or not at all.
func note(file, text string) {
	must(os.WriteFile(file+".new", []byte(text), 0o600))
	must(os.Rename(file+".new", file))
}

// short is a path of the socket that fits into an address, for good.
func short(folder string) string {
	d, err := os.Open(folder)
	must(err)
	return "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/" + SocketName
}

func attack(folder string) string {
	c, err := net.Dial("unix", short(folder))
	if err != nil {
		return err.Error()
	}
	return speak(c)
}

// speak says yes to Q1 on a connection and returns the last line it got.
func speak(c net.Conn) string {
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	in := bufio.NewReader(c)
	hello, err := in.ReadBytes('\n')
	if err != nil {
		return err.Error()
	}
	var h answer
	if json.Unmarshal(hello, &h) != nil || h.Nonce == "" {
		return string(hello)
	}
	fmt.Fprintf(c, `{"version":1,"nonce":%q,"op":"answer","id":"Q1","yes":true}`+"\n", h.Nonce)
	line, err := in.ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return line
}

// said waits for what a child noted.
func said(t *testing.T, file string) string {
	t.Helper()
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil {
			return string(b)
		}
	}
	t.Fatalf("nothing in %s", file)
	return ""
}

type fixture struct {
	*Server
	folder string
	desk   *desk
	told   atomic.Int64 // of refusals
}

func serve(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{folder: t.TempDir(), desk: &desk{}}
	if err := os.Chmod(f.folder, 0o700); err != nil {
		t.Fatal(err)
	}
	f.listen(t)
	return f
}

func (f *fixture) listen(t *testing.T) {
	t.Helper()
	s, err := Listen(f.folder, f.desk, Options{Refused: func(detail string) {
		f.told.Add(1)
		if detail == "" || strings.ContainsAny(detail, "\n\x1b") {
			t.Errorf("told %q", detail)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	f.Server = s
	t.Cleanup(s.Close)
}

// run starts a child inside of a run.
func run(t *testing.T, ops ...string) *proc.Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := proc.Start(t.Context(), proc.Spec{
		Path: exe, Args: append([]string{childName}, ops...), Env: []string{"PATH=/usr/bin:/bin", "GORACE=atexit_sleep_ms=0"},
		Dir: "/", Marker: "outer-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36),
		Stderr: os.Stderr, Grace: 300 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.End(); _, _ = p.Wait() })
	return p
}

// outside starts a child that belongs to no run.
func outside(t *testing.T, env []string, ops ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env, cmd.Stderr = append([]string{childName}, ops...), env, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// Ways from a process to one that answers.
var ways = map[string][]string{
	"itself":      nil,
	"child":       {"bg"},
	"grandchild":  {"bg", "bg"},
	"session":     {"setsid", "bg"},
	"bare":        {"bare", "bg"},
	"bare daemon": {"bare", "closed", "setsid", "leave", "bare", "closed", "setsid", "leave", "orphan"},
	"daemon":      {"closed", "setsid", "leave", "setsid", "leave", "orphan"},
}

func TestWhoBelongsToARunIsRefused(t *testing.T) {
	for name, way := range ways {
		for _, how := range []string{"answer", "client"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				f := serve(t)
				file := filepath.Join(t.TempDir(), "said")
				ops := append(slices.Clone(way), how, f.folder, file)
				run(t, append([]string{"stay"}, ops...)...) // as the run ends with its program
				if got := said(t, file); !strings.Contains(got, ErrRefused.Error()) || !strings.Contains(got, "belongs to run outer-") {
					t.Errorf("got %q", got)
				}
				if f.desk.taken() != nil || f.told.Load() == 0 {
					t.Errorf("answers %+v, %d told", f.desk.taken(), f.told.Load())
				}
			})
		}
	}
}

func TestWhoBelongsToNoRunIsHeard(t *testing.T) {
	for name, way := range ways {
		for _, how := range []string{"answer", "client"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				f := serve(t)
				file := filepath.Join(t.TempDir(), "said")
				outside(t, nil, append(slices.Clone(way), how, f.folder, file)...)
				if got := said(t, file); got != "{\"version\":1}\n" && got != "<nil>" {
					t.Errorf("got %q", got)
				}
				a := f.desk.taken()
				if len(a) != 1 || !a[0].Yes || !strings.HasPrefix(a[0].By, fmt.Sprintf("uid %d pid ", os.Geteuid())) || f.told.Load() != 0 {
					t.Errorf("answers %+v, %d told", a, f.told.Load())
				}
			})
		}
	}
}

// The mark is enough where no helper is above, as after somebody killed it.
func TestMarkWithoutHelperIsRefused(t *testing.T) {
	f := serve(t)
	file := filepath.Join(t.TempDir(), "said")
	outside(t, []string{proc.MarkerEnv + "=gone/1"}, "bg", "answer", f.folder, file)
	if got := said(t, file); !strings.Contains(got, "belongs to run gone/1") {
		t.Errorf("got %q", got)
	}
}

// A drawbridge inside of a run asks the person outside, not the run around it.
func TestNestedRun(t *testing.T) {
	inner := t.TempDir()
	if err := os.Chmod(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	files := t.TempDir()
	run(t, "listen", inner, filepath.Join(files, "listening"))
	if got := said(t, filepath.Join(files, "listening")); got != "<nil>" {
		t.Fatal(got)
	}
	run(t, "answer", inner, filepath.Join(files, "another run"))
	if got := said(t, filepath.Join(files, "another run")); !strings.Contains(got, ErrRefused.Error()) {
		t.Errorf("got %q", got)
	}
	if err := Answer(t.Context(), inner, "Q1", approve.Answer{Yes: true}); err != nil {
		t.Error(err)
	}
}

// One process connects, another speaks: then it is neither's word.
func TestHandedOverConnectionIsRefused(t *testing.T) {
	for name, ops := range map[string][]string{"the connector is gone": nil, "the connector stays": {"stay"}} {
		t.Run(name, func(t *testing.T) {
			f := serve(t)
			file := filepath.Join(t.TempDir(), "said")
			outside(t, nil, append([]string{"hand", f.folder, file}, ops...)...)
			if got := said(t, file); !strings.Contains(got, ErrRefused.Error()) {
				t.Errorf("got %q", got)
			}
			if f.desk.taken() != nil {
				t.Errorf("answers %+v", f.desk.taken())
			}
		})
	}
}

// A number that is given to another process after its own has connected and
// ended does not make that one the peer.
func TestReusedProcessNumber(t *testing.T) {
	folder := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(folder, SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := filepath.Join(t.TempDir(), "said")
	attacker := outside(t, nil, "hand", folder, file)
	pid := attacker.Process.Pid
	if err := attacker.Wait(); err != nil {
		t.Fatal(err)
	}
	innocent := reuse(t, pid)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if innocent == nil {
		t.Log("no right to choose process numbers: only the death of the peer is tested")
	}
	if p, err := judge(conn.(*net.UnixConn)); !errors.Is(err, ErrRefused) {
		t.Errorf("%+v, %v", p, err)
	}

	// As on a kernel without descriptors of peers: what the other process sends
	// shows that it is another one.
	pid = os.Getpid()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{uid: uint32(os.Geteuid()), pid: pid, fd: fd}
	defer p.close()
	fmt.Fprintln(conn, `{"version":1,"nonce":"n"}`)
	if line, err := p.readLine(conn.(*net.UnixConn)); !errors.Is(err, ErrRefused) {
		t.Errorf("%q, %v", line, err)
	}
}

// reuse starts a process with that number, and returns nil where this one has
// no right to.
func reuse(t *testing.T, pid int) *exec.Cmd {
	for range 200 {
		if os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0) != nil {
			return nil
		}
		cmd := exec.Command("/bin/sleep", "300")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if cmd.Process.Pid == pid {
			return cmd
		}
		_ = cmd.Process.Kill()
	}
	return nil
}

func TestOtherUsersAreRefused(t *testing.T) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, other := range []uint32{0, 1} {
		p := &peer{uid: uint32(os.Geteuid()) + other, pid: os.Getpid(), fd: fd}
		if err := p.judge(); errors.Is(err, ErrRefused) != (other != 0) {
			t.Error(other, err)
		}
	}
	for _, pid := range []int{0, -1, 1 << 30} {
		p := &peer{uid: uint32(os.Geteuid()), pid: pid, fd: -1}
		if err := p.judge(); !errors.Is(err, ErrRefused) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

// Code of the run takes the place of the run's drawbridge, to be asked instead.
func TestImpostor(t *testing.T) {
	for _, name := range []string{"the run", "a command of it"} {
		t.Run(name, func(t *testing.T) {
			id := "impostor-" + strconv.FormatInt(time.Now().UnixNano(), 36)
			folder := filepath.Join(t.TempDir(), id)
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			marker := id
			if name != "the run" {
				marker += "/1"
			}
			file := filepath.Join(t.TempDir(), "listening")
			p, err := proc.Start(t.Context(), proc.Spec{Path: exe, Args: []string{childName, "bare", "bg", "listen", folder, file}, Dir: "/", Marker: marker, Grace: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { p.End(); _, _ = p.Wait() }()
			if got := said(t, file); got != "<nil>" {
				t.Fatal(got)
			}
			if q, err := Pending(t.Context(), folder); err == nil || !strings.Contains(err.Error(), "code of the run listens") {
				t.Errorf("%+v, %v", q, err)
			}
		})
	}
}

func TestReplacedSocket(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"a file":        func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"a link":        func(p string) error { return os.Symlink(filepath.Join(filepath.Dir(p), "real"), p) },
		"a FIFO":        func(p string) error { return unix.Mkfifo(p, 0o600) },
		"another place": func(p string) error { l, err := net.Listen("unix", p); go hangUp(l); return err },
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t)
			path := filepath.Join(f.folder, SocketName)
			if err := os.Rename(path, filepath.Join(f.folder, "real")); err != nil {
				t.Fatal(err)
			}
			if err := replace(path); err != nil {
				t.Fatal(err)
			}
			if q, err := Pending(t.Context(), f.folder); err == nil {
				t.Errorf("%+v", q)
			}
			f.Close()
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("Close removed what is not its own: %v", err)
			}
		})
	}
}

func hangUp(l net.Listener) {
	if c, err := l.Accept(); err == nil {
		_ = c.Close()
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
}

func TestFolderThatIsNoRuns(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	private := t.TempDir()
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(private, "link")
	if err := os.Symlink(private, link); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{open, link, filepath.Join(private, "none"), "/dev/null", ""} {
		if s, err := Listen(folder, &desk{}, Options{}); err == nil {
			s.Close()
			t.Errorf("listens in %q", folder)
		}
	}
	if _, err := Pending(t.Context(), private); !errors.Is(err, ErrNobody) {
		t.Error(err)
	}
	if _, err := Pending(t.Context(), filepath.Join(private, "none")); !errors.Is(err, ErrNobody) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
