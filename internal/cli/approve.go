package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

const (
	maxReason = 1000 // bytes
	minPrefix = 4    // characters of a question's id
)

func (a *app) approveCommand() *cobra.Command {
	var reason, remember string
	c := &cobra.Command{
		Use:   "approve ID",
		Short: "Say yes to a question of a live run",
		Long: `Say yes to a question of a live run: the call it asks about runs once, with the very
arguments that were shown. The beginning of an id, at least 4 characters, is enough where
no other question begins so. It works from any process of yours that no run has started.

Exit code 1 where the question was settled before, which changes nothing and is said,
or the answer could not be taken; 2 where there is no such question.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("remember") && remember != "run" {
				return fault.New(fault.Usage, "--remember run: the same tool with the same arguments needs no further question in this run", "--remember %q", remember)
			}
			return a.answer(c.Context(), args[0], approve.Answer{Yes: true, Note: reason, Remember: remember == "run"})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the record and the model")
	c.Flags().StringVar(&remember, "remember", "", `"run" allows the same tool with the same arguments for the rest of the run`)
	complete(c, "remember", []string{"run"})
	return c
}

func (a *app) denyCommand() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:   "deny ID",
		Short: "Say no to a question of a live run",
		Long: `Say no to a question of a live run: the call does not run, and the model is told the
reason. The beginning of an id, at least 4 characters, is enough where no other question
begins so. It works from any process of yours that no run has started.

Exit code 1 where the question was settled before, which changes nothing and is said,
or the answer could not be taken; 2 where there is no such question.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.answer(c.Context(), args[0], approve.Answer{Note: reason})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the record and the model")
	return c
}

// answer finds the run that waits with the question and answers it.
func (a *app) answer(ctx context.Context, id string, ans approve.Answer) error {
	if len(ans.Note) > maxReason {
		return fault.New(fault.Usage, "say it shorter", "--reason has %d bytes, more than %d", len(ans.Note), maxReason)
	}
	dir, err := a.state()
	if err != nil {
		return err
	}
	open, failed := waiting(ctx, dir, "")
	hits := matching(open, id)
	switch len(hits) {
	case 1:
	case 0:
		if errors.Is(failed, control.ErrRefused) || errors.Is(failed, control.ErrUnsupported) {
			return failed
		}
		err := a.notWaiting(ctx, dir, open, id, ans)
		if failed != nil && errors.Is(err, approve.ErrUnknown) {
			return failed
		}
		return err
	default:
		return fault.New(fault.Usage, "give more of the id: "+ids(hits), "%d questions begin with %q", len(hits), id)
	}
	q := hits[0].question
	if err := control.Answer(ctx, hits[0].folder, q.ID, ans); err != nil {
		return asFault(err, q.ID)
	}
	a.answered(q, ans)
	return nil
}

func (a *app) answered(q approve.Question, ans approve.Answer) {
	said := "denied"
	if ans.Yes {
		said = "approved"
	}
	fmt.Fprintf(a.out, "%s %s%s%s%s\n", said, line(q.ID, 20), opt(": ", line(q.Tool, 80)), opt(" ", line(q.Arguments, 200)), opt(", run ", line(q.Run, 64)))
	if ans.Remember {
		fmt.Fprintln(a.err, "the same call needs no further question in this run")
	}
}

// matching are the questions that id names: the one that is called so, else
// those that begin so in any case.
func matching(open []held, id string) (hits []held) {
	for _, h := range open {
		if h.question.ID == id {
			return []held{h}
		}
		if len(id) >= minPrefix && len(id) <= len(h.question.ID) && strings.EqualFold(h.question.ID[:len(id)], id) {
			hits = append(hits, h)
		}
	}
	return hits
}

func ids(list []held) string {
	var names []string
	for _, h := range list[:min(len(list), 20)] {
		names = append(names, line(h.question.ID, 20))
	}
	if len(list) > len(names) {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}

// notWaiting says what became of a question that no run waits with. The runs
// know best what they have settled; of those that are over there is the record.
func (a *app) notWaiting(ctx context.Context, dir *state.Dir, open []held, id string, ans approve.Answer) error {
	old, unread := onRecord(ctx, dir, id)
	switch {
	case len(old) > 1:
		return fault.New(fault.Usage, "give more of the id: "+ids(old), "%d questions begin with %q", len(old), line(id, 80))
	case len(old) == 1:
		id = old[0].question.ID
	}
	live, err := dir.Live()
	if err != nil {
		return err
	}
	for _, m := range live {
		err := control.Answer(ctx, dir.Folder(m.ID), id, ans)
		switch {
		case err == nil: // it was asked just now
			a.answered(approve.Question{ID: id, Run: m.ID}, ans)
			return nil
		case errors.Is(err, approve.ErrSettled):
			return asFault(err, id)
		}
	}
	if len(old) == 1 && old[0].question.State == approve.Pending { // by now it is not
		old, unread = onRecord(ctx, dir, id)
	}
	switch {
	case unread != nil:
		return unread
	case len(old) == 1:
		q := old[0].question
		return asFault(fmt.Errorf("run %s: %w: %s", line(q.Run, 64), approve.ErrSettled, line(q.How(), 2000)), id)
	}
	hint := "no questions are waiting"
	if len(open) > 0 {
		hint = "waiting: " + ids(open)
	}
	return fault.Wrap(approve.ErrUnknown, fault.Usage, hint, "question %q", line(id, 80))
}

// onRecord are the questions on record that id names.
func onRecord(ctx context.Context, dir *state.Dir, id string) ([]held, error) {
	list, err := recorded(ctx, dir, "")
	all := make([]held, len(list))
	for i, q := range list {
		all[i].question = q
	}
	return matching(all, id), err
}

// asFault is a refused answer with its exit code: 2 for a question that there is
// none of, 1 for the rest.
func asFault(err error, id string) error {
	kind := fault.Agent
	if errors.Is(err, approve.ErrUnknown) {
		kind = fault.Usage
	}
	return fault.Wrap(err, kind, "", "question %s", line(id, 80))
}
