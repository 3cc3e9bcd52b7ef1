package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// Server listens for the answers to one run's questions.
type Server struct {
	handler Handler
	refused func(string)
	place   *place

	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{}
	served sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
}

// Listen listens in a run's folder, which must be of this user alone. The folder
// may lie as deep as it likes. Errors are of kind Usage; where the system can't
// tell who connects, ErrUnsupported is in the chain.
func Listen(folder string, h Handler, o Options) (*Server, error) {
	p, err := listen(folder)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, listenHint(err), "control socket of the run in %s", folder)
	}
	s := &Server{handler: h, refused: o.Refused, place: p, slots: make(chan struct{}, maxConns), conns: map[net.Conn]bool{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.served.Go(s.accept)
	return s, nil
}

func listenHint(err error) string {
	if errors.Is(err, ErrUnsupported) {
		return "answer at the terminal of the run"
	}
	return "the folder must be the run's own, and readable by you alone"
}

// Close ends the listening, removes the socket, cuts connections and returns
// when none is served any more. Closing again waits likewise.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.cancel()
		s.place.close()
		for c := range s.conns {
			_ = c.Close()
		}
	}
	s.mu.Unlock()
	s.served.Wait()
}

func (s *Server) accept() {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		conn, err := s.place.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // short of descriptors, which passes
			<-s.slots
			select {
			case <-time.After(50 * time.Millisecond):
			case <-s.ctx.Done():
				return
			}
		case s.enter(conn):
			s.served.Go(func() {
				defer func() { <-s.slots }()
				defer s.leave(conn)
				s.serve(conn)
			})
		default:
			return
		}
	}
}

func (s *Server) enter(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return false
	}
	s.conns[c] = true
	return true
}

func (s *Server) leave(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// serve takes one connection to its end. A peer that does not speak has 5 s.
func (s *Server) serve(conn *net.UnixConn) {
	_ = conn.SetDeadline(time.Now().Add(limit))
	say := func(a answer) { _, _ = conn.Write(encode(a)) } // to a peer that went away
	p, err := judge(conn)
	if err != nil {
		s.refuse(say, err)
		return
	}
	defer p.close()
	nonce := rand.Text()
	say(answer{Version: version, Nonce: nonce})
	line, err := p.readLine(conn)
	if err == nil {
		err = p.same()
	}
	if err != nil {
		if errors.Is(err, ErrRefused) {
			s.refuse(say, err)
		} else {
			say(failed(err))
		}
		return
	}
	r, err := parseRequest(line)
	if err == nil && r.Nonce != nonce {
		err = errors.New("the request is not of this connection")
	}
	if err != nil {
		say(failed(err))
		return
	}
	a := s.do(r, p.String())
	// What the desk took is not the peer's time.
	_ = conn.SetDeadline(time.Now().Add(limit))
	say(a)
}

func (s *Server) do(r request, by string) answer {
	if r.Op == opPending {
		questions := s.handler.Pending()
		if questions == nil {
			questions = []approve.Question{}
		}
		return answer{Version: version, Questions: questions}
	}
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	err := s.handler.Answer(ctx, r.ID, approve.Answer{Yes: r.Yes, Note: r.Note, Remember: r.Remember, By: by})
	if err != nil {
		return failed(err)
	}
	return answer{Version: version}
}

func (s *Server) refuse(say func(answer), err error) {
	if s.refused != nil {
		s.refused(err.Error())
	}
	say(failed(err))
}

// refusal is why a peer is not heard.
func refusal(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}
