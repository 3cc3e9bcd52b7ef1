package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/session"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

func (a *app) runsCommand() *cobra.Command {
	return group("runs", "List, show and prune runs", a.runsList(), a.runsShow(), a.runsPrune())
}

func (a *app) runsList() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the runs on record, oldest first",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := a.state()
			if err != nil {
				return err
			}
			runs, err := dir.Runs()
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(a.out)
				for _, m := range runs {
					_ = enc.Encode(m)
				}
				return nil
			}
			if len(runs) == 0 {
				fmt.Fprintln(a.err, "no runs on record")
				return nil
			}
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "RUN\tAGENT\tLEVEL\tWORKSPACE\tCHANNEL\tSTARTED\tSTATUS\tEXIT")
			for _, m := range runs {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.ID, line(m.Agent, 20), line(m.Level, 20), line(m.Workspace, 30), line(m.Channel, 30),
					m.Started.Local().Format("2006-01-02 15:04:05"), line(m.Status, 20), exitText(m))
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one run a line as JSON")
	return c
}

func exitText(m state.Meta) string {
	if m.ExitCode == nil {
		return "-"
	}
	return strconv.Itoa(*m.ExitCode)
}

func (a *app) runsShow() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show RUN",
		Short: `Show one run: its id, the unambiguous beginning or end of it, or "last"`,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir, err := a.state()
			if err != nil {
				return err
			}
			m, folder, err := dir.Find(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(a.out).Encode(m)
			}
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			row := func(k, v string) {
				if v != "" {
					fmt.Fprintf(w, "%s\t%s\n", k, line(v, 2000))
				}
			}
			row("run", m.ID)
			row("status", m.Status)
			row("exit code", exitText(m))
			row("error", m.Error)
			row("agent", m.Agent)
			row("level", m.Level)
			row("workspace", m.Workspace)
			row("channel", m.Channel)
			row("user", m.User)
			row("folder", m.Folder)
			row("scope", strings.Join(m.Scope, ", "))
			row("started", m.Started.Local().Format(time.RFC3339))
			if m.Ended != nil {
				row("ended", m.Ended.Local().Format(time.RFC3339))
			}
			row("record", filepath.Join(folder, "audit.jsonl"))
			row("audit head", m.Head)
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return c
}

func (a *app) runsPrune() *cobra.Command {
	var older string
	c := &cobra.Command{
		Use:   "prune",
		Short: "Remove the records and questions of old runs; live ones stay",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			age, err := parseAge(older)
			if err != nil {
				return err
			}
			dir, err := a.state()
			if err != nil {
				return err
			}
			session.Sweep(dir) // a record that is gone no longer says what its run left
			gone, err := dir.Prune(time.Now().Add(-age))
			for _, id := range gone {
				fmt.Fprintln(a.out, id)
			}
			fmt.Fprintf(a.err, "removed %d runs\n", len(gone))
			return errors.Join(err, forget(c.Context(), dir))
		},
	}
	c.Flags().StringVar(&older, "older-than", "30d", "age since the end of a run, like 12h or 30d")
	return c
}

// forget removes the questions of runs that have no folder any more.
func forget(ctx context.Context, dir *state.Dir) error {
	return kept(ctx, dir, func(store approve.Store) error {
		list, err := store.Questions(ctx, "", false)
		if err != nil {
			return err
		}
		runs, err := dir.Runs()
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, m := range runs {
			seen[m.ID] = true
		}
		for _, q := range list {
			if seen[q.Run] {
				continue
			}
			seen[q.Run] = true
			if err := store.Forget(ctx, q.Run); err != nil {
				return err
			}
		}
		return nil
	})
}

func parseAge(s string) (time.Duration, error) {
	var age time.Duration
	var err error
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int
		n, err = strconv.Atoi(days)
		age = time.Duration(n) * 24 * time.Hour
		if n > 36500 {
			err = strconv.ErrRange
		}
	} else {
		age, err = time.ParseDuration(s)
	}
	if err != nil || age < 0 {
		return 0, fault.New(fault.Usage, "give a time like 12h or 30d", "--older-than %q", s)
	}
	return age, nil
}
