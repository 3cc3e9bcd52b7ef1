//go:build !linux

package control

import (
	"context"
	"net"
)

type place struct{ listener *net.UnixListener }

func listen(string) (*place, error) { return nil, ErrUnsupported }

func (*place) close() {}

func dial(context.Context, string) (net.Conn, error) { return nil, ErrUnsupported }

type peer struct{}

func judge(*net.UnixConn) (*peer, error) { return nil, ErrUnsupported }

func (*peer) readLine(*net.UnixConn) ([]byte, error) { return nil, ErrUnsupported }

func (*peer) same() error { return ErrUnsupported }

func (*peer) close() {}

func (*peer) String() string { return "" }

// OpenTerminal returns ErrUnsupported on this system.
func OpenTerminal() (*Terminal, error) { return nil, ErrUnsupported }

// HasTerminal is false on this system.
func HasTerminal() bool { return false }
