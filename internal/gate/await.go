package gate

import (
	"context"
	"fmt"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// await is Await and Recheck: it returns nil where the call may run now, else
// what it ends with. Between the decision and this moment time has passed, for
// an asked call perhaps hours.
func (g *Gate) await(ctx context.Context, t *ticket, tool *call.Tool, req call.Request, d call.Decision) (a *answer) {
	if d.Verdict != call.Ask {
		return g.recheck(ctx, req)
	}
	var given call.Answer
	asked := g.safely(func() {
		given = g.cfg.Approver.Ask(ctx, call.Question{Seq: t.seq, Tool: tool, Arguments: req.Arguments, Decision: d, Gone: req.Gone})
	})
	if !asked {
		return notRun(audit.Denied, "refused: the person could not be asked")
	}
	if given.Yes {
		// Given back where anything below, a panic too, keeps the call from running.
		defer func() {
			if a != nil {
				g.safely(func() { g.cfg.Approver.Void(given.ID) })
			}
		}()
	}
	if given.ID != "" && !given.Ended {
		if a := g.answered(t, given); a != nil {
			return a
		}
	}
	switch {
	case given.Ended:
		return notRun(audit.Cancelled, "the call was taken back while a person was asked; it was not run")
	case given.ID == "": // a yes to no question would leave no line, and nothing to use up
		return notRun(audit.Denied, g.say(given.Reason))
	case !given.Yes:
		return notRun(audit.Denied, g.say(no(given)))
	}
	if a := g.recheck(ctx, req); a != nil {
		return a
	}
	// The policy of a run never changes, but its mode may have.
	if _, now, _ := g.judge(req); now.Verdict != call.Ask {
		return notRun(audit.Denied, "refused: what is decided about this call has changed since a person was asked; call it again to see what holds now")
	}
	var err error
	if !g.safely(func() { err = g.cfg.Approver.Use(ctx, given.ID, tool.Name, req.Arguments) }) || err != nil {
		return notRun(audit.Denied, "refused: the approval does not hold for this call any more")
	}
	return nil
}

// answered puts the answer on the record. Without that nothing runs.
func (g *Gate) answered(t *ticket, given call.Answer) *answer {
	decision := call.Deny
	if given.Yes {
		decision = call.Allow
	}
	_, err := g.write(true, func() audit.Record {
		return audit.Record{
			Kind: audit.Answer, Call: t.seq, Tool: t.tool, Decision: string(decision),
			Layer: "approval", Rule: given.ID, Reason: g.say(given.Reason), Detail: given.By,
		}
	})
	if err != nil {
		return notRun(audit.Denied, "the call was not run: the answer to its question could not be recorded")
	}
	return nil
}

// no says to the model why a person's answer is not a yes.
func no(given call.Answer) string {
	switch {
	case given.By == "expired":
		return "refused: a person was asked about this call, and nobody answered in time; go on without it, or say what you would need"
	case given.Reason != "":
		return fmt.Sprintf("refused: a person was asked about this call and said no: %s", given.Reason)
	}
	return "refused: a person was asked about this call and said no"
}

// recheck asks again what may have changed while the record was written, or a
// person thought.
func (g *Gate) recheck(ctx context.Context, req call.Request) *answer {
	if ctx.Err() != nil {
		return notRun(audit.Cancelled, "the call was cancelled before it ran")
	}
	select {
	case <-req.Gone:
		return notRun(audit.Cancelled, "nobody waits for this call any more; it was not run")
	default:
	}
	return nil
}

func notRun(outcome audit.Outcome, text string) *answer {
	return &answer{call.Errorf("%s", text), outcome}
}
