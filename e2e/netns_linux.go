package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// isolatedEnv tells the second start of the test binary that it is the one in
// the namespace. It is taken out again before a test runs.
const isolatedEnv = "DRAWBRIDGE_E2E_ISOLATED"

// Main runs m in a network namespace that holds only loopback, by starting the
// test binary a second time in it, and returns the exit code. It works as root
// and as an ordinary user, the latter where user namespaces are allowed. Where
// neither is, Isolated skips the tests that ask for it.
func Main(m *testing.M) int {
	if os.Getenv(isolatedEnv) != "" {
		os.Unsetenv(isolatedEnv)
		if err := loopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e: bringing loopback up:", err)
			return 1
		}
		isolated = true
		return m.Run()
	}
	for _, attr := range namespaces() {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Args[0] = os.Args[0]
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), isolatedEnv+"=1")
		cmd.SysProcAttr = attr
		if err := cmd.Start(); err != nil {
			why = err
			continue
		}
		err := cmd.Wait()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return max(1, exit.ExitCode())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
		return 0
	}
	return m.Run()
}

var (
	isolated bool
	why      error
)

// Isolated skips t unless it runs in a namespace that Main made.
func Isolated(t testing.TB) {
	t.Helper()
	if !isolated {
		t.Skipf("no network namespace can be made here, and a real CLI must not reach a network: %v", why)
	}
}

// namespaces are the ways to a network namespace: as root, then as a user who
// keeps the ids they have. The latter is given what brings loopback up and
// listens on it, inside the namespace.
func namespaces() []*syscall.SysProcAttr {
	uid, gid := os.Getuid(), os.Getgid()
	return []*syscall.SysProcAttr{
		{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL},
		{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
			AmbientCaps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW},
			Pdeathsig:   syscall.SIGKILL,
		},
	}
}

// loopbackUp brings lo up, which a fresh network namespace has down.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return err
	}
	return nil
}
