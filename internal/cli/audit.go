package cli

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

func (a *app) auditCommand() *cobra.Command {
	return group("audit", "Show and verify what a run did", a.auditVerify(), a.auditShow())
}

// record opens the record of a run: an id, an unambiguous part of one, "last",
// or the path of a record copied from elsewhere.
func (a *app) record(name string) (*os.File, state.Meta, error) {
	if strings.ContainsRune(name, os.PathSeparator) || strings.HasSuffix(name, ".jsonl") {
		real, err := filepath.EvalSymlinks(name)
		var f *os.File
		if err == nil {
			f, err = state.OpenFile(real, os.O_RDONLY)
		}
		if err != nil {
			return nil, state.Meta{}, fault.Wrap(err, fault.Usage, "give the id of a run, or the path of an audit.jsonl", "audit record %s", name)
		}
		return f, state.Beside(real, name), nil
	}
	dir, err := a.state()
	if err != nil {
		return nil, state.Meta{}, err
	}
	meta, folder, err := dir.Find(name)
	if err != nil {
		return nil, meta, err
	}
	f, err := state.OpenFile(filepath.Join(folder, "audit.jsonl"), os.O_RDONLY)
	if err != nil {
		return nil, meta, fault.Wrap(err, fault.Record, "", "audit record of run %s", meta.ID)
	}
	return f, meta, nil
}

func (a *app) auditVerify() *cobra.Command {
	var (
		head   string
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "verify RUN",
		Short: "Prove that a record is whole, or name its first bad line",
		Long: `Check that every line of a record carries the hash of the line before. RUN is a run's
id, the unambiguous beginning or end of one, "last", or the path of a record (with its
run.json beside it, where there is one).

With --head, the hash that was printed when the run ended, also a record that was cut
at its end or rewritten is found out. Nothing here proves anything against whoever
controls both the record and the place the head is kept in. Exit code 5 means: bad.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			f, meta, err := a.record(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			switch b, bad := hex.DecodeString(head); {
			case head == "" && !c.Flags().Changed("head"):
				head = meta.Head
			case bad == nil && len(b) == sha256.Size:
				head = strings.ToLower(head)
			case bad != nil || len(b) != sha256.Size:
				return fault.New(fault.Usage, "a head is the 64 hex digits that were printed when the run ended", "--head %q is no head", call.Clip(head))
			}
			rep, err := audit.Verify(f, head)
			if err != nil {
				return fault.Wrap(err, fault.Record, "", "read the record")
			}
			if asJSON {
				_ = json.NewEncoder(a.out).Encode(struct {
					Run        string  `json:"run"`
					OK         bool    `json:"ok"`
					Lines      int64   `json:"lines"`
					Head       string  `json:"head"`
					Closed     bool    `json:"closed"`
					Torn       bool    `json:"torn"`
					FirstBad   int64   `json:"first_bad,omitempty"`
					Problem    string  `json:"problem,omitempty"`
					Unfinished []int64 `json:"unfinished,omitempty"`
				}{meta.ID, rep.Problem == "", rep.Lines, rep.Head, rep.Closed, rep.Torn, rep.FirstBad, rep.Problem, rep.Unfinished})
			} else {
				printReport(a.out, meta, rep)
			}
			if rep.Problem != "" {
				return exitCode(fault.Record)
			}
			return nil
		},
	}
	c.Flags().StringVar(&head, "head", "", "hash of the last line, as printed when the run ended (default: the one in run.json)")
	c.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return c
}

func printReport(w io.Writer, meta state.Meta, rep audit.Report) {
	if rep.Problem != "" {
		fmt.Fprintf(w, "bad: %s\n", line(rep.Problem, 1000))
		return
	}
	fmt.Fprintf(w, "ok: %d lines, head %s\n", rep.Lines, rep.Head)
	switch {
	case meta.Status == state.Running:
		fmt.Fprintln(w, "the run is still going on")
	case rep.Torn:
		fmt.Fprintln(w, "the last line is torn: the run was killed while it wrote; that is not taken for tampering")
	case !rep.Closed:
		fmt.Fprintln(w, "the record was not closed: the run was killed, or the end was cut off; only a head from elsewhere tells which")
	}
	if len(rep.Unfinished) > 0 {
		fmt.Fprintf(w, "calls that began and whose outcome is not on record: lines %s\n", strings.Trim(fmt.Sprint(rep.Unfinished), "[]"))
	}
}

func (a *app) auditShow() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show RUN",
		Short: "Show what a run did, a line for each line of its record",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			f, meta, err := a.record(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			rep, err := audit.Verify(f, meta.Head)
			if err == nil {
				_, err = f.Seek(0, io.SeekStart)
			}
			if err != nil {
				return fault.Wrap(err, fault.Record, "", "read the record")
			}
			lines := 0
			err = audit.Read(f, func(r audit.Record) error {
				lines++
				if asJSON {
					return nil
				}
				// A record from elsewhere may hold anything in any of its members.
				_, err := fmt.Fprintln(a.out, line(describe(r), 8000))
				return err
			})
			if asJSON {
				err = errors.Join(copyLines(a.out, f, lines), err)
			}
			if err == nil && rep.Problem != "" {
				err = errors.New(line(rep.Problem, 1000))
			}
			if err != nil {
				return fault.Wrap(err, fault.Record, "what is shown may not be what happened; drawbridge audit verify says more", "the record is bad")
			}
			if !rep.Closed && meta.Status != state.Running {
				fmt.Fprintln(a.err, "drawbridge: notice: the record was not closed: the run was killed, or the end was cut off")
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the lines themselves")
	return c
}

// copyLines writes the first n lines of f as they are, so that what was printed
// can be verified too.
func copyLines(w io.Writer, f io.ReadSeeker, n int) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	in, out := bufio.NewReader(f), bufio.NewWriter(w)
	for range n {
		b, err := in.ReadBytes('\n')
		if err != nil {
			return err
		}
		if _, err := out.Write(b); err != nil {
			return err
		}
	}
	return out.Flush()
}

func describe(r audit.Record) string {
	head := fmt.Sprintf("%4d %s %-7s ", r.Seq, r.Time.Format("2006-01-02 15:04:05.000"), r.Kind)
	tool := line(r.Tool, 80)
	switch r.Kind {
	case audit.Open:
		if r.Run == nil {
			return head
		}
		return head + fmt.Sprintf("run %s, agent %s, workspace %s, channel %s, user %s, level %s, scope [%s]",
			r.Run.ID, line(r.Run.Agent, 80), line(r.Run.Workspace, 80), line(r.Run.Channel, 80), line(r.Run.User, 80), r.Run.Level, line(strings.Join(r.Run.Scope, " "), 2000))
	case audit.Begin:
		return head + fmt.Sprintf("%s %s (%s, by %s%s)", tool, arguments(r), r.Decision, r.Layer, opt(" ", line(r.Rule, 300)))
	case audit.Answer:
		return head + answered(r)
	case audit.End:
		if r.Outcome == audit.Denied {
			return head + fmt.Sprintf("%s of line %d: not run (denied)", tool, r.Call)
		}
		return head + fmt.Sprintf("%s of line %d: %s, %.1f ms, %d bytes", tool, r.Call, r.Outcome, float64(r.Micros)/1000, r.ResultSize)
	case audit.Refused:
		return head + fmt.Sprintf("%s %s: %s%s: %s", tool, arguments(r), r.Layer, opt(" ", line(r.Rule, 300)), line(r.Reason, 400))
	case audit.Close:
		var totals []string
		for _, k := range slices.Sorted(maps.Keys(r.Totals)) {
			totals = append(totals, fmt.Sprintf("%s %d", k, r.Totals[k]))
		}
		return head + line(strings.Join(totals, ", "), 1000)
	}
	return head + line(r.What, 80) + opt(": ", line(r.Detail, 400))
}

// answered is what a person said, or that nobody did.
func answered(r audit.Record) string {
	said := "no"
	if r.Decision == string(call.Allow) {
		said = "yes"
	}
	said = fmt.Sprintf("%s to line %d, question %s", said, r.Call, line(r.Rule, 80))
	if r.Detail == "expired" {
		return said + ": nobody answered in time"
	}
	return said + opt(", by ", line(r.Detail, 80)) + opt(": ", line(r.Reason, 400))
}

func arguments(r audit.Record) string {
	if r.Arguments != nil {
		return line(string(r.Arguments), 400)
	}
	if r.ArgumentsSize == 0 {
		return "{}"
	}
	return fmt.Sprintf("(%d bytes, %s)", r.ArgumentsSize, r.ArgumentsDigest)
}
