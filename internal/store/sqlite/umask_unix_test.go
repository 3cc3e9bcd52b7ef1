//go:build unix

package sqlite

import "syscall"

func umask(mask int) (restore func()) {
	old := syscall.Umask(mask)
	return func() { syscall.Umask(old) }
}
