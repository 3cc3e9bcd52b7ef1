//go:build unix

package audit

import (
	"syscall"
	"testing"
)

func umask(m int) int { return syscall.Umask(m) }

func mkfifo(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skipf("a pipe can't be made here: %v", err)
	}
}
