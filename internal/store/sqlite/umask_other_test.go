//go:build !unix

package sqlite

func umask(int) (restore func()) { return func() {} }
