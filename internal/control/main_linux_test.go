package control

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

func TestMain(m *testing.M) {
	proc.Helper()
	if os.Args[0] == childName {
		child(os.Args[1:])
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// desk is a Handler with one question, Q1, which is settled by its first answer.
type desk struct {
	mu      sync.Mutex
	answers []approve.Answer
	hold    chan struct{} // Answer waits for it, or for its context
}

func (d *desk) Pending() []approve.Question {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.answers) > 0 {
		return nil
	}
	return []approve.Question{question}
}

func (d *desk) Answer(ctx context.Context, id string, a approve.Answer) error {
	if d.hold != nil {
		select {
		case <-d.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case id == "broken":
		return fmt.Errorf("the database is locked")
	case id != question.ID:
		return fmt.Errorf("question %s: %w", id, approve.ErrUnknown)
	case len(d.answers) > 0:
		return fmt.Errorf("%w: approved by %s", approve.ErrSettled, d.answers[0].By)
	}
	d.answers = append(d.answers, a)
	return nil
}

func (d *desk) taken() []approve.Answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.answers
}
