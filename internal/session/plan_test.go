package session

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

func planning(c *Config) { c.Plan, c.Ask = true, nil }

// A plan that is turned down with a reason, another one that is approved, and
// what comes after.
func TestPlanThenAct(t *testing.T) {
	o := newOffice(t, planning)
	before := o.Tools()
	if !slices.Equal(before, []string{"delete_file", "read_file", "submit_plan", "write_file"}) {
		t.Errorf("the tools are %q", before)
	}
	const write = `{"path":"a.txt","content":"x"}`
	says(t, next(t, o.start("write_file", write), "a write"), true, "plan mode, where only tools that read are run; put your plan before a person with the tool submit_plan")
	says(t, next(t, o.start("read_file", `{"path":"none"}`), "a read"), true, "no such file")
	o.quiet()

	done := o.start("submit_plan", `{"plan":"# first\n1. delete everything"}`)
	q := o.question()
	if q.Plan != "# first\n1. delete everything" || q.Tool != "submit_plan" || q.Layer != "mode" || q.Rule != "plan set by agent" {
		t.Errorf("asked %+v", q)
	}
	o.say(q, approve.Answer{By: "w", Note: "too much, only a.txt"})
	says(t, next(t, done, "a plan"), true, "said no: too much, only a.txt")
	says(t, next(t, o.start("write_file", write), "a write"), true, "plan mode")

	done = o.start("submit_plan", `{"plan":"write a.txt"}`)
	o.say(o.question(), approve.Answer{Yes: true, By: "w"})
	says(t, next(t, done, "a plan"), false, "The plan is approved. Carry it out now")
	says(t, next(t, o.start("write_file", write), "a write"), false, "created")
	says(t, next(t, o.start("submit_plan", `{"plan":"more"}`), "a plan"), true, "a plan was approved already; carry it out")
	o.quiet()
	if !slices.Equal(o.Tools(), before) {
		t.Errorf("the tools are %q now", o.Tools())
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	notes := 0
	all := records(t, o.Session)
	for _, r := range all {
		if r.What == policy.ModeNote {
			notes++
		}
	}
	if notes != 1 || all[0].Run.Mode != policy.Plan {
		t.Errorf("%d lines say that the run acts; it began in %q", notes, all[0].Run.Mode)
	}
	if got := shape(t, o.Session); got != "refused begin end:error begin answer:deny end:denied refused begin answer:allow end:ok begin end:ok refused" {
		t.Error(got)
	}
	if got := states(t, o.Session); !slices.Equal(got, []approve.State{approve.Denied, approve.Used}) {
		t.Error(got)
	}
	if !slices.ContainsFunc(o.events, func(e event.Event) bool {
		return e.Kind == event.Notice && strings.Contains(e.Text, "the run acts from here on")
	}) {
		t.Error("nobody is told that the run acts")
	}
	f, err := os.Open(o.run.File("audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rec, err := policy.ReadRecord(f)
	if err != nil {
		t.Fatal(err)
	}
	pol, err := policy.FromFlags(o.cfg.Allow, nil, true, o.cfg.Builtins)
	if err != nil {
		t.Fatal(err)
	}
	if d := pol.Replay(rec, o.cfg.Builtins); len(d) > 0 {
		t.Errorf("replayed under its own policy: %+v", d)
	}
}

// A run leaves plan mode once.
func TestActIsForGood(t *testing.T) {
	o := newOffice(t, planning)
	if o.modeNow() != "" {
		t.Errorf("it begins in %q", o.modeNow())
	}
	o.act()
	o.act()
	if o.modeNow() != policy.Act {
		t.Errorf("it is in %q", o.modeNow())
	}
	_ = o.Close()
	notes := 0
	for _, r := range records(t, o.Session) {
		if r.What == policy.ModeNote {
			notes++
		}
	}
	if notes != 1 {
		t.Errorf("%d lines say that the run acts", notes)
	}
}

// A plan nobody answers, and one whose call is gone, leave the run in plan mode.
func TestPlanWithoutAnAnswer(t *testing.T) {
	o := newOffice(t, planning, func(c *Config) { c.Approvals.Expiry = 20 * time.Millisecond })
	says(t, next(t, o.start("submit_plan", `{"plan":"x"}`), "a plan"), true, "nobody answered in time")
	says(t, next(t, o.start("write_file", `{"path":"a","content":"x"}`), "a write"), true, "plan mode")

	o = newOffice(t, planning)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan call.Result, 1)
	go func() {
		res, _ := o.Call(ctx, "submit_plan", []byte(`{"plan":"x"}`))
		done <- res
	}()
	q := o.question()
	cancel()
	says(t, next(t, done, "a plan"), true, "taken back")
	if err := o.Answer(t.Context(), q.ID, approve.Answer{Yes: true}); err == nil {
		t.Error("a late yes is taken")
	}
	says(t, next(t, o.start("write_file", `{"path":"a","content":"x"}`), "a write"), true, "plan mode")
	// What is no plan is not put before anybody.
	says(t, next(t, o.start("submit_plan", `{"plan":""}`), "a plan"), true, "plan")
	says(t, next(t, o.start("submit_plan", `{"plan":"good","plan":"bad"}`), "a plan"), true, "the same key twice")
	o.quiet()
}

// Two plans at once: the first yes turns the run, and the second finds it turned.
func TestTwoPlansAtOnce(t *testing.T) {
	o := newOffice(t, planning)
	one, first := o.start("submit_plan", `{"plan":"one"}`), o.question()
	two, second := o.start("submit_plan", `{"plan":"two"}`), o.question()
	o.say(second, approve.Answer{Yes: true})
	says(t, next(t, two, "a plan"), false, "approved")
	o.say(first, approve.Answer{Yes: true})
	says(t, next(t, one, "a plan"), true, "has changed since a person was asked")
	// It is given back at once, not when the run ends.
	for limit := time.Now().Add(30 * time.Second); !slices.Equal(states(t, o.Session), []approve.State{approve.Void, approve.Used}); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal(states(t, o.Session))
		}
	}
}

// What another tool calls a plan is none.
func TestOnlySubmitPlanHasAPlan(t *testing.T) {
	o := newOffice(t, func(c *Config) {
		c.Tools = []call.Tool{{Name: "any", Effects: call.Write, Run: func(context.Context, call.Invocation) (call.Result, error) { return call.Text("ran"), nil }}}
		c.Allow, c.Ask = []string{"any"}, []string{"any"}
	})
	done := o.start("any", `{"plan":"# harmless"}`)
	q := o.question()
	if q.Plan != "" || !strings.Contains(q.Arguments, "# harmless") {
		t.Errorf("%+v", q)
	}
	o.say(q, approve.Answer{})
	next(t, done, "the call")
}

// A shell in the scope is harmless where something confines it.
func TestAConfinedShellMayBeInTheScope(t *testing.T) {
	pol, err := policy.FromFlags([]string{"write_file"}, []string{"write_file"}, false, []string{"write_file"})
	if err != nil {
		t.Fatal(err)
	}
	for off, refused := range map[bool]bool{true: true, false: false} {
		s := &Session{level: Sealed, cfg: Config{Builtins: []string{"write_file"}, SandboxOff: off}}
		if err := s.checkAsking(pol, true); (err != nil) != refused {
			t.Errorf("unconfined %v: %v", off, err)
		}
	}
}

// In plan mode nothing on disk changes, whatever an annotation, an argument or a
// clever command says.
func TestField50_PlanModeChangesNothing(t *testing.T) {
	linux(t)
	liar := false
	o := newOffice(t, func(c *Config) {
		planning(c)
		c.SandboxOff, c.Approvals.SameUser = true, true
		c.Tools = []call.Tool{{Name: "note", Description: "read only", InputSchema: []byte(`{"type":"object","readOnlyHint":true}`), Run: func(context.Context, call.Invocation) (call.Result, error) {
			liar = true
			return call.Text("ran"), nil
		}}}
		c.Allow = []string{"*"}
	})
	o.put("keep.txt")
	refused := 0
	for tool, all := range map[string][]string{
		"note": {`{}`, `{"readOnlyHint":true}`, `{"mode":"act"}`},
		"execute_command": {
			`{"cmd":"git diff --output=x"}`, `{"cmd":"find . -delete"}`, `{"cmd":"sed -n w/tmp/x keep.txt"}`, `{"cmd":"sort -o x x"}`, `{"cmd":"cat a > b"}`, `{"cmd":"ls"}`,
		},
		"memory_add":    {`{"text":"x"}`},
		"memory_delete": {`{"id":"x"}`},
		"write_file":    {`{"path":"a","content":"x"}`, `{"path":"a","content":"x","mode":"act","plan":false}`, `{"path":"a","content":"x","_meta":{"mode":"act"}}`},
		"edit_file":     {`{"path":"keep.txt","edits":[{"old":"x","new":"y"}]}`},
		"delete_file":   {`{"path":"keep.txt"}`},
	} {
		for _, args := range all {
			res := next(t, o.start(tool, args), tool)
			if !res.IsError {
				t.Errorf("%s %s: %+v", tool, args, res)
			}
			if strings.Contains(res.Content[0].Text, "plan mode") {
				refused++
			}
		}
	}
	if refused < 12 {
		t.Errorf("only %d calls are refused for the mode", refused)
	}
	for _, name := range []string{"set_mode", "act", "exit_plan_mode"} {
		says(t, next(t, o.start(name, `{"mode":"act"}`), name), true, "not available to this agent")
	}
	o.quiet()
	files, err := os.ReadDir(o.cfg.Folder)
	if err != nil || len(files) != 1 || files[0].Name() != "keep.txt" || liar {
		t.Errorf("%v %v, the tool that lies ran: %v", files, err, liar)
	}
	for _, r := range records(t, o.Session) {
		if r.Kind == audit.Begin {
			t.Errorf("%+v", r)
		}
	}
}

// One record per attempt, whatever became of it.
func TestField52_OneRecordPerAttempt(t *testing.T) {
	o := newOffice(t, func(c *Config) {
		c.Tools = []call.Tool{{Name: "falls", Effects: call.Read, Run: func(context.Context, call.Invocation) (call.Result, error) { panic("it is gone") }}}
		c.Allow = append(c.Allow, "falls")
	})
	p := newOffice(t, planning)
	alone := newOffice(t, func(c *Config) { c.Approvals.Expiry = 20 * time.Millisecond })
	ask := func(o *office, a *approve.Answer) call.Result {
		done := o.start("write_file", `{"path":"a","content":"x"}`)
		if q := o.question(); a != nil {
			o.say(q, *a)
		}
		return next(t, done, "a write")
	}
	from := map[*Session]int{o.Session: 1, p.Session: 1, alone.Session: 1}
	for _, c := range []struct {
		name string
		do   func()
		of   *office
		want string
	}{
		{"ok", func() { ask(o, &approve.Answer{Yes: true}) }, o, "begin answer:allow end:ok"},
		{"denied by a list", func() { next(t, o.start("execute_command", `{"cmd":"ls"}`), "") }, o, "refused"},
		{"denied by plan mode", func() { next(t, p.start("write_file", `{"path":"a","content":"x"}`), "") }, p, "refused"},
		{"a person says no", func() { ask(o, &approve.Answer{}) }, o, "begin answer:deny end:denied"},
		{"nobody answers", func() { ask(alone, nil) }, alone, "begin answer:deny end:denied"},
		{"it falls over", func() { next(t, o.start("falls", ""), "") }, o, "begin end:panic"},
		{"arguments that are no JSON", func() { next(t, o.start("write_file", `{"path":`), "") }, o, "refused"},
		{"a wrong token", func() { post(t, o.Session, "wrong-token-that-is-kept-nowhere", `{}`) }, o, ""},
		{"another one", func() { post(t, o.Session, "wrong-token-that-is-kept-nowhere", `{}`) }, o, ""},
	} {
		c.do()
		all := records(t, c.of.Session)
		if got := shapeOf(all[from[c.of.Session]:]); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		from[c.of.Session] = len(all)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	early := 0
	all := records(t, o.Session)
	for _, r := range all {
		if r.Kind == audit.Early {
			early++
		}
	}
	if early != 1 || all[len(all)-1].Totals["early.token"] != 2 {
		t.Errorf("%d lines on two wrong tokens, totals %v", early, all[len(all)-1].Totals)
	}
	if b, _ := os.ReadFile(o.run.File("audit.jsonl")); strings.Contains(string(b), "kept-nowhere") {
		t.Error("the token that was presented is in the record")
	}
}

// post sends a message to the endpoint and returns the status of its answer.
func post(t *testing.T, s *Session, token, body string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL(), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	r.Close = true
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// Where code of the run could answer by itself, an ask is a start error that
// says why, for each reason there is.
func TestWhoCouldAnswerForThem(t *testing.T) {
	linux(t)
	for name, c := range map[string]struct {
		change func(*Config)
		why    string // "" starts
		what   string
	}{
		"a program": {func(c *Config) { c.Program = &Program{Path: "/bin/true", Args: []string{"true"}} }, "the program of this run runs unconfined", "write_file"},
		"a program, inside": {func(c *Config) {
			c.Program, c.Approvals.Inside = &Program{Path: "/bin/true", Args: []string{"true"}}, nobody
		}, "the program of this run runs unconfined", "write_file"},
		"tools of its own": {func(c *Config) { c.Agent.OwnTools = agent.OwnTools{All: true} }, "the agent has tools of its own", "write_file"},
		"a shell":          {func(c *Config) { c.SandboxOff, c.Allow = true, append(c.Allow, "execute_command") }, "execute_command runs unconfined", "write_file"},
		"a shell, inside": {func(c *Config) {
			c.Agent, c.SandboxOff, c.Allow, c.Approvals.Inside = nil, true, append(c.Allow, "execute_command"), nobody
		}, "execute_command runs unconfined", "write_file"},
		"a shell out of scope":  {func(c *Config) { c.SandboxOff = true }, "", ""},
		"an embedder's program": {func(c *Config) { c.Agent = nil }, "what an embedder starts can't be told from the embedder", "write_file"},
		"an embedder's window":  {func(c *Config) { c.Agent, c.Approvals.Inside = nil, nobody }, "", ""},
		"sealed":                {func(*Config) {}, "", ""},
		"a policy file": {func(c *Config) {
			c.Program = &Program{Path: "/bin/true", Args: []string{"true"}}
			c.Policy, _ = policy.FromFlags(c.Allow, c.Ask, false, c.Allow)
		}, "the program of this run runs unconfined", "write_file"},
		"a plan":             {func(c *Config) { c.Ask, c.Plan, c.Agent = nil, true, nil }, "what an embedder starts", "about a plan"},
		"a plan and a tool":  {func(c *Config) { c.Plan, c.Agent = true, nil }, "what an embedder starts", "about write_file"},
		"nobody to be asked": {func(c *Config) { c.Ask, c.Agent = nil, nil }, "", ""},
		"out of scope":       {func(c *Config) { c.Ask, c.Agent = []string{"delete_file"}, nil }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := baseConfig(t)
			cfg.Builtins, cfg.Allow, cfg.Ask = Builtins(), []string{"write_file"}, []string{"write_file"}
			cfg.Agent = scriptedAgent(t, "say a")
			c.change(&cfg)
			if cfg.Program != nil {
				cfg.Agent = nil
			}
			s, err := New(t.Context(), cfg)
			if c.why == "" {
				if err != nil {
					t.Fatal(err)
				}
				_ = s.Close()
				if noted(t, s) {
					t.Error("the record says that somebody else could answer")
				}
				return
			}
			if err == nil {
				_ = s.Close()
				t.Fatal("it started")
			}
			if fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), "could answer in their place: "+c.why) || !strings.Contains(err.Error(), c.what) ||
				strings.Contains(fault.HintOf(err), "same_user_can_answer: true") != (cfg.Policy != nil) || fault.HintOf(err) == "" {
				t.Errorf("%v (%s)", err, fault.HintOf(err))
			}
			if left, err := os.ReadDir(filepath.Join(cfg.StateDir, "runs")); err == nil && len(left) > 0 {
				t.Errorf("it left %v", left)
			}
			// Accepted, it starts and the record says so.
			cfg.Approvals.SameUser = true
			if s, err = New(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			_ = s.Close()
			if !noted(t, s) {
				t.Error("the record does not say that somebody else could answer")
			}
		})
	}
}

// noted reports whether the record says that code of the run could answer.
func noted(t *testing.T, s *Session) bool {
	return slices.ContainsFunc(records(t, s), func(r audit.Record) bool {
		return r.Kind == audit.Note && r.What == "approvals" && r.Detail == "the policy accepts that code of this run could answer in a person's place"
	})
}

// What the agent is told about the time of a call has room for the person.
func TestTheAgentWaitsForThePerson(t *testing.T) {
	s := &Session{}
	if a, b := s.callTimeout(false), s.callTimeout(true); a != 10*time.Minute+30*time.Second || b != a+approve.DefaultExpiry {
		t.Errorf("%s, and %s where a person is asked", a, b)
	}
	s.cfg.Limits.Call, s.cfg.Approvals.Expiry = time.Minute, time.Hour
	if a, b := s.callTimeout(false), s.callTimeout(true); a != 90*time.Second || b != a+time.Hour {
		t.Errorf("%s, and %s where a person is asked", a, b)
	}
}

// nobody is an embedder's window that nobody looks at.
func nobody(ctx context.Context, _ approve.Question) approve.Answer {
	<-ctx.Done()
	return approve.Answer{}
}
