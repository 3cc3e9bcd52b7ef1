//go:build !unix

package builtin

// nonblock is nothing where no FIFO lies in a folder.
const nonblock = 0
