package session

import (
	"context"
	"net"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// listener is a port that refuses from its Close on. Closing the descriptor is
// not enough: a process that is being started at that moment, by this run, by
// another or by the embedder, holds a copy of it until its exec.
type listener struct{ *net.TCPListener }

func listen() (net.Listener, error) {
	// The kernel closes a loopback connection when its other end dies, so
	// keep-alive probes would only cost each new connection their set-up.
	l, err := (&net.ListenConfig{KeepAlive: -1}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "are all local ports in use, or is the loopback interface down?", "no loopback port for the endpoint")
	}
	return listener{l.(*net.TCPListener)}, nil
}

func (l listener) Close() error {
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(unlisten) // fails where it is closed already
	}
	return l.TCPListener.Close()
}
