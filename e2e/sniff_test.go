//go:build linux

package e2e

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wire listens on loopback to what passes there, and so learns the token and
// the port of a run from the only place they have to be seen: the requests of
// its agent. Nothing of the run is changed for that.
type wire struct {
	t    testing.TB
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	tokens map[int]string // the first one that came to a port
	first  int            // the port of the first of all
}

var bearer = regexp.MustCompile(`(?i)\r\nauthorization: bearer ([0-9a-f]{64})\r\n`)

func newWire(t testing.TB) *wire {
	t.Helper()
	Isolated(t)
	// The kernel wants the protocol in the byte order of the network.
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		t.Skipf("the loopback of the namespace can't be listened to: %v", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<20)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, stop: make(chan struct{}), done: make(chan struct{}), tokens: map[int]string{}}
	go func() {
		defer close(w.done)
		defer unix.Close(fd)
		buf := make([]byte, 128<<10)
		for {
			select {
			case <-w.stop:
				return
			default:
			}
			if n, _, err := unix.Recvfrom(fd, buf, 0); err == nil {
				w.packet(buf[:n])
			}
		}
	}()
	t.Cleanup(func() { close(w.stop); <-w.done })
	return w
}

func (w *wire) packet(b []byte) {
	m := bearer.FindSubmatch(b)
	if m == nil || b[0]>>4 != 4 {
		return
	}
	head := int(b[0]&15) * 4
	w.mu.Lock()
	defer w.mu.Unlock()
	port := int(binary.BigEndian.Uint16(b[head+2:]))
	if w.tokens[port] == "" {
		w.tokens[port] = string(m[1])
	}
	if w.first == 0 {
		w.first = port
	}
}

// learn waits for the first request with a token, to any port.
func (w *wire) learn() (token string, port int) {
	w.t.Helper()
	return w.learnOf(0)
}

// learnOf is learn of one port, for where several runs are alive at once.
func (w *wire) learnOf(port int) (string, int) {
	w.t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		w.mu.Lock()
		if port == 0 {
			port = w.first
		}
		token := w.tokens[port]
		w.mu.Unlock()
		if token != "" {
			return token, port
		}
		if time.Now().After(limit) {
			w.t.Fatal("no request with a token was seen on loopback")
		}
	}
}

// spy keeps every command line and environment that any process has while it
// watches, as another user's ps would.
type spy struct {
	stop, done chan struct{}
	argv, env  map[string]bool
}

func newSpy(t testing.TB) *spy {
	s := &spy{stop: make(chan struct{}), done: make(chan struct{}), argv: map[string]bool{}, env: map[string]bool{}}
	look := func() {
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			if b, err := os.ReadFile(dir + "/cmdline"); err == nil {
				s.argv[string(b)] = true
			}
			if b, err := os.ReadFile(dir + "/environ"); err == nil {
				s.env[string(b)] = true
			}
		}
	}
	go func() {
		defer close(s.done)
		for {
			look()
			select {
			case <-s.stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(s.end)
	return s
}

func (s *spy) end() {
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	<-s.done
}

// saw counts the command lines that hold text, and the environments.
func (s *spy) saw(text string) (argv, env int) {
	s.end()
	for a := range s.argv {
		if strings.Contains(a, text) {
			argv++
		}
	}
	for e := range s.env {
		if strings.Contains(e, text) {
			env++
		}
	}
	return argv, env
}

// onDisk are the files under roots that hold text. Read files says how many
// were looked at.
func onDisk(text string, roots ...string) (found []string, read int) {
	for _, root := range roots {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			if b, err := os.ReadFile(path); err == nil {
				read++
				if bytes.Contains(b, []byte(text)) {
					found = append(found, path)
				}
			}
			return nil
		})
	}
	return found, read
}
