package approve

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

const (
	// DefaultHookTime is how long a hook's command may take.
	DefaultHookTime = 30 * time.Second
	// hooksAtOnce is how many commands of one run run at the same time.
	hooksAtOnce = 4
)

// Hook runs a command for each question, so that a chat bot or a pager can tell
// a person. It only tells: whoever answers does so through a door of the desk.
// The command gets one JSON object on its standard input: the fields of Question,
// and "event": "asked". Commands run beside the call that waits, few at once, and
// what becomes of them changes nothing but what Failed is told.
//
// Fields may be changed until the first Asked.
type Hook struct {
	Command []string // program and arguments; empty is no hook
	// Start runs a command to its end and returns why it failed. It must end the
	// command, and return, when ctx is done.
	Start func(ctx context.Context, argv []string, stdin []byte) error
	// Failed is told of each question whose command did not succeed. It must not
	// block; nil is nobody.
	Failed func(q Question, err error)
	// Timeout bounds one command; 0 is DefaultHookTime.
	Timeout time.Duration
	// MaxQueue is how many questions may wait for their command; 0 is
	// DefaultMaxOpen. Failed is told of more.
	MaxQueue int

	mu      sync.Mutex
	ended   context.Context
	end     context.CancelFunc
	queue   []Question
	running int
	workers sync.WaitGroup
	closed  bool
}

// ErrHookQueue: too many questions waited for the command. ErrHookEnded: the run
// was over before the command was. ErrHookTime: the command took longer than Timeout.
var (
	ErrHookQueue = errors.New("too many questions at once, the command was not run for this one")
	ErrHookEnded = errors.New("the run ended before the command did")
	ErrHookTime  = errors.New("it took too long and was ended")
)

// Asked has the command run for q, and returns at once. After Close it does
// nothing.
func (h *Hook) Asked(q Question) {
	if len(h.Command) == 0 {
		return
	}
	if !h.accept(q) {
		h.failed(q, ErrHookQueue)
	}
}

func (h *Hook) accept(q Question) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return true
	}
	most := h.MaxQueue
	if most <= 0 {
		most = DefaultMaxOpen
	}
	switch {
	case h.running < hooksAtOnce:
		if h.end == nil {
			h.ended, h.end = context.WithCancel(context.Background())
		}
		h.running++
		h.workers.Add(1)
		go h.work(q)
	case len(h.queue) < most:
		h.queue = append(h.queue, q)
	default:
		return false
	}
	return true
}

// work runs the command for q, and then for those that wait.
func (h *Hook) work(q Question) {
	defer h.workers.Done()
	for more := true; more; {
		if err := h.run(q); err != nil {
			h.failed(q, err)
		}
		q, more = h.next()
	}
}

func (h *Hook) next() (q Question, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue) == 0 {
		h.running--
		return Question{}, false
	}
	q, h.queue = h.queue[0], h.queue[1:]
	return q, true
}

func (h *Hook) run(q Question) error {
	if h.ended.Err() != nil {
		return ErrHookEnded
	}
	stdin, err := json.Marshal(struct {
		Event string `json:"event"`
		Question
	}{"asked", q})
	if err != nil {
		return err
	}
	limit := h.Timeout
	if limit <= 0 {
		limit = DefaultHookTime
	}
	ctx, cancel := context.WithTimeout(h.ended, limit)
	defer cancel()
	err = h.Start(ctx, h.Command, append(stdin, '\n'))
	switch {
	case err != nil && h.ended.Err() != nil:
		return ErrHookEnded
	case err != nil && ctx.Err() != nil:
		return ErrHookTime
	}
	return err
}

func (h *Hook) failed(q Question, err error) {
	if h.Failed != nil {
		h.Failed(q, err)
	}
}

// Close ends the commands and returns when Start has returned for each, or after
// 3 s. No further one is started. Close is idempotent.
func (h *Hook) Close() {
	h.mu.Lock()
	h.closed = true
	if h.end != nil {
		h.end()
	}
	h.mu.Unlock()
	waitFor(&h.workers, closeTime)
}
