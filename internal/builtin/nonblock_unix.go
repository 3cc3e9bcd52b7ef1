//go:build unix

package builtin

import "syscall"

const nonblock = syscall.O_NONBLOCK
