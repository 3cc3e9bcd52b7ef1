//go:build !linux

package session

// unlisten does nothing: elsewhere no call takes a socket back from listening,
// and closing it has to do. Runs, which start processes, need Linux anyway.
func unlisten(uintptr) {}
