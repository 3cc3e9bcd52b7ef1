package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

// ID is the run's id.
func (s *Session) ID() string { return s.binding.Run }

// Level is sealed, open or embedded.
func (s *Session) Level() string { return s.level }

// URL is the endpoint's address.
func (s *Session) URL() string { return s.endpoint.URL() }

// Token is the run's bearer token.
func (s *Session) Token() string { return s.token }

// Tools are the names in the run's scope, sorted.
func (s *Session) Tools() []string { return s.scope.Names() }

// Folder is where the run keeps its record.
func (s *Session) Folder() string { return s.run.Path() }

// Head is the hash of the last audit line. Final once Close has returned.
func (s *Session) Head() string {
	select {
	case <-s.dead:
		return s.head
	default:
		return s.log.Head()
	}
}

// MCPConfig is the mcpServers JSON clients are configured with. It holds the
// token.
func (s *Session) MCPConfig() []byte { return s.mcpConfig(s.URL()) }

func (s *Session) mcpConfig(url string) []byte {
	type server struct {
		Type    string            `json:"type"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
		Timeout int               `json:"timeout"` // ms
	}
	b, _ := json.Marshal(map[string]map[string]server{"mcpServers": {
		s.cfg.Server: {"http", url, map[string]string{"Authorization": "Bearer " + s.token}, 120_000},
	}}) // strings and numbers always marshal
	return b
}

// Call takes a call of the embedder's own process through the gate.
func (s *Session) Call(ctx context.Context, tool string, args []byte) (call.Result, error) {
	return s.gate.Call(ctx, call.Request{Tool: tool, Arguments: args, Origin: call.FromEmbedder})
}

// Ready waits until a client has listed the tools. The error is ctx's, or one
// of kind NotReady where the session ended first.
func (s *Session) Ready(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	default:
	}
	select {
	case <-s.ready:
		return nil
	case <-s.dead:
		return fault.New(fault.NotReady, "", "the run ended before any client listed its tools")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the run: the port is closed, calls under way are cancelled and
// given their grace, and the record is closed and compared. It returns when all
// of that is done, also when called twice. The error is of kind Record where a
// line is missing.
func (s *Session) Close() error {
	err := s.closeWith(nil)
	told := err
	if told == nil && s.spec != nil { // else RunAgent or RunProgram has told it
		told = fault.New(fault.Interrupted, "", "the run was given up")
	}
	s.ended(Report{}, told)
	return err
}

// closeWith records code, the run's exit code so far, unless the record itself
// turns out to be incomplete.
func (s *Session) closeWith(code *int) error {
	s.closing.Do(func() {
		_ = s.endpoint.Close()
		for _, a := range s.gate.Close() {
			s.cfg.Logger.Warn("a tool did not return and was abandoned", "tool", a.Tool, "call", a.Call)
		}
		if s.desk != nil {
			s.desk.close()
		}
		// A command may be abandoned while its processes are still being ended.
		s.commands.Lock()
		head, err := s.log.Close(audit.Record{Totals: s.refusals.totals()})
		s.head = head
		if err != nil {
			s.unrecorded(err)
		}
		s.err = s.recordError()
		s.run.Meta.Head = head
		if s.err != nil {
			incomplete := int(fault.Record)
			s.run.Meta.Error, code = s.err.Error(), &incomplete
		}
		s.run.Meta.ExitCode = code
		backward(s.release)
		if err := s.run.End(s.cfg.Now()); err != nil {
			s.err = errors.Join(s.err, err)
		}
		close(s.dead)
	})
	<-s.dead
	return s.err
}

func backward(fs []func()) {
	for _, f := range slices.Backward(fs) {
		f()
	}
}

func (s *Session) unrecorded(err error) {
	s.cfg.Logger.Error("the audit record is incomplete", "err", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.incomplete == nil {
		s.incomplete = err
	}
}

func (s *Session) recordError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.incomplete == nil {
		return nil
	}
	return fault.Wrap(s.incomplete, fault.Record, "calls without a record were not run, or their results were withheld", "the record of run %s is incomplete", s.binding.Run)
}

func (s *Session) panicked(tool string, v any, stack []byte) {
	s.cfg.Logger.Error("a tool panicked", "tool", tool, "panic", s.mask(fmt.Sprint(v)), "stack", string(stack))
}

func (s *Session) listed() {
	s.listing.Do(func() {
		s.markReady()
		s.note("ready", "a client listed the tools")
		s.emit(event.Event{Kind: event.ToolsListed, Tools: s.scope.Names()})
	})
}

// mask takes known secrets out of text that is kept or shown.
func (s *Session) mask(text string) string {
	text, _ = s.secrets.String(text)
	return text
}

func (s *Session) note(what, detail string) {
	s.append(audit.Record{Kind: audit.Note, What: what, Detail: call.Clip(s.mask(detail))})
}

// append writes a line that no call waits for. One that comes after the close
// (a request that was being answered meanwhile) is not missing.
func (s *Session) append(r audit.Record) {
	if _, err := s.log.Append(r, false); err != nil && !errors.Is(err, audit.ErrClosed) {
		s.unrecorded(err)
	}
}

// refused counts a request that was refused before the gate. Only the first of
// a kind is a line: anybody on the machine can send more.
func (s *Session) refused(kind, detail string) {
	if !s.refusals.first(kind) {
		return
	}
	s.append(audit.Record{Kind: audit.Early, What: kind, Detail: call.Clip(s.mask(detail))})
}

func latch() (chan struct{}, func()) {
	c := make(chan struct{})
	return c, sync.OnceFunc(func() { close(c) })
}

func lookup(environ []string) func(string) string {
	return func(name string) string {
		for _, kv := range slices.Backward(environ) {
			if k, v, ok := strings.Cut(kv, "="); ok && k == name {
				return v
			}
		}
		return ""
	}
}

var swept struct {
	sync.Mutex
	dirs map[string]bool
}

// sweepOnce cleans up after dead runs, once for each state directory a process
// uses: an embedder starts many bridges.
func sweepOnce(dir *state.Dir) {
	swept.Lock()
	defer swept.Unlock()
	if swept.dirs[dir.Path()] {
		return
	}
	if swept.dirs == nil {
		swept.dirs = map[string]bool{}
	}
	swept.dirs[dir.Path()] = true
	Sweep(dir)
}

// Sweep ends and removes what dead runs left.
func Sweep(dir *state.Dir) {
	dir.Sweep(func(m state.Meta) {
		_, _ = proc.Sweep(m.ID)
		if m.TempDir != "" {
			sweepTemp(m.TempDir, m.ID)
		}
		_ = os.RemoveAll(filepath.Join(dir.Folder(m.ID), privateName))
		_ = os.Remove(filepath.Join(dir.Folder(m.ID), control.SocketName))
	})
}
