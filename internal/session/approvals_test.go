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
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
	"github.com/drawbridge-mcp/drawbridge/internal/store/sqlite"
)

// office is a run that asks, and who is asked.
type office struct {
	*Session
	t      *testing.T
	asked  chan approve.Question
	mu     sync.Mutex
	events []event.Event
}

// newOffice is an embedder's run that asks before write_file and delete_file,
// in its own window.
func newOffice(t *testing.T, change ...func(*Config)) *office {
	t.Helper()
	return newOfficeUnder(t.Context(), t, change...)
}

func newOfficeUnder(ctx context.Context, t *testing.T, change ...func(*Config)) *office {
	t.Helper()
	o := &office{t: t, asked: make(chan approve.Question, 100)}
	cfg := baseConfig(t)
	cfg.Builtins, cfg.Allow, cfg.Ask = Builtins(), []string{"read_file", "write_file", "delete_file"}, []string{"write_file", "delete_file"}
	cfg.Approvals = Approvals{Inside: func(ctx context.Context, q approve.Question) approve.Answer {
		o.asked <- q
		<-ctx.Done() // the test answers
		return approve.Answer{}
	}}
	cfg.Follow = func(e event.Event) {
		o.mu.Lock()
		o.events = append(o.events, e)
		o.mu.Unlock()
		if e.Kind != event.Asked || o.cfg.Approvals.Inside != nil {
			return
		}
		for _, q := range o.desk.desk.Pending() {
			if q.ID == e.Approval {
				o.asked <- q
			}
		}
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	o.Session = s
	return o
}

// start makes a call, and gives what becomes of it.
func (o *office) start(tool, args string) <-chan call.Result {
	done := make(chan call.Result, 1)
	go func() {
		var raw []byte
		if args != "" {
			raw = []byte(args)
		}
		res, err := o.Call(context.Background(), tool, raw)
		if err != nil {
			res = call.Errorf("error: %v", err)
		}
		done <- res
	}()
	return done
}

// question is the next one that a person is asked.
func (o *office) question() approve.Question {
	o.t.Helper()
	return next(o.t, o.asked, "a question")
}

// Answer answers at the desk itself.
func (o *office) Answer(ctx context.Context, id string, a approve.Answer) error {
	if o.desk == nil {
		return approve.ErrUnknown
	}
	return o.desk.desk.Answer(ctx, id, a)
}

func (o *office) say(q approve.Question, a approve.Answer) {
	o.t.Helper()
	if err := o.Answer(o.t.Context(), q.ID, a); err != nil {
		o.t.Fatal(err)
	}
}

// quiet fails the test where somebody was asked.
func (o *office) quiet() {
	o.t.Helper()
	select {
	case q := <-o.asked:
		o.t.Errorf("a person is asked: %+v", q)
	default:
	}
}

func (o *office) has(file string) bool {
	_, err := os.Stat(filepath.Join(o.cfg.Folder, file))
	return err == nil
}

func (o *office) put(files ...string) {
	o.t.Helper()
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(o.cfg.Folder, f), []byte("x"), 0o600); err != nil {
			o.t.Fatal(err)
		}
	}
}

func next[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(30 * time.Second):
		t.Fatal("no end: " + what)
	}
	return v
}

func says(t *testing.T, res call.Result, isError bool, text string) {
	t.Helper()
	if len(res.Content) != 1 || res.IsError != isError || !strings.Contains(res.Content[0].Text, text) {
		t.Errorf("answer %+v, want isError %v and %q", res, isError, text)
	}
}

// stored is what the store has of a run's questions.
func stored(t *testing.T, s *Session) []approve.Question {
	t.Helper()
	dir, err := state.Open(s.cfg.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sqlite.Open(t.Context(), dir.Database())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	list, err := db.Questions().Questions(t.Context(), s.ID(), false)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// states are those of a run's questions, in the order they were asked.
func states(t *testing.T, s *Session) (all []approve.State) {
	t.Helper()
	for _, q := range stored(t, s) {
		all = append(all, q.State)
	}
	return all
}

// shape is the record of a run's calls in short.
func shape(t *testing.T, s *Session) string {
	t.Helper()
	return shapeOf(records(t, s))
}

func shapeOf(all []audit.Record) string {
	var parts []string
	for _, r := range all {
		switch r.Kind {
		case audit.Begin, audit.Refused:
			parts = append(parts, string(r.Kind))
		case audit.Answer:
			parts = append(parts, string(r.Kind)+":"+r.Decision)
		case audit.End:
			parts = append(parts, string(r.Kind)+":"+string(r.Outcome))
		}
	}
	return strings.Join(parts, " ")
}

func TestAskedInside(t *testing.T) {
	o := newOffice(t)
	const args = `{"path":"a.txt","content":"x"}`
	done := o.start("write_file", args)
	q := o.question()
	want := approve.Question{
		ID: q.ID, Run: o.ID(), Workspace: "default", Call: q.Call, Tool: "write_file", Effects: "write", Arguments: q.Arguments,
		ArgumentsDigest: call.Digest([]byte(args)), ArgumentsSize: len(args), PolicyDigest: records(t, o.Session)[0].Run.PolicyDigest,
		Layer: "rules", Rule: "ask", Reason: "a rule of the policy asks a person before this call",
		Asked: q.Asked, Expires: q.Asked.Add(approve.DefaultExpiry), State: approve.Pending,
	}
	if q != want || q.ID == "" || !strings.Contains(q.Arguments, "a.txt") {
		t.Errorf("asked %+v\nwant %+v", q, want)
	}
	if o.has("a.txt") {
		t.Error("it ran before it was answered")
	}
	o.say(q, approve.Answer{Yes: true, Note: "go on", By: "the window"})
	says(t, next(t, done, "the call"), false, "created")
	if !o.has("a.txt") {
		t.Error("it did not run")
	}
	if err := o.Answer(t.Context(), q.ID, approve.Answer{}); !errors.Is(err, approve.ErrSettled) {
		t.Errorf("a second answer: %v", err)
	}
	if err := o.Answer(t.Context(), "nosuchid", approve.Answer{Yes: true}); !errors.Is(err, approve.ErrUnknown) {
		t.Errorf("an answer to no question: %v", err)
	}
	if _, err := os.Lstat(o.run.File(control.SocketName)); err == nil {
		t.Error("there is a socket")
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if err := o.Answer(t.Context(), q.ID, approve.Answer{Yes: true}); err == nil {
		t.Error("an answer after the end is taken")
	}
	if a := o.desk.Ask(t.Context(), call.Question{Tool: &call.Tool{Name: "write_file"}, Arguments: []byte(args)}); a.Yes || a.ID != "" || a.Reason != "refused: the run is ending" {
		t.Errorf("asked after the end: %+v", a)
	}
	if got := shape(t, o.Session); got != "begin answer:allow end:ok" {
		t.Error(got)
	}
	for _, r := range records(t, o.Session) {
		if r.Kind == audit.Answer && (r.Call != q.Call || r.Tool != "write_file" || r.Rule != q.ID || r.Layer != "approval" || r.Reason != "go on" || r.Detail != "the window") {
			t.Errorf("%+v", r)
		}
		if r.What == "approvals" {
			t.Errorf("a note on who could answer: %+v", r)
		}
	}
	if got := stored(t, o.Session); len(got) != 1 || got[0].State != approve.Used || got[0].By != "the window" || got[0].Note != "go on" {
		t.Errorf("the store has %+v", got)
	}
	var told []string
	for _, e := range o.events {
		switch e.Kind {
		case event.Asked:
			told = append(told, "asked "+e.Approval)
			if e.Tool != "write_file" || !json.Valid(e.Arguments) || e.Layer != "rules" || e.Rule != "ask" || !strings.Contains(e.Text, q.ID) || e.Expires == nil || !e.Expires.Equal(q.Expires) {
				t.Errorf("%+v", e)
			}
		case event.Answered:
			told = append(told, "answered "+e.Approval)
			if e.By != "the window" || e.Outcome != "approved" || e.Text != "go on" || e.Tool != "write_file" {
				t.Errorf("%+v", e)
			}
		case event.Call:
			told = append(told, e.Outcome)
		}
	}
	if want := "asked " + q.ID + ", answered " + q.ID + ", ok"; strings.Join(told, ", ") != want {
		t.Errorf("told %q, want %q", told, want)
	}
}

// Whoever follows gets the arguments as JSON where they are shown whole, and else
// the text alone.
func TestAskedWithArgumentsThatAreNotShownWhole(t *testing.T) {
	for args, whole := range map[string]bool{
		"{\n\"path\" : \"a.txt\",\r\n\t\"content\":\"x\"}\n":                               true,
		`{"path":"a.txt","content":"line\nline"}`:                                          true,
		`{"path":"a.txt","content":"` + "\u202e" + `x"}`:                                   false,
		`{"path":"a.txt","content":"` + strings.Repeat("x", 2*approve.MaxArguments) + `"}`: false,
	} {
		o := newOffice(t)
		done := o.start("write_file", args)
		q := o.question()
		o.say(q, approve.Answer{})
		next(t, done, "the call")
		_ = o.Close()
		i := slices.IndexFunc(o.events, func(e event.Event) bool { return e.Kind == event.Asked })
		if i < 0 || (o.events[i].Arguments != nil) != whole || whole && !json.Valid(o.events[i].Arguments) || !strings.Contains(o.events[i].Text, "a.txt") {
			t.Errorf("%.60q: %+v", args, o.events)
		}
	}
}

// A person sees what would run: of long arguments head and tail, and nothing that
// is made to look like a secret and is none.
func TestNothingIsHiddenFromAPerson(t *testing.T) {
	o := newOffice(t)
	for args, want := range map[string][]string{
		`{"path":"a.txt","content":"` + strings.Repeat("x", 1<<20) + `; the end"}`:                         {`{"path": "a.txt"`, `; the end"}`},
		`{"path":"b.txt","content":"echo authorization: ; rm -rf ~\necho password=\"$(id)\" --token=abc"}`: {"authorization: ; rm -rf ~", "$(id)", "--token=[redacted]"},
	} {
		done := o.start("write_file", args)
		q := o.question()
		for _, part := range want {
			if !strings.Contains(q.Arguments, part) {
				t.Errorf("no %q in %.200s", part, q.Arguments)
			}
		}
		o.say(q, approve.Answer{})
		says(t, next(t, done, "the call"), true, "said no")
	}
}

func TestNotApproved(t *testing.T) {
	for name, c := range map[string]struct {
		answer  *approve.Answer // nil: nobody answers
		says    string
		state   approve.State
		outcome string
	}{
		"no":           {&approve.Answer{By: "w"}, "said no", approve.Denied, "denied"},
		"no, and why":  {&approve.Answer{By: "w", Note: "use b.txt instead"}, "said no: use b.txt instead", approve.Denied, "denied"},
		"nobody there": {nil, "nobody answered in time", approve.Expired, "denied"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t, func(cfg *Config) {
				if c.answer == nil {
					cfg.Approvals.Expiry = 20 * time.Millisecond
				}
			})
			done := o.start("write_file", `{"path":"a.txt","content":"x"}`)
			q := o.question()
			if c.answer != nil {
				o.say(q, *c.answer)
			}
			says(t, next(t, done, "the call"), true, c.says)
			if err := o.Answer(t.Context(), q.ID, approve.Answer{Yes: true}); !errors.Is(err, approve.ErrSettled) {
				t.Errorf("a late yes: %v", err)
			}
			if err := o.Close(); err != nil {
				t.Error(err)
			}
			if o.has("a.txt") || shape(t, o.Session) != "begin answer:deny end:denied" || !slices.Equal(states(t, o.Session), []approve.State{c.state}) {
				t.Errorf("ran %v, record %s, store %v", o.has("a.txt"), shape(t, o.Session), states(t, o.Session))
			}
			if o.follow.done != 0 || o.follow.not != 1 {
				t.Errorf("counted as %d executed and %d refused", o.follow.done, o.follow.not)
			}
		})
	}
}

// What an answer was for, and nothing else, and once.
func TestField51_ApprovalIsBoundToWhatRuns(t *testing.T) {
	o := newOffice(t, func(c *Config) {
		c.Tools = []call.Tool{{Name: "any", Effects: call.Write, Run: func(context.Context, call.Invocation) (call.Result, error) { return call.Text("ran"), nil }}}
		c.Allow, c.Ask = append(c.Allow, "any"), append(c.Ask, "any")
	})
	o.put("a.txt", "b.txt")
	seen := map[string]bool{}
	ask := func(tool, args string, yes bool) {
		t.Helper()
		done := o.start(tool, args)
		q := o.question()
		if seen[q.ID] {
			t.Errorf("question %s is asked twice", q.ID)
		}
		seen[q.ID] = true
		o.say(q, approve.Answer{Yes: yes, By: "w"})
		says(t, next(t, done, tool), !yes, "")
	}
	ask("delete_file", `{"path":"a.txt"}`, true)
	ask("delete_file", `{"path":"b.txt"}`, false) // changed arguments
	ask("any", `{"path":"a.txt"}`, true)          // another tool
	o.put("a.txt")
	ask("delete_file", `{"path":"a.txt"}`, false)  // the same call twice
	ask("delete_file", `{"path": "a.txt"}`, false) // other bytes of the same value
	if !o.has("a.txt") || !o.has("b.txt") {
		t.Error("a file is gone that nobody said yes to")
	}
	for _, args := range []string{"", "{}", "{ }"} {
		ask("any", args, true)
	}
	o.quiet()

	// Remembered is the same tool with the same bytes, in this run.
	done := o.start("any", `{}`)
	o.say(o.question(), approve.Answer{Yes: true, Remember: true, By: "w"})
	says(t, next(t, done, "any"), false, "ran")
	says(t, next(t, o.start("any", `{}`), "any"), false, "ran")
	o.quiet()
	ask("any", "", false)
	ask("any", "{ }", false)
	ask("any", `{"x":1}`, false)
	digests := map[string]int{}
	for _, r := range records(t, o.Session) {
		if r.Kind == audit.Answer && r.Detail != "w" && !strings.HasPrefix(r.Detail, "remembered ") {
			t.Errorf("%+v", r)
		}
	}
	for _, q := range stored(t, o.Session) {
		if q.Tool == "any" {
			digests[q.ArgumentsDigest]++
		}
	}
	if len(digests) != 5 || digests["absent"] != 2 {
		t.Errorf("arguments absent, {}, { } and two others are told apart as %v", digests)
	}
}

// Two people answer at once: one of them is heard, and the other is told so.
func TestField51_TwoAnswersAtOnce(t *testing.T) {
	for range 5 {
		o := newOffice(t)
		done := o.start("write_file", `{"path":"a.txt","content":"x"}`)
		q := o.question()
		var g sync.WaitGroup
		answers := make([]error, 8)
		for i := range answers {
			g.Go(func() {
				answers[i] = o.Answer(t.Context(), q.ID, approve.Answer{Yes: i%2 == 0, By: fmt.Sprint("person ", i)})
			})
		}
		g.Wait()
		heard := -1
		for i, err := range answers {
			switch {
			case err == nil && heard < 0:
				heard = i
			case !errors.Is(err, approve.ErrSettled):
				t.Errorf("answer %d: %v", i, err)
			}
		}
		if heard < 0 {
			t.Fatal("nobody was heard")
		}
		res := next(t, done, "the call")
		if yes := heard%2 == 0; res.IsError == yes || o.has("a.txt") != yes {
			t.Errorf("person %d was heard, and the call answered %+v", heard, res)
		}
		if q := stored(t, o.Session)[0]; q.By != fmt.Sprint("person ", heard) {
			t.Errorf("the store has %+v", q)
		}
		_ = o.Close()
	}
}

// A person is asked at most 20 things at once; of more the model is told.
func TestFloodOfQuestions(t *testing.T) {
	o := newOffice(t)
	var waiting []<-chan call.Result
	for i := range 25 {
		waiting = append(waiting, o.start("write_file", fmt.Sprintf(`{"path":"%d.txt","content":"x"}`, i)))
	}
	var asked []approve.Question
	for range approve.DefaultMaxOpen {
		asked = append(asked, o.question())
	}
	refused := 0
	var left []<-chan call.Result
	for deadline := time.After(30 * time.Second); refused < 5; {
		left = left[:0]
		for _, w := range waiting {
			select {
			case res := <-w:
				says(t, res, true, "refused: 20 questions of this run are waiting for a person; wait until one is answered, or go on without this call")
				refused++
			default:
				left = append(left, w)
			}
		}
		waiting = slices.Clone(left)
		select {
		case <-deadline:
			t.Fatalf("%d of 5 are refused", refused)
		case <-time.After(time.Millisecond):
		}
	}
	o.quiet()
	for i, q := range asked {
		o.say(q, approve.Answer{Yes: i%2 == 0, By: "w"})
	}
	ran := 0
	for _, w := range waiting {
		if !next(t, w, "a call").IsError {
			ran++
		}
	}
	files, err := os.ReadDir(o.cfg.Folder)
	if err != nil || ran != 10 || len(files) != 10 {
		t.Errorf("%d ran, %d files, %v", ran, len(files), err)
	}
	says(t, func() call.Result {
		done := o.start("write_file", `{"path":"later.txt","content":"x"}`)
		o.say(o.question(), approve.Answer{Yes: true})
		return next(t, done, "a later call")
	}(), false, "created")
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if got := shape(t, o.Session); strings.Count(got, "begin") != 26 || strings.Count(got, "answer:") != 21 || strings.Count(got, "end:denied") != 15 {
		t.Error(got)
	}
}

// However a run ends while a person thinks: nothing runs, the question is void,
// the record is whole, and nobody is waited for.
func TestEndsWhileAPersonIsAsked(t *testing.T) {
	for name, end := range map[string]func(*office, context.CancelFunc){
		"Close":       func(o *office, _ context.CancelFunc) { _ = o.Close() },
		"the context": func(o *office, cancel context.CancelFunc) { cancel(); <-o.dead },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := newOfficeUnder(ctx, t)
			var calls []<-chan call.Result
			for i := range 3 {
				calls = append(calls, o.start("write_file", fmt.Sprintf(`{"path":"%d","content":"x"}`, i)))
				o.question()
			}
			start := time.Now()
			end(o, cancel)
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("the end took %s", took)
			}
			for _, c := range calls {
				says(t, next(t, c, "a call"), true, "the call was taken back while a person was asked; it was not run")
			}
			if err := o.Close(); err != nil {
				t.Error(err)
			}
			if got := shape(t, o.Session); strings.Count(got, "end:cancelled") != 3 || strings.Contains(got, "answer") || o.has("0") {
				t.Error(got)
			}
			for _, q := range stored(t, o.Session) {
				if q.State != approve.Void || q.By != "" || q.Note == "" {
					t.Errorf("the store has %+v", q)
				}
			}
			f, err := os.Open(o.run.File("audit.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if rep, err := audit.Verify(f, o.Head()); err != nil || rep.Problem != "" {
				t.Errorf("%+v %v", rep, err)
			}
		})
	}
}

// A run that asks nothing opens no database and no door.
func TestNobodyIsAskedInVain(t *testing.T) {
	o := newOffice(t, func(c *Config) { c.Ask = nil })
	if o.desk != nil {
		t.Error("it has a desk")
	}
	if err := o.Answer(t.Context(), "x", approve.Answer{Yes: true}); !errors.Is(err, approve.ErrUnknown) {
		t.Error(err)
	}
	says(t, next(t, o.start("write_file", `{"path":"a","content":"x"}`), "a call"), false, "created")
	o = newOffice(t)
	says(t, next(t, o.start("read_file", `{"path":"none"}`), "a call"), true, "no such file")
	if _, err := os.Stat(filepath.Join(o.cfg.StateDir, "drawbridge.db")); err == nil {
		t.Error("a database was made although nobody was asked")
	}
}

// A policy whose rule fails is a denial, and asks nobody.
func TestARuleThatFailsAsksNobody(t *testing.T) {
	all, err := policy.ParseList("allow", []string{"*"}, []string{"write_file"})
	if err != nil {
		t.Fatal(err)
	}
	o := newOffice(t, func(c *Config) {
		c.Allow, c.Ask = nil, nil
		c.Policy = policy.New(policy.Layer{Name: policy.AgentLayer, Allow: all, Rules: []policy.Rule{{Then: call.Ask}, {When: failing{}, Text: "x", Then: call.Ask}}})
		c.Builtins = []string{"write_file"}
	})
	says(t, next(t, o.start("write_file", `{"path":"a","content":"x"}`), "a call"), true, "can't be judged")
	o.quiet()
}

type failing struct{}

func (failing) Eval(*policy.Input) (bool, error) { return false, errors.New("x") }
