package control

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

func TestAnswer(t *testing.T) {
	f := serve(t)
	q, err := Pending(t.Context(), f.folder)
	if err != nil || !reflect.DeepEqual(q, []approve.Question{question}) {
		t.Fatalf("%+v, %v", q, err)
	}
	if err := Answer(t.Context(), f.folder, "Q2", approve.Answer{Yes: true}); !errors.Is(err, approve.ErrUnknown) {
		t.Error(err)
	}
	if err := Answer(t.Context(), f.folder, "broken", approve.Answer{}); err == nil || !strings.Contains(err.Error(), "the database is locked") {
		t.Error(err)
	}
	want := approve.Answer{Yes: true, Remember: true, Note: "für <b>alle</b>\u2028"}
	if err := Answer(t.Context(), f.folder, "Q1", approve.Answer{Yes: true, Remember: true, Note: want.Note, By: "terminal"}); err != nil {
		t.Fatal(err)
	}
	want.By = fmt.Sprintf("uid %d pid %d (control.test)", os.Geteuid(), os.Getpid())
	if a := f.desk.taken(); len(a) != 1 || a[0] != want {
		t.Errorf("%+v, want %+v", a, want)
	}
	err = Answer(t.Context(), f.folder, "Q1", approve.Answer{})
	if !errors.Is(err, approve.ErrSettled) || !strings.Contains(err.Error(), "approved by uid") {
		t.Error(err)
	}
	if q, err := Pending(t.Context(), f.folder); err != nil || q == nil || len(q) != 0 {
		t.Errorf("%#v, %v", q, err)
	}
	if err := Answer(t.Context(), f.folder, "Q1", approve.Answer{Note: strings.Repeat("x", maxRequest)}); err == nil || errors.Is(err, approve.ErrSettled) {
		t.Errorf("%.200v", err)
	}
}

// The state directory may lie deeper than an address of a socket is long, and
// the umask be anything.
func TestDeepFolderAnyUmask(t *testing.T) {
	for _, umask := range []int{0, 0o022, 0o777} {
		deep := t.TempDir()
		for len(deep) < 1000 {
			deep = filepath.Join(deep, strings.Repeat("d", 200))
		}
		if err := os.MkdirAll(deep, 0o700); err != nil {
			t.Fatal(err)
		}
		f := &fixture{folder: deep, desk: &desk{}}
		old := syscall.Umask(umask)
		f.listen(t)
		syscall.Umask(old)
		info, err := os.Lstat(filepath.Join(deep, SocketName))
		if err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("umask %04o: %v, %v", umask, info.Mode(), err)
		}
		if _, err := Pending(t.Context(), deep); err != nil {
			t.Error(err)
		}
	}
}

func TestClose(t *testing.T) {
	f := serve(t)
	f.desk.hold = make(chan struct{})
	stuck := make(chan error, 1)
	go func() { stuck <- Answer(t.Context(), f.folder, "Q1", approve.Answer{}) }()
	idle, err := net.Dial("unix", filepath.Join(f.folder, SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if _, err := idle.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var all sync.WaitGroup
	for range 3 {
		all.Go(f.Close)
	}
	all.Wait()
	if d := time.Since(began); d > limit-time.Second {
		t.Errorf("waited %s for its connections", d)
	}
	if err := <-stuck; err == nil {
		t.Error("an answer that was cut off is no success")
	}
	if names, err := os.ReadDir(f.folder); err != nil || len(names) != 0 {
		t.Errorf("left: %v, %v", names, err)
	}
	if _, err := Pending(t.Context(), f.folder); !errors.Is(err, ErrNobody) {
		t.Error(err)
	}
	f.listen(t) // the place is free again
	if _, err := Pending(t.Context(), f.folder); err != nil {
		t.Error(err)
	}
}

// After a kill -9 the socket is still there, and nobody behind it.
func TestDeadServer(t *testing.T) {
	folder := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(folder, SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if _, err := Pending(t.Context(), folder); !errors.Is(err, ErrNobody) {
		t.Error(err)
	}
}

func connect(t *testing.T, f *fixture) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", filepath.Join(f.folder, SocketName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.UnixConn)
}

// Whatever is wrong with a request is said, and nothing is answered.
func TestBadRequests(t *testing.T) {
	f := serve(t)
	good := `{"version":1,"nonce":%q,"op":"answer","id":"Q1","yes":true}`
	for line, want := range map[string]string{
		"nonsense\n":       "can't be read",
		"\n":               "can't be read",
		good + "\n" + good: "more than one request",
		good + "\n" + "\n": "more than one request",
		`{"version":1,"nonce":"guessed","op":"answer","id":"Q1","yes":true}` + "\n": "not of this connection",
		`{"version":1,"op":"answer","id":"Q1","yes":true}` + "\n":                   "not of this connection",
		`{"version":3,"nonce":%q,"op":"answer","id":"Q1","yes":true}` + "\n":        "version 3",
	} {
		c := connect(t, f)
		buf := make([]byte, 4096)
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		hello, err := parseAnswer(buf[:n])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(strings.ReplaceAll(line, "%q", `"`+hello.Nonce+`"`))); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%q: %q, %v; want %s", line, b, err, want)
		}
	}
	// A request that was sent before the server had judged the peer.
	c := connect(t, f)
	if _, err := c.Write([]byte(`{"version":1,"op":"answer","id":"Q1","yes":true}` + "\n")); err != nil {
		t.Fatal(err)
	}
	_ = c.CloseWrite()
	if b, _ := io.ReadAll(c); !bytes.Contains(b, []byte(`"error"`)) {
		t.Errorf("%q", b)
	}
	if f.desk.taken() != nil {
		t.Error("answered")
	}
}

// A request without end is cut off at its bound, not stored.
func TestField95_EndlessRequest(t *testing.T) {
	f := serve(t)
	c := connect(t, f)
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	var sent int64
	var err error
	for sent < 1<<30 && err == nil {
		var n int
		n, err = c.Write(chunk)
		sent += int64(n)
	}
	if err == nil || sent > 8<<20 {
		t.Errorf("%d bytes went in, %v", sent, err)
	}
	if _, err := Pending(t.Context(), f.folder); err != nil {
		t.Error(err)
	}
}

// Descriptors that are sent along do not stay open here.
func TestSentDescriptors(t *testing.T) {
	f := serve(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fds := make([]int, 100)
	for i := range fds {
		fds[i] = int(null.Fd())
	}
	c := connect(t, f)
	if _, err := c.Read(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.WriteMsgUnix([]byte("{}\n"), unix.UnixRights(fds...), nil); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(c); !bytes.Contains(b, []byte("sent descriptors")) {
		t.Errorf("%q", b)
	}
	if n := count(t); n > 50 {
		t.Errorf("%d descriptors are open", n)
	}
}

func count(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// Connections that say nothing hold a person up no longer than their 5 s.
func TestField95_IdleFlood(t *testing.T) {
	f := serve(t)
	for range maxConns + 4 {
		connect(t, f)
	}
	began := time.Now()
	if err := Answer(t.Context(), f.folder, "Q1", approve.Answer{}); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 29*time.Second {
		t.Errorf("took %s", d)
	}
}

// A run that connects as fast as it can keeps nobody out.
func TestFloodFromARun(t *testing.T) {
	f := serve(t)
	run(t, "flood", f.folder)
	for deadline := time.Now().Add(30 * time.Second); f.told.Load() < 100; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no flood")
		}
	}
	if err := Answer(t.Context(), f.folder, "Q1", approve.Answer{}); err != nil {
		t.Error(err)
	}
}

// A desk that does not answer is given up on; what came of it can't be told.
func TestDeskThatHangs(t *testing.T) {
	f := serve(t)
	f.desk.hold = make(chan struct{})
	err := Answer(t.Context(), f.folder, "Q1", approve.Answer{})
	if err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Error(err)
	}
	if f.desk.taken() != nil {
		t.Error("answered")
	}
}
