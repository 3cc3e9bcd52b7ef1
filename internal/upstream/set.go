package upstream

import (
	"context"
	"sync"
	"time"
)

// DefaultStartWait is how long a run waits for its servers.
const DefaultStartWait = 10 * time.Second

// Set is all servers of one run.
type Set struct {
	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	all  []Member
	late func(Member)
}

// Member is one server of a Set.
type Member struct {
	Name string
	// Upstream is nil where the server is not there: it failed, for which Err is
	// the reason, or it is on its way, and then Err is nil.
	Upstream *Upstream
	Err      error

	reported bool
}

// StartAll starts all servers at once and returns when each is there or has failed,
// or after wait (0 is DefaultStartWait). One that is slow or dead keeps up no other.
// Where a Required one is not there by then, or ctx ends, StartAll closes all and
// returns an *Error, or ctx's.
func StartAll(ctx context.Context, wait time.Duration, specs ...Spec) (*Set, error) {
	if wait <= 0 {
		wait = DefaultStartWait
	}
	s := &Set{all: make([]Member, len(specs))}
	s.life, s.end = context.WithCancel(context.Background())
	done := make(chan int, len(specs))
	for i, spec := range specs {
		s.all[i].Name = spec.Name
		s.running.Go(func() {
			u, err := Start(s.life, spec)
			s.arrived(i, u, err)
			done <- i
		})
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	var failed error
	for left := len(specs); left > 0 && failed == nil; {
		select {
		case i := <-done:
			left--
			s.mu.Lock()
			if specs[i].Required {
				failed = s.all[i].Err
			}
			s.mu.Unlock()
		case <-t.C:
			left = 0
		case <-ctx.Done():
			failed = ctx.Err()
		}
	}
	for i, m := range s.Members() {
		if failed == nil && specs[i].Required && m.Upstream == nil {
			if failed = m.Err; failed == nil {
				failed = specs[i].fail(Unavailable, "did not list its tools within %v, and is required", wait)
			}
		}
	}
	if failed != nil {
		s.Close()
		return nil, failed
	}
	return s, nil
}

func (s *Set) arrived(i int, u *Upstream, err error) {
	s.mu.Lock()
	m := &s.all[i]
	m.Upstream, m.Err = u, err
	late, told := s.late, *m
	if late != nil && u != nil && !m.reported {
		m.reported = true
	} else {
		late = nil
	}
	s.mu.Unlock()
	if late != nil {
		late(told)
	}
}

// Members are the servers in the order they were given, as they are now.
func (s *Set) Members() []Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Member(nil), s.all...)
}

// Late has join called for each server that comes from now on, once, and returns
// those that are there. Only the first call counts.
func (s *Set) Late(join func(Member)) []Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	var there []Member
	if s.late != nil {
		return nil
	}
	s.late = join
	for i := range s.all {
		if m := &s.all[i]; m.Upstream != nil {
			m.reported = true
			there = append(there, *m)
		}
	}
	return there
}

// Close ends all servers, at once, and returns when nothing is left of any. Closing
// again waits for the same.
func (s *Set) Close() {
	s.end()
	s.running.Wait()
	var ends sync.WaitGroup
	for _, m := range s.Members() {
		if m.Upstream != nil {
			ends.Go(m.Upstream.Close)
		}
	}
	ends.Wait()
}
