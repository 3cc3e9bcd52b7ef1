package session

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/builtin"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/catalogue"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/redact"
	"github.com/drawbridge-mcp/drawbridge/internal/upstream"
)

// Upstream is an MCP server whose tools the run can be given, by the names
// "Name/tool". It has a Command or a URL.
type Upstream struct {
	Name string
	// Command is a program, absolute or a name on the PATH, and its arguments. It
	// gets the environment of a command of the run, and Env.
	Command []string
	Env     map[string]string
	Dir     string // its working directory; "" is the run's folder, or without one the run's temporary one
	URL     string
	Headers map[string]string
	// Required makes the run fail to start where the server does not come up.
	Required bool
	// SandboxOff accepts that Command runs unconfined.
	SandboxOff bool
	// Effects are those of a tool, by the server's name for it. nil: Destructive.
	Effects func(tool string) call.Effects
}

// upstreams are the servers of one run.
type upstreams struct {
	set   *upstream.Set
	tools []call.Tool

	mu    sync.Mutex
	note  func(text string) // nil until there is a record
	early []string          // what was noted before
	logs  map[string]*lateLog
}

// maxEarly is how many notes wait for the record to be opened.
const maxEarly = 200

func (u *upstreams) tell(text string) {
	u.mu.Lock()
	note := u.note
	if note == nil && len(u.early) < maxEarly {
		u.early = append(u.early, text)
	}
	u.mu.Unlock()
	if note != nil {
		note(text)
	}
}

// startUpstreams starts all servers of the run, at once, and makes tools of what
// they list. One that is not there in time has none in this run.
func (s *Session) startUpstreams(ctx context.Context) error {
	if len(s.cfg.Upstreams) == 0 {
		return nil
	}
	u := &upstreams{logs: map[string]*lateLog{}}
	mask := redact.New(s.secretValues()...)
	var specs []upstream.Spec
	for _, c := range s.cfg.Upstreams {
		spec, err := s.upstreamSpec(c)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(specs, func(o upstream.Spec) bool { return o.Name == c.Name }) {
			return fault.New(fault.Usage, "give each a name of its own", "two upstreams are called %s", c.Name)
		}
		log := &lateLog{}
		u.logs[c.Name] = log
		spec.Stderr = log
		spec.Mask = func(text string) string { text, _ = mask.String(text); return text }
		spec.Note = func(text string) { u.tell("upstream " + c.Name + ": " + text) }
		specs = append(specs, spec)
	}
	set, err := upstream.StartAll(ctx, s.cfg.StartWait, specs...)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		return fault.Wrap(err, fault.Usage, "start it by hand to see what is wrong, or leave required out", "a required server is not there")
	}
	u.set = set
	s.upstreams = u
	s.release = append(s.release, u.close)
	for i, m := range set.Members() {
		switch {
		case m.Upstream != nil:
			u.add(m.Upstream, s.cfg.Upstreams[i].Effects)
		case m.Err != nil:
			u.tell(m.Err.Error() + ": this run has none of its tools")
		default:
			u.tell("upstream " + m.Name + " did not list its tools in time: this run has none of them")
		}
	}
	return nil
}

// add makes tools of those that can be offered. The others harm none of them.
func (u *upstreams) add(up *upstream.Upstream, effects func(string) call.Effects) {
	for _, d := range up.Tools() {
		if d.Hidden != "" {
			continue // the upstream has said so
		}
		if err := catalogue.CheckTool(d.Name, d.InputSchema); err != nil {
			u.tell("upstream " + up.Name() + ": tool " + call.Clip(d.Name) + " is hidden: " + err.Error())
			continue
		}
		t := call.Tool{Name: up.Name() + "/" + d.Name, Description: d.Description, InputSchema: d.InputSchema, Definition: d.Raw}
		if effects != nil {
			t.Effects = effects(d.Name)
		}
		t.Run = func(ctx context.Context, inv call.Invocation) (call.Result, error) {
			return callUpstream(ctx, up, d.Name, inv.Arguments)
		}
		u.tools = append(u.tools, t)
	}
}

// callUpstream turns what an upstream answers into a result. A JSON-RPC error and
// every other failure become one that the model can read (docs/DESIGN.md section 5).
func callUpstream(ctx context.Context, up *upstream.Upstream, tool string, args []byte) (call.Result, error) {
	raw, err := up.Call(ctx, tool, args, nil)
	if e, ok := errors.AsType[*upstream.Error](err); ok && e.Code == upstream.TooLarge {
		r := call.Errorf("%s", e)
		r.Flags.Cut = max(e.Size, 1)
		return r, nil
	}
	if err != nil {
		return call.Result{}, err
	}
	r, _ := call.RawResult(raw) // the upstream has looked that it is an object
	return r, nil
}

func (s *Session) upstreamSpec(c Upstream) (upstream.Spec, error) {
	if err := catalogue.CheckServer(c.Name); err != nil {
		return upstream.Spec{}, err
	}
	output := s.cfg.Limits.Output
	if s.cfg.Policy != nil {
		output = max(output, s.cfg.Policy.Limits().Output)
	}
	spec := upstream.Spec{
		Name: c.Name, URL: c.URL, Headers: c.Headers, Required: c.Required, Marker: s.binding.Run,
		Client: "drawbridge", Version: s.cfg.Version,
		// Text has more bytes in JSON.
		MaxMessage: max(upstream.DefaultMaxMessage, 2*output+1<<20),
	}
	if len(c.Command) == 0 {
		return spec, nil
	}
	if !c.SandboxOff && !s.cfg.SandboxOff {
		return spec, fault.New(fault.Sandbox, "accept with sandbox: off at the upstream, or --sandbox=off, that it can do whatever you can",
			"upstream %s needs a sandbox, and this version has none yet", c.Name)
	}
	if err := helper(); err != nil {
		return spec, err
	}
	temp, err := s.tempDir()
	if err != nil {
		return spec, err
	}
	env := builtin.Environment(s.cfg.Environ, temp)
	for name, v := range c.Env {
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
		env = append(env, name+"="+v)
	}
	program, err := onPath(c.Command[0], lookup(env)("PATH"))
	if err != nil {
		return spec, fault.Wrap(err, fault.Usage, "give its absolute path, or a name that is on the PATH", "the command of upstream %s", c.Name)
	}
	spec.Env, spec.Command = env, append([]string{program}, c.Command[1:]...)
	spec.Dir = c.Dir
	for _, dir := range []string{s.cfg.Folder, temp} {
		if spec.Dir == "" {
			spec.Dir = dir
		}
	}
	return spec, nil
}

// onPath is the absolute path of a program. What is relative names no program:
// the folder it would be in can be one that the run writes to.
func onPath(name, path string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	if strings.ContainsRune(name, filepath.Separator) {
		return "", errors.New(name + " is a relative path")
	}
	for _, dir := range filepath.SplitList(path) {
		p := filepath.Join(dir, name)
		if info, err := os.Stat(p); err == nil && filepath.IsAbs(p) && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", errors.New(name + " is not on the PATH")
}

// unconfined is the name of a server that runs unconfined, "" where none does.
func (s *Session) unconfined() string {
	for _, c := range s.cfg.Upstreams {
		if len(c.Command) > 0 {
			return c.Name
		}
	}
	return ""
}

// upstreamSecrets are the credentials that servers are given.
func (s *Session) upstreamSecrets() (values []string) {
	for _, c := range s.cfg.Upstreams {
		for name, v := range c.Env {
			if credential(name) {
				values = append(values, v)
			}
		}
		for _, v := range c.Headers {
			values = append(values, v)
			if _, rest, ok := strings.Cut(v, " "); ok {
				values = append(values, rest) // without "Bearer"
			}
		}
	}
	return values
}

const maxUpstreamLog = 1 << 20

// recordUpstreams opens what was kept back until there is a record of the run.
func (s *Session) recordUpstreams() error {
	u := s.upstreams
	if u == nil {
		return nil
	}
	for name, log := range u.logs {
		f, err := s.keep("upstream-"+name+".log", maxUpstreamLog)
		if err != nil {
			return err
		}
		log.open(f)
	}
	u.mu.Lock()
	u.note = func(text string) { s.note("upstream", text) }
	early := u.early
	u.early = nil
	u.mu.Unlock()
	for _, text := range early {
		s.append(audit.Record{Kind: audit.Note, What: "upstream", Detail: call.Clip(s.mask(text))})
	}
	return nil
}

func (u *upstreams) close() {
	u.set.Close()
	for _, log := range u.logs {
		log.close()
	}
}

// lateLog keeps the beginning of what is written to it until there is a file.
type lateLog struct {
	mu  sync.Mutex
	to  io.WriteCloser
	buf []byte
}

const maxLate = 64 << 10

func (l *lateLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil {
		_, _ = l.to.Write(b)
	} else {
		l.buf = append(l.buf, b[:min(len(b), max(0, maxLate-len(l.buf)))]...)
	}
	return len(b), nil
}

func (l *lateLog) open(f io.WriteCloser) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = f.Write(l.buf)
	l.to, l.buf = f, nil
}

func (l *lateLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil {
		_ = l.to.Close()
		l.to = nil
	}
}

// DefaultStartWait is how long a run waits for its upstreams.
const DefaultStartWait time.Duration = upstream.DefaultStartWait
