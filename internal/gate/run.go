package gate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"runtime/debug"
	"time"
	"unicode/utf8"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// answer is what became of a tool's function.
type answer struct {
	res     call.Result
	outcome audit.Outcome
}

// run answers with what the tool answers, or, where its function does not come
// back although its context is done, without it.
func (g *Gate) run(ctx context.Context, t *ticket, tool *call.Tool, req call.Request) call.Result {
	if req.Late != nil {
		return g.here(ctx, t, tool, req)
	}
	answered := make(chan call.Result, 2) // a late one, and what is thrown away
	req.Late = func(res call.Result) { answered <- res }
	go func() { answered <- g.here(ctx, t, tool, req) }()
	return <-answered
}

// here runs the tool on this goroutine.
func (g *Gate) here(ctx context.Context, t *ticket, tool *call.Tool, req call.Request) (res call.Result) {
	stop := context.AfterFunc(ctx, func() { g.outwait(ctx, t, req.Late) })
	var a answer
	returned := false
	defer func() {
		stop()
		switch {
		case !g.settle(t):
		case returned:
			res = g.end(t, a)
		default: // runtime.Goexit, which runs deferred calls and nothing else
			req.Late(g.end(t, failed(tool)))
		}
	}()
	a = g.invoke(ctx, tool, req)
	returned = true
	return res
}

// settle reports whether the answer is the function's to make, which came back.
func (g *Gate) settle(t *ticket) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.settled {
		delete(g.abandoned, t.seq)
		return false
	}
	t.settled = true
	if t.grace != nil {
		t.grace.Stop()
	}
	return true
}

// outwait gives the function of a call whose context is done the grace, and then
// answers without it.
func (g *Gate) outwait(ctx context.Context, t *ticket, late func(call.Result)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.settled {
		return
	}
	t.grace = time.AfterFunc(g.cfg.Limits.Grace, func() {
		g.mu.Lock()
		if t.settled {
			g.mu.Unlock()
			return
		}
		t.settled = true
		g.abandoned[t.seq] = t.tool
		g.mu.Unlock()
		res := g.end(t, answer{call.Errorf("%s", stopped(ctx)), audit.Abandoned})
		g.safely(func() { late(res) })
	})
}

// failed is the answer of a function that did not return. What it panicked with
// is for the log: it may hold anything.
func failed(tool *call.Tool) answer {
	return answer{call.Errorf("tool '%s' failed inside; whoever runs this agent finds the reason in the log", tool.Name), audit.Panic}
}

// invoke is the only place in the program that calls a tool.
func (g *Gate) invoke(ctx context.Context, tool *call.Tool, req call.Request) (a answer) {
	returned := false
	defer func() {
		// Not returned and nothing recovered is runtime.Goexit.
		if v := recover(); v != nil || !returned {
			g.cfg.Panicked(tool.Name, v, debug.Stack())
			a = failed(tool)
		}
	}()
	inv := call.Invocation{Binding: g.cfg.Binding, Arguments: req.Arguments}
	if inv.Arguments == nil {
		inv.Arguments = []byte("{}")
	}
	res, err := tool.Run(ctx, inv)
	returned = true
	switch {
	case err != nil && ctx.Err() != nil:
		return answer{call.Errorf("%s", stopped(ctx)), audit.Cancelled}
	case err != nil:
		return answer{call.Errorf("%s", err), audit.Error}
	case res.IsError:
		return answer{res, audit.Error}
	}
	return answer{res, audit.OK}
}

func stopped(ctx context.Context) string {
	if ctx.Err() == context.DeadlineExceeded {
		return "the call took longer than a call may take, and was stopped"
	}
	return "the call was cancelled"
}

// end records the outcome and only then lets the result out.
func (g *Gate) end(t *ticket, a answer) call.Result {
	out := 0
	defer func() { g.done(t, out) }()
	res := a.res
	micros := int64(0)
	if !t.start.IsZero() {
		micros = g.cfg.Now().Sub(t.start).Microseconds()
	}
	size := 0
	if !g.safely(func() { res, size = g.finish(res, g.output(t.tool)) }) {
		res, size = call.Errorf("the tool ran, but its result is withheld: it could not be checked for secrets"), 0
	}
	_, err := g.write(false, func() audit.Record {
		return audit.Record{
			Kind: audit.End, Call: t.seq, Tool: t.tool, Outcome: a.outcome, Micros: micros, ResultSize: size,
			Cut: res.Flags.Cut, Redacted: res.Flags.Redacted, Repaired: res.Flags.Repaired, Invisible: res.Flags.Invisible,
		}
	})
	if err != nil {
		return call.Errorf("the tool ran, but its result is withheld: the audit record could not be written")
	}
	out = length(res)
	return res
}

// finish masks known secrets, repairs text and cuts what is over the limit, and
// flags each. Masking comes first: a cut must not leave half a secret behind.
// Content and Structured have limit bytes each. size is what the tool returned.
// Where nothing is to be changed Raw is the very bytes of the tool.
func (g *Gate) finish(res call.Result, limit int) (_ call.Result, size int) {
	if res.Raw != nil {
		size = len(res.Raw)
		if !utf8.Valid(res.Raw) {
			res.Raw, res.Flags.Repaired = bytes.ToValidUTF8(res.Raw, []byte("\uFFFD")), true
		}
		var cut int64
		res.Raw, cut = call.CutRaw(g.maskJSON(res.Raw, &res.Flags), limit)
		res.Flags.Cut += cut
		return res, size
	}
	left, dropped := limit, 0
	blocks := make([]call.Block, 0, min(len(res.Content), 16))
	for i, b := range res.Content {
		size += len(b.Text) + len(b.JSON)
		switch {
		case left <= 0 && i > 0: // one marker for all that is left
			dropped += len(b.Text) + len(b.JSON)
			continue
		case b.JSON != nil:
			masked := g.maskJSON(b.JSON, &res.Flags)
			b = call.Block{JSON: masked}
			if len(masked) > left {
				res.Flags.Cut += int64(len(masked))
				b = call.Block{Text: call.CutMarker(int64(len(masked)))}
			}
		default:
			text, n := g.cfg.Filter.Text(b.Text)
			text, cut, repaired := clip(text, left)
			b = call.Block{Text: text}
			res.Flags.Redacted += n
			res.Flags.Cut += cut
			res.Flags.Repaired = res.Flags.Repaired || repaired
			res.Flags.Invisible = res.Flags.Invisible || call.Invisible(text)
		}
		blocks = append(blocks, b)
		left -= max(1, len(b.Text)+len(b.JSON)) // blocks without text are not free
	}
	if dropped > 0 {
		res.Flags.Cut += int64(dropped)
		blocks = append(blocks, call.Block{Text: call.CutMarker(int64(dropped))})
	}
	res.Content = blocks
	if res.Structured != nil {
		size += len(res.Structured)
		res.Structured = g.maskJSON(res.Structured, &res.Flags)
		if n := len(res.Structured); n > limit {
			res.Flags.Cut += int64(n)
			res.Structured = nil
		}
	}
	return res, size
}

func (g *Gate) maskJSON(b []byte, f *call.Flags) []byte {
	masked, n := g.cfg.Filter.JSON(b)
	f.Redacted += n
	f.Invisible = f.Invisible || call.InvisibleJSON(masked)
	return masked
}

// clip cuts s to about limit bytes, the marker aside.
func clip(s string, limit int) (string, int64, bool) {
	if limit <= 0 && s != "" {
		return call.CutMarker(int64(len(s))), int64(len(s)), false
	}
	if len(s) <= limit && utf8.ValidString(s) {
		return s, 0, false
	}
	h := call.HeadTail{Max: max(limit, 1)}
	_, _ = h.Write([]byte(s))
	return h.Text()
}

// line is what every first line of an attempt holds.
func (g *Gate) line(req call.Request, tool *call.Tool, d call.Decision) audit.Record {
	// Whoever holds the token can send it as a name, and the cut must not
	// leave half of it.
	name, _ := g.cfg.Filter.Text(req.Tool)
	r := audit.Record{
		Tool: call.Clip(name), Origin: string(req.Origin),
		Decision: string(d.Verdict), Layer: d.Layer, Rule: d.Rule,
		ArgumentsSize: len(req.Arguments),
	}
	if tool != nil {
		r.Effects = string(tool.Effects)
	}
	if req.Arguments != nil {
		r.Arguments = g.cfg.Filter.Arguments(req.Arguments)
		r.ArgumentsDigest = Digest(req.Arguments)
	}
	return r
}

// Digest is how a record and an approval name exact bytes.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	const name = "sha256:"
	return string(hex.AppendEncode(append(make([]byte, 0, len(name)+2*len(sum)), name...), sum[:]))
}
