package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
	"github.com/drawbridge-mcp/drawbridge/internal/store/sqlite"
)

const (
	watchEvery = 500 * time.Millisecond
	askLimit   = 10 * time.Second // for all live runs together; one may be stopped
)

func (a *app) approvalsCommand() *cobra.Command {
	var (
		run                string
		watch, all, asJSON bool
	)
	c := &cobra.Command{
		Use:   "approvals",
		Short: "Show the questions that live runs wait with",
		Long: `Show the questions that live runs wait with, and the commands that answer them.

The runs themselves are asked, and answer any process of yours that no run has
started: an agent, its tools and what they leave behind are refused.

--all reads what is on record instead: how each question was settled. "void" is one
whose call did not run because its run was over, the agent had given up, or what was
approved did not hold any more. drawbridge runs prune removes them with their runs.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if watch && all {
				return fault.New(fault.Usage, "give one of them", "--watch shows what is waiting, --all what was settled too")
			}
			dir, err := a.state()
			if err != nil {
				return err
			}
			if run != "" {
				m, _, err := dir.Find(run)
				if err != nil {
					return err
				}
				run = m.ID
			}
			show := &questions{app: a, json: asJSON}
			switch {
			case all:
				return show.all(c.Context(), dir, run)
			case watch:
				return show.watch(c.Context(), dir, run)
			}
			open, err := waiting(c.Context(), dir, run)
			for _, h := range open {
				show.one(h.question)
			}
			if len(open) == 0 && err == nil {
				fmt.Fprintln(a.err, "no questions are waiting")
			}
			return err
		},
	}
	fl := c.Flags()
	fl.BoolVar(&watch, "watch", false, "go on showing new ones as they come, until interrupted")
	fl.StringVar(&run, "run", "", "only those of this run")
	fl.BoolVar(&all, "all", false, "list every question on record, settled ones too")
	fl.BoolVar(&asJSON, "json", false, "print one question a line as JSON")
	return c
}

// held is a question and the folder of the run that waits with it.
type held struct {
	question approve.Question
	folder   string
}

// waiting are the questions of all live runs, or of one, in the order they were
// asked. A run that can't ask has none. Where the error is not nil there may be
// more than what is returned.
func waiting(ctx context.Context, dir *state.Dir, run string) ([]held, error) {
	live, err := dir.Live()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askLimit, fmt.Errorf("no answer in %s", askLimit))
	defer cancel()
	var (
		mu      sync.Mutex
		all     []held
		errs    []error
		refused error
		each    sync.WaitGroup
	)
	for _, m := range live {
		if run != "" && run != m.ID {
			continue
		}
		each.Go(func() {
			folder := dir.Folder(m.ID)
			open, err := control.Pending(ctx, folder)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, control.ErrRefused) || errors.Is(err, control.ErrUnsupported):
				refused = err // by one run as by all
			case err != nil && !errors.Is(err, control.ErrNobody):
				errs = append(errs, err)
			}
			for _, q := range open {
				all = append(all, held{q, folder})
			}
		})
	}
	each.Wait()
	if refused != nil {
		return nil, refused
	}
	slices.SortFunc(all, func(a, b held) int {
		return cmp.Or(a.question.Asked.Compare(b.question.Asked), cmp.Compare(a.question.ID, b.question.ID))
	})
	return all, errors.Join(errs...)
}

// questions prints them.
type questions struct {
	*app
	json bool
}

func (s *questions) one(q approve.Question) {
	if s.json {
		enc := json.NewEncoder(s.out)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(q)
		return
	}
	fmt.Fprintf(s.out, "%s\n\n", strings.TrimRight(q.Text(), "\n"))
}

// watch returns when what can't get better goes wrong; an interrupt ends the
// process, as it does while anything else is waited for.
func (s *questions) watch(ctx context.Context, dir *state.Dir, run string) error {
	seen, told := map[string]bool{}, ""
	fmt.Fprintln(s.err, "watching for questions; interrupt to end")
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		open, err := waiting(ctx, dir, run)
		if errors.Is(err, control.ErrRefused) || errors.Is(err, control.ErrUnsupported) {
			return err
		}
		for _, h := range open {
			if !seen[h.question.ID] {
				seen[h.question.ID] = true
				s.one(h.question)
			}
		}
		if err != nil && err.Error() != told {
			told = err.Error()
			s.say("warning", told)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// all lists what is on record.
func (s *questions) all(ctx context.Context, dir *state.Dir, run string) error {
	list, err := recorded(ctx, dir, run)
	if err != nil {
		return err
	}
	if s.json {
		for _, q := range list {
			s.one(q)
		}
		return nil
	}
	if len(list) == 0 {
		fmt.Fprintln(s.err, "no questions on record")
		return nil
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "QUESTION\tSTATE\tRUN\tTOOL\tASKED\tBY\tREASON")
	for _, q := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", line(q.ID, 20), q.State, line(q.Run, 64), line(q.Tool, 60),
			q.Asked.Local().Format("2006-01-02 15:04:05"), line(q.By, 80), line(q.Note, 200))
	}
	return w.Flush()
}

// recorded are the questions on record, of all runs or of one. What a run that
// is over left open is Void.
func recorded(ctx context.Context, dir *state.Dir, run string) (list []approve.Question, err error) {
	err = kept(ctx, dir, func(store approve.Store) error {
		if list, err = store.Questions(ctx, run, false); err != nil {
			return err
		}
		live, err := dir.Live()
		if err != nil {
			return err
		}
		for i, q := range list {
			if q.State != approve.Pending && q.State != approve.Approved || slices.ContainsFunc(live, func(m state.Meta) bool { return m.ID == q.Run }) {
				continue
			}
			// Its run may have settled it before it ended.
			if q, err = store.Question(ctx, q.ID); err != nil {
				return err
			}
			list[i] = void(q)
		}
		return nil
	})
	return list, err
}

// void is a question of a run that is over as it stands by now. What is approved
// and not marked as used has not run.
func void(q approve.Question) approve.Question {
	switch q.State {
	case approve.Pending:
		q.State, q.Note = approve.Void, "its run is over"
	case approve.Approved:
		q.State = approve.Void
	}
	return q
}

// kept lets f use the questions on record. Where there is no database, none is
// made for a look.
func kept(ctx context.Context, dir *state.Dir, f func(approve.Store) error) error {
	if _, err := os.Lstat(dir.Database()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	db, err := sqlite.Open(ctx, dir.Database())
	if err != nil {
		return err
	}
	defer db.Close()
	return f(db.Questions())
}
