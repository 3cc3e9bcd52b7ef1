package session

import "golang.org/x/sys/unix"

// unlisten ends the listening of the socket itself, whatever copies of its
// descriptor there are.
func unlisten(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }
