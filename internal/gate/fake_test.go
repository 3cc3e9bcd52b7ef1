package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "s3cr3t-0123456789"

var binding = call.Binding{Run: "r1", Workspace: "ws-A", Channel: "ch", User: "u", Agent: "a"}

// record is a Record in memory. Before is asked before each line is kept.
type record struct {
	before func(audit.Record) error
	mu     sync.Mutex
	lines  []line
}

type line struct {
	audit.Record
	durable bool
}

var errDisk = errors.New("no space left on device")

func (r *record) Append(x audit.Record, durable bool) (audit.Record, error) {
	if r.before != nil {
		if err := r.before(x); err != nil {
			return audit.Record{}, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	x.Seq = int64(len(r.lines) + 1)
	r.lines = append(r.lines, line{x, durable})
	return x, nil
}

func (r *record) all() []line {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]line(nil), r.lines...)
}

// kinds is the shape of the record, for messages.
func (r *record) kinds() string {
	var ks []string
	for _, l := range r.all() {
		k := string(l.Kind)
		if l.Outcome != "" {
			k += ":" + string(l.Outcome)
		}
		ks = append(ks, k)
	}
	return strings.Join(ks, " ")
}

// filter knows one secret and hands bytes without it on as they are.
type filter struct{}

func (filter) Arguments(raw []byte) []byte {
	b, _ := filter{}.JSON(raw)
	return b
}
func (filter) Text(s string) (string, int) {
	return strings.ReplaceAll(s, secret, "[masked]"), strings.Count(s, secret)
}
func (filter) JSON(b []byte) ([]byte, int) {
	return bytes.ReplaceAll(b, []byte(secret), []byte("[masked]")), bytes.Count(b, []byte(secret))
}

type catalogue map[string]*call.Tool

func (c catalogue) Lookup(name string) (*call.Tool, bool) {
	t, ok := c[name]
	return t, ok
}

type policyFunc func(call.Request, *call.Tool, map[string]any) call.Decision

func (f policyFunc) Decide(req call.Request, t *call.Tool, args map[string]any) call.Decision {
	return f(req, t, args)
}

func allowed() call.Decision {
	return call.Decision{Verdict: call.Allow, Layer: "agent", Rule: "allow *"}
}

// approver is an Approver in which ask stands for the person, and use for what
// still holds; nil ones say yes. It keeps what it was told, in order.
type approver struct {
	ask  func(context.Context, call.Question) call.Answer
	use  func(id, tool string, arguments []byte) error
	void func(id string)

	mu    sync.Mutex
	asked int
	told  []string
}

func (a *approver) say(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, fmt.Sprintf(format, args...))
}

// saw is what it was told so far, for messages too.
func (a *approver) saw() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.told, ", ")
}

func (a *approver) Ask(ctx context.Context, q call.Question) call.Answer {
	a.mu.Lock()
	a.asked++
	id := fmt.Sprint("q", a.asked)
	a.told = append(a.told, "ask")
	a.mu.Unlock()
	if a.ask == nil {
		return call.Answer{ID: id, Yes: true, By: "uid 1"}
	}
	return a.ask(ctx, q)
}

func (a *approver) Use(_ context.Context, id, tool string, arguments []byte) error {
	a.say("use %s", id)
	if a.use == nil {
		return nil
	}
	return a.use(id, tool, arguments)
}

func (a *approver) Void(id string) {
	a.say("void %s", id)
	if a.void != nil {
		a.void(id)
	}
}

// waiting is a person who never answers, and a desk that takes questions back.
func waiting(ctx context.Context, q call.Question) call.Answer {
	select {
	case <-ctx.Done():
	case <-q.Gone:
	}
	return call.Answer{ID: "q1", Ended: true}
}

func asks() call.Decision {
	return call.Decision{Verdict: call.Ask, Layer: "rules", Rule: "ask when x", Reason: "a rule asks"}
}

// newAsking is a rig whose policy asks about every call.
func newAsking(t *testing.T, change ...func(*rig, *approver)) (*rig, *approver) {
	a := &approver{}
	return newRig(t, func(r *rig) {
		r.cfg.Approver = a
		r.cfg.Policy = policyFunc(func(call.Request, *call.Tool, map[string]any) call.Decision { return asks() })
		for _, c := range change {
			c(r, a)
		}
	}), a
}

// rig is a gate with everything around it faked.
type rig struct {
	*Gate
	rec        *record
	cfg        *Config
	tools      catalogue
	mu         sync.Mutex
	incomplete []error
	panics     []any
	ran        []string // tools that ran
}

// newRig has the tools read, write and wreck, one for each of the effects,
// which answer "ran".
func newRig(t *testing.T, change ...func(*rig)) *rig {
	r := &rig{rec: &record{}, tools: catalogue{}}
	for name, e := range map[string]call.Effects{"read": call.Read, "write": call.Write, "wreck": call.Destructive} {
		r.tool(name, e, func(context.Context, call.Invocation) (call.Result, error) { return call.Text("ran"), nil })
	}
	r.cfg = &Config{
		Binding: binding, Catalogue: r.tools, Record: r.rec, Filter: filter{},
		Policy: policyFunc(func(call.Request, *call.Tool, map[string]any) call.Decision { return allowed() }),
		Incomplete: func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.incomplete = append(r.incomplete, err)
		},
		Panicked: func(_ string, v any, stack []byte) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(stack) == 0 {
				v = "no stack"
			}
			r.panics = append(r.panics, v)
		},
	}
	for _, c := range change {
		c(r)
	}
	r.Gate = New(*r.cfg)
	t.Cleanup(func() { r.Close() })
	return r
}

func (r *rig) tool(name string, e call.Effects, f func(context.Context, call.Invocation) (call.Result, error)) {
	r.tools[name] = &call.Tool{Name: name, Effects: e, Run: func(ctx context.Context, inv call.Invocation) (call.Result, error) {
		r.mu.Lock()
		r.ran = append(r.ran, name)
		r.mu.Unlock()
		return f(ctx, inv)
	}}
}

// setPolicy has every call decided by f from now on.
func (r *rig) setPolicy(f func() call.Decision) {
	r.Gate.cfg.Policy = policyFunc(func(call.Request, *call.Tool, map[string]any) call.Decision { return f() })
}

func (r *rig) call(name, args string) (call.Result, error) {
	return r.Call(context.Background(), request(name, args))
}

func (r *rig) runs() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ran)
}

func request(name, args string) call.Request {
	req := call.Request{Tool: name, Origin: call.FromEndpoint}
	if args != "" {
		req.Arguments = []byte(args)
	}
	return req
}

func text(res call.Result) string {
	var ts []string
	for _, b := range res.Content {
		ts = append(ts, b.Text+string(b.JSON))
	}
	return strings.Join(ts, "|")
}

// wantRefused is an isError result that says so, one refused line and nothing run.
func (r *rig) wantRefused(t *testing.T, res call.Result, err error, layer, rule, says string) {
	t.Helper()
	if err != nil || !res.IsError || !strings.Contains(text(res), says) {
		t.Errorf("answer %q isError=%v err=%v, want an error that says %q", text(res), res.IsError, err, says)
	}
	lines := r.rec.all()
	if len(lines) == 0 {
		t.Fatal("no line")
	}
	l := lines[len(lines)-1]
	if l.Kind != audit.Refused || l.Layer != layer || l.Rule != rule || l.Reason == "" || l.Outcome != "" {
		t.Errorf("line %+v, want a refusal of %s %q", l, layer, rule)
	}
}

// within fails a test that hangs.
func within(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatal("hangs: " + what)
	}
}
