package gate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// answer is what became of a tool's function.
type answer struct {
	res     call.Result
	outcome audit.Outcome
}

// run waits for the tool, and for one that does not return although its context
// is done no longer than the grace.
func (g *Gate) run(ctx context.Context, t *ticket, tool *call.Tool, req call.Request) (call.Result, audit.Outcome) {
	done := make(chan answer, 1)
	go func() { done <- g.invoke(ctx, tool, req) }()
	select {
	case a := <-done:
		return a.res, a.outcome
	case <-ctx.Done():
	}
	grace := time.NewTimer(g.cfg.Limits.Grace)
	defer grace.Stop()
	select {
	case a := <-done:
		return a.res, a.outcome
	case <-grace.C:
	}
	g.mu.Lock()
	g.abandoned = append(g.abandoned, Abandoned{Tool: t.tool, Call: t.seq})
	g.mu.Unlock()
	return call.Errorf("%s", stopped(ctx)), audit.Abandoned
}

// invoke is the only place in the program that calls a tool.
func (g *Gate) invoke(ctx context.Context, tool *call.Tool, req call.Request) (a answer) {
	returned := false
	defer func() {
		// Not returned and nothing recovered is runtime.Goexit.
		if v := recover(); v != nil || !returned {
			g.cfg.Panicked(tool.Name, v, debug.Stack())
			a = answer{call.Errorf("tool '%s' failed inside; whoever runs this agent finds the reason in the log", tool.Name), audit.Panic}
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
func (g *Gate) end(t *ticket, res call.Result, outcome audit.Outcome) call.Result {
	micros := g.cfg.Now().Sub(t.start).Microseconds()
	res, size := g.finish(res)
	err := g.append(audit.Record{
		Kind: audit.End, Call: t.seq, Tool: t.tool, Outcome: outcome, Micros: micros, ResultSize: size,
		Cut: res.Flags.Cut, Redacted: res.Flags.Redacted, Repaired: res.Flags.Repaired, Invisible: res.Flags.Invisible,
	})
	if err != nil {
		return call.Errorf("%s", errWithheld)
	}
	return res
}

// finish masks known secrets, repairs text and cuts what is over the limit, and
// flags each. Masking comes first: a cut must not leave half a secret behind.
func (g *Gate) finish(res call.Result) (call.Result, int) {
	left, size := g.cfg.Limits.Output, 0
	blocks := make([]call.Block, 0, len(res.Content))
	for _, b := range res.Content {
		if b.JSON != nil {
			size += len(b.JSON)
			masked, n := g.cfg.Filter.JSON(b.JSON)
			res.Flags.Redacted += n
			if len(masked) > left {
				res.Flags.Cut += int64(len(masked))
				blocks = append(blocks, call.Block{Text: call.CutMarker(int64(len(masked)))})
				continue
			}
			left -= len(masked)
			blocks = append(blocks, call.Block{JSON: masked})
			continue
		}
		size += len(b.Text)
		text, n := g.cfg.Filter.Text(b.Text)
		res.Flags.Redacted += n
		text, cut, repaired := clip(text, left)
		left -= min(left, len(text))
		res.Flags.Cut += cut
		res.Flags.Repaired = res.Flags.Repaired || repaired
		res.Flags.Invisible = res.Flags.Invisible || call.Invisible(text)
		blocks = append(blocks, call.Block{Text: text})
	}
	res.Content = blocks
	if res.Structured != nil {
		size += len(res.Structured)
		masked, n := g.cfg.Filter.JSON(res.Structured)
		res.Flags.Redacted += n
		res.Structured = masked
		if len(masked) > g.cfg.Limits.Output {
			res.Flags.Cut += int64(len(masked))
			res.Structured = nil
		}
	}
	return res, size
}

func clip(s string, limit int) (string, int64, bool) {
	if limit <= 0 && s != "" {
		return call.CutMarker(int64(len(s))), int64(len(s)), false
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
	return fmt.Sprintf("sha256:%s", hex.EncodeToString(sum[:]))
}
