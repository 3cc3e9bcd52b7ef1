package approve_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mem is a store in memory that can be made to fail.
type mem struct {
	mu   sync.Mutex
	list []approve.Question

	err  error         // of every call that writes
	slow bool          // every call that writes waits until its context ends
	wait time.Duration // that every call that writes takes
	hang chan struct{} // not nil: until it is closed, whatever the context says
	race func()        // called once, after the next Settle succeeded

	failed int // calls that failed because of err
}

func (m *mem) enter(ctx context.Context, write bool) error {
	m.mu.Lock()
	err, slow, hang, wait := m.err, m.slow, m.hang, m.wait
	m.mu.Unlock()
	if write {
		time.Sleep(wait)
	}
	if write && hang != nil {
		<-hang
	} else if write && slow {
		<-ctx.Done()
	}
	if !(write && hang != nil) && ctx.Err() != nil {
		return ctx.Err()
	}
	if write && err != nil {
		m.set(func(m *mem) { m.failed++ })
		return err
	}
	return nil
}

func (m *mem) set(f func(*mem)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m)
}

func (m *mem) find(id string) int {
	return slices.IndexFunc(m.list, func(q approve.Question) bool { return q.ID == id })
}

func (m *mem) Add(ctx context.Context, q approve.Question) error {
	if err := m.enter(ctx, true); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.find(q.ID) >= 0 || q.State != approve.Pending {
		return errors.New("can't be added")
	}
	m.list = append(m.list, q)
	return nil
}

func (m *mem) Settle(ctx context.Context, q approve.Question, from approve.State) error {
	if err := m.enter(ctx, true); err != nil {
		return err
	}
	m.mu.Lock()
	race := m.race
	defer func() {
		m.mu.Unlock()
		if race != nil {
			race()
		}
	}()
	i := m.find(q.ID)
	switch {
	case i < 0:
		race = nil
		return approve.ErrUnknown
	case m.list[i].State != from:
		race = nil
		return approve.ErrSettled
	}
	m.race = nil
	k := &m.list[i]
	k.State, k.By, k.Answered, k.Note, k.Remember = q.State, q.By, q.Answered, q.Note, q.Remember
	return nil
}

func (m *mem) Question(ctx context.Context, id string) (approve.Question, error) {
	if err := m.enter(ctx, false); err != nil {
		return approve.Question{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.find(id); i >= 0 {
		return m.list[i], nil
	}
	return approve.Question{}, approve.ErrUnknown
}

func (m *mem) Questions(ctx context.Context, run string, pending bool) ([]approve.Question, error) {
	if err := m.enter(ctx, false); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []approve.Question
	for _, q := range m.list {
		if (run == "" || q.Run == run) && (!pending || q.State == approve.Pending) {
			out = append(out, q)
		}
	}
	return out, nil
}

func (m *mem) Forget(ctx context.Context, run string) error {
	if err := m.enter(ctx, true); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = slices.DeleteFunc(m.list, func(q approve.Question) bool { return q.Run == run })
	return nil
}

// state is what the store has of a question.
func (m *mem) state(id string) approve.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.find(id); i >= 0 {
		return m.list[i].State
	}
	return ""
}

func TestMemIsAStore(t *testing.T) {
	storetest.Questions(t, func(*testing.T) (a, b approve.Store) {
		m := &mem{}
		return m, m
	})
}
