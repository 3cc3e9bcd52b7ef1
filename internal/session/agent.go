package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/gate"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// Agent is the agent CLI a run starts.
type Agent struct {
	CLI      agent.CLI
	Path     string // of the CLI; "" looks on the PATH
	Prompt   []byte
	Model    string
	Dirs     []string // further folders the CLI may name
	OwnTools agent.OwnTools
	Args     []string
	Env      []string // NAME=VALUE

	Wall   time.Duration // whole run; 0 is DefaultWall
	Budget float64       // US dollars the run may cost, by what the CLI reports; 0 is none
	Ready  time.Duration // until the tools are listed; 0 is DefaultReady
	Idle   time.Duration // silence of the CLI while no tool runs; 0 is DefaultIdle
	Linger time.Duration // between its last word and its exit; 0 is DefaultLinger
}

// Defaults of Agent.
const (
	DefaultWall   = 30 * time.Minute
	DefaultReady  = 60 * time.Second
	DefaultIdle   = 15 * time.Minute
	DefaultLinger = 5 * time.Second
)

// MaxPrompt is how many bytes a prompt may have.
const MaxPrompt = 16 << 20

const (
	maxLine       = 8 << 20   // of the CLI's stream; a longer one is skipped
	maxTranscript = 256 << 20 // bytes kept of the stream
	maxStderr     = 16 << 20
	stderrTail    = 4 << 10 // shown when the CLI fails
	maxObserved   = 1000    // own-tool calls noted in the record
)

// Report is what came of an agent run.
type Report struct {
	OK        bool
	Text      string // the model's last answer
	Usage     *event.Usage
	CostUSD   *float64
	Turns     int
	AgentCode int // exit code of the CLI, 128+N after signal N; -1 where it never started
	Calls     int64
	Refused   int64
	Leftovers []string
	Notes     []string
	Duration  time.Duration
}

// prepare readies what the run will start, before the record is opened: the
// record begins with the digest of its command line.
func (s *Session) prepare(url string, asking bool) error {
	switch {
	case s.cfg.Agent != nil:
		return s.prepareAgent(url, asking)
	case s.cfg.Program != nil:
		return s.prepareProgram(url)
	}
	return nil
}

func (s *Session) prepareAgent(url string, asking bool) error {
	a := s.cfg.Agent
	for _, d := range []struct {
		name string
		time time.Duration
	}{{"wall time", a.Wall}, {"time until the tools are listed", a.Ready}, {"time of silence", a.Idle}, {"time to exit", a.Linger}} {
		if d.time < 0 {
			return fault.New(fault.Usage, "give a positive time; 0 is the default", "the agent's %s is negative: %s", d.name, d.time)
		}
	}
	if a.Budget < 0 || a.Budget > math.MaxFloat64 || a.Budget != a.Budget {
		return fault.New(fault.Usage, "give US dollars, like 2.50; 0 is none", "the agent's budget is %v", a.Budget)
	}
	a.Wall, a.Ready = or(a.Wall, DefaultWall), or(a.Ready, DefaultReady)
	a.Idle, a.Linger = or(a.Idle, DefaultIdle), or(a.Linger, DefaultLinger)
	if err := checkPrompt(a.Prompt); err != nil {
		return err
	}
	if s.cfg.Folder == "" {
		return fault.New(fault.Usage, "give the run a folder", "an agent works in a folder, and there is none")
	}
	if err := helper(); err != nil {
		return err
	}
	dirs := make([]string, len(a.Dirs))
	for i, d := range a.Dirs {
		var err error
		if dirs[i], err = checkFolder("further folder", d); err != nil {
			return err
		}
	}
	found, err := a.CLI.Find(a.Path, s.cfg.Environ)
	if err != nil {
		return err
	}
	private, err := s.privateDir()
	if err != nil {
		return err
	}
	temp, err := s.tempDir()
	if err != nil {
		return err
	}
	spec, err := a.CLI.Command(found, agent.Plan{
		Server: s.cfg.Server, URL: url, Token: s.token, Tools: s.scope.Names(), Prompt: a.Prompt,
		Folder: s.cfg.Folder, Dirs: dirs, Model: a.Model, OwnTools: a.OwnTools, Budget: a.Budget, Args: a.Args, Env: a.Env,
		Environ: s.cfg.Environ, PrivateDir: private, TempDir: temp, CallTimeout: s.callTimeout(asking),
	})
	if err != nil {
		return err
	}
	s.spec = &spec
	return nil
}

// callTimeout is what the CLI is told; a little above our own, so that the
// model gets our words and not its CLI's. asking calls also wait for a person.
func (s *Session) callTimeout(asking bool) time.Duration {
	d := or(s.cfg.Limits.Call, gate.DefaultCall) + 30*time.Second
	if asking {
		d += or(s.cfg.Approvals.Expiry, approve.DefaultExpiry)
	}
	return d
}

func checkPrompt(p []byte) error {
	switch {
	case strings.TrimSpace(string(p)) == "":
		return fault.New(fault.Usage, "give it after --, with --prompt-file, or through a pipe", "the prompt is empty")
	case len(p) > MaxPrompt:
		return fault.New(fault.Usage, "put the bulk into a file the agent can read", "the prompt has %d bytes, more than %d", len(p), MaxPrompt)
	}
	if i := strings.IndexByte(string(p), 0); i >= 0 {
		return fault.New(fault.Usage, "remove it", "the prompt has a NUL byte at offset %d", i)
	}
	return nil
}

// RunAgent starts the prepared CLI, waits until it and everything it started is
// dead, and closes the session. The error is nil only for a run that did its
// work with a whole record; its kind is the exit code.
func (s *Session) RunAgent(ctx context.Context) (Report, error) {
	began := s.cfg.Now()
	w := &watch{s: s, a: s.cfg.Agent, parser: agent.ParserFor(s.cfg.Agent.CLI, s.cfg.Server), stopped: make(chan *fault.Error, 8), finished: make(chan struct{}), spoke: make(chan struct{}, 1)}
	exit, err := w.supervise(ctx)
	rep := w.report(exit)
	rep.Duration = s.cfg.Now().Sub(began)
	if err == nil {
		err = w.judge(exit)
	}
	if w.started {
		s.note("agent", "the agent ended: "+w.how(exit))
	} else {
		rep.AgentCode = -1
		s.note("agent", "the agent was not started")
	}
	err = s.finish(err)
	rep.Calls, rep.Refused = s.follow.done, s.follow.not
	rep.OK = err == nil
	s.ended(rep, err)
	return rep, err
}

// finish closes the session under err. An incomplete record outweighs every
// other end of a run.
func (s *Session) finish(err error) error {
	if err != nil {
		s.run.Meta.Error = s.mask(err.Error())
		s.note("ended", err.Error())
	}
	code := 0
	if err != nil {
		code = int(fault.KindOf(err))
	}
	if cerr := s.closeWith(&code); cerr != nil {
		return cerr
	}
	return err
}

// watch follows one CLI from start to death.
type watch struct {
	s      *Session
	a      *Agent
	parser agent.Parser

	stopped  chan *fault.Error // reasons to end it; the first one counts
	finished chan struct{}     // closed when the CLI reported its end
	spoke    chan struct{}     // it printed something
	errTail  tail
	started  bool

	mu       sync.Mutex
	end      *event.Event
	observed int
	notes    []string
}

func (w *watch) supervise(ctx context.Context) (proc.Exit, error) {
	s := w.s
	transcript, err := s.keep("transcript.jsonl", maxTranscript)
	if err != nil {
		return proc.Exit{}, err
	}
	defer transcript.Close()
	stderr, err := s.keep("stderr.log", maxStderr)
	if err != nil {
		return proc.Exit{}, err
	}
	defer stderr.Close()
	lines := proc.NewLines(maxLine, w.line)
	w.errTail.kept.Max = stderrTail
	tail := s.secrets.Writer(&w.errTail)

	spec := *s.spec
	spec.Marker = s.binding.Run
	spec.Stdout = io.MultiWriter(lines, transcript)
	spec.Stderr = io.MultiWriter(stderr, tail)
	s.emit(event.Event{
		Kind: event.Notice, Level: s.level, Workspace: s.binding.Workspace, Channel: s.binding.Channel,
		User: s.binding.User, Agent: s.binding.Agent, Tools: s.scope.Names(), Status: "starting",
		Text: fmt.Sprintf("level %s, wall time %s%s", s.level, w.a.Wall, budgetText(w.a.Budget)),
	})
	if ctx.Err() != nil {
		return proc.Exit{}, fault.New(fault.Interrupted, "", "interrupted before the agent was started")
	}
	p, err := proc.Start(context.Background(), spec)
	if err != nil {
		return proc.Exit{}, fault.Wrap(err, fault.Agent, startHint(err), "start %s", spec.Path)
	}
	defer func() { // whatever happens here, nothing is left alive
		p.End()
		_, _ = p.Wait()
	}()
	w.started = true
	reason := w.wait(ctx, p)
	if reason != nil {
		_ = s.endpoint.Close() // who is being ended calls nothing more, however long that takes
		p.End()
	}
	s.events.freeze() // a follower that is stuck must not hold up the end
	exit, err := p.Wait()
	_ = lines.Close()
	_ = tail.Close()
	if err != nil {
		return exit, fault.Wrap(err, fault.Agent, "", "supervision of %s", spec.Path)
	}
	if exit.LostHelper {
		w.noteLater(lostHelper)
	}
	if n := len(exit.Leftovers); n > 0 {
		w.noteLater(fmt.Sprintf("unfinished background work was ended: %s", strings.Join(exit.Leftovers, ", ")))
	}
	if reason != nil {
		return exit, reason
	}
	return exit, nil
}

// wait returns nil when the CLI ended by itself or after its last word, else
// why it has to be ended.
func (w *watch) wait(ctx context.Context, p *proc.Process) *fault.Error {
	wall := time.NewTimer(w.a.Wall)
	defer wall.Stop()
	ready := time.NewTimer(w.a.Ready)
	defer ready.Stop()
	idle := time.NewTimer(w.a.Idle)
	defer idle.Stop()
	listed := w.s.ready
	for {
		select {
		case <-p.Exited():
			return nil
		case err := <-w.stopped:
			return err
		case <-ctx.Done():
			return fault.New(fault.Interrupted, "", "interrupted")
		case <-w.s.dead:
			return fault.New(fault.Interrupted, "", "the bridge was closed under the run")
		case <-wall.C:
			return fault.New(fault.Wall, "give more with --timeout", "the run took longer than %s", w.a.Wall)
		case <-listed:
			listed = nil
			ready.Stop()
		case <-ready.C:
			return w.notReady(fmt.Sprintf("within %s", w.a.Ready))
		case <-w.spoke:
			idle.Reset(w.a.Idle)
		case <-idle.C:
			if w.s.gate.Busy() {
				idle.Reset(w.a.Idle)
				continue
			}
			return fault.New(fault.Agent, "give more with --idle-timeout", "no result event: the agent printed nothing for %s", w.a.Idle)
		case <-w.finished:
			return w.linger(ctx, p)
		}
	}
}

// linger gives a CLI that has reported its end a moment to exit.
func (w *watch) linger(ctx context.Context, p *proc.Process) *fault.Error {
	t := time.NewTimer(w.a.Linger)
	defer t.Stop()
	select {
	case <-p.Exited():
	case <-t.C:
		w.noteLater("killed after result: the agent had reported its end and did not exit")
		_ = w.s.endpoint.Close()
		p.End()
	case err := <-w.stopped:
		return err
	case <-ctx.Done():
		return fault.New(fault.Interrupted, "", "interrupted")
	}
	return nil
}

// line is called for each line of the CLI's stream, from one goroutine.
func (w *watch) line(b []byte, cut bool) {
	select {
	case w.spoke <- struct{}{}:
	default:
	}
	if cut {
		w.s.emit(event.Event{Kind: event.Notice, Text: fmt.Sprintf("a line of the agent's stream was longer than %d bytes and was skipped", maxLine)})
	}
	for _, e := range w.parser.Line(b, cut) {
		w.event(e)
	}
	w.s.events.await()
}

func (w *watch) event(e event.Event) {
	s := w.s
	w.redact(&e)
	switch e.Kind {
	case event.Started:
		e.Level = s.level
		if foreign := agent.Foreign(w.a.CLI, s.cfg.Server, e.Tools); s.level == Sealed && len(foreign) > 0 {
			w.stop(fault.New(fault.Agent, "the CLI may be of a version this one does not know; see drawbridge doctor",
				"the run is sealed, and the agent announced tools that are not ours: %s", strings.Join(foreign[:min(8, len(foreign))], ", ")))
		}
		if e.Status != "" && e.Status != "connected" {
			w.noteLater("the agent reported its MCP server as " + e.Status)
		}
	case event.ToolCall:
		if e.Observed && s.level != Sealed {
			w.observe(e)
		}
	case event.Finished:
		w.mu.Lock()
		first := w.end == nil
		w.end = &e
		w.mu.Unlock()
		if first {
			if w.a.Budget > 0 && e.CostUSD == nil {
				w.noteLater("the agent reported no cost: whether it kept to its budget is not known")
			}
			close(w.finished)
		}
	}
	s.emit(e)
}

// observe puts on record what an agent said it did with tools of its own.
func (w *watch) observe(e event.Event) {
	w.mu.Lock()
	w.observed++
	n := w.observed
	w.mu.Unlock()
	switch {
	case n <= maxObserved:
		w.s.note("observed", "the agent said that it called its own tool "+call.Clip(e.Tool))
	case n == maxObserved+1:
		w.s.note("observed", "further calls of its own tools are only in the transcript")
	}
}

// redact masks what the agent may have repeated. It knows its token.
func (w *watch) redact(e *event.Event) {
	for _, f := range []*string{&e.Text, &e.Result, &e.Tool, &e.Status, &e.Model, &e.Version, &e.CallID} {
		*f = w.s.mask(*f)
	}
	if e.Arguments != nil {
		e.Arguments, _ = w.s.secrets.Bytes(e.Arguments)
	}
	for i := range e.Tools {
		e.Tools[i] = w.s.mask(e.Tools[i])
	}
}

const lostHelper = "the process helper was killed; its processes were found by their mark and ended, but one that had cleared its environment and left its session may have got away"

// startHint is what to do about a process that could not be started.
func startHint(err error) string {
	if e, ok := errors.AsType[*proc.StartError](err); ok {
		return e.Hint
	}
	return ""
}

func (w *watch) stop(err *fault.Error) {
	select {
	case w.stopped <- err:
	default:
	}
}

func (w *watch) noteLater(text string) {
	w.mu.Lock()
	w.notes = append(w.notes, text)
	w.mu.Unlock()
	w.s.note("notice", text)
	w.s.emit(event.Event{Kind: event.Notice, Text: text})
}

func (w *watch) report(exit proc.Exit) Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := Report{AgentCode: exit.Code, Leftovers: exit.Leftovers, Notes: w.notes}
	if w.end != nil {
		r.Text, r.Usage, r.CostUSD, r.Turns = w.end.Text, w.end.Usage, w.end.CostUSD, w.end.Turns
	}
	return r
}
