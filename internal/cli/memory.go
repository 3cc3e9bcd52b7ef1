package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/memory"
	"github.com/drawbridge-mcp/drawbridge/internal/store/sqlite"
)

func (a *app) memoryCommand() *cobra.Command {
	m := &memoryCmd{app: a}
	c := group("memory", "Look after the notes of a workspace", m.add(), m.search(), m.list(), m.export(), m.imports(), m.delete())
	c.PersistentFlags().StringVar(&m.workspace, "workspace", "", "workspace whose notes are meant (required)")
	return c
}

type memoryCmd struct {
	*app
	workspace string
}

// with opens memory for one command.
func (m *memoryCmd) with(ctx context.Context, f func(*memory.Service) error) error {
	if m.workspace == "" {
		return fault.New(fault.Usage, "name the workspace whose notes are meant", "--workspace is missing")
	}
	dir, err := m.state()
	if err != nil {
		return err
	}
	store, err := sqlite.Open(ctx, dir.Database())
	if err != nil {
		return err
	}
	defer store.Close()
	return f(memory.NewService(store.Notes(), nil))
}

// runID is the whole id of a run on record; the record of one whose notes are
// meant may be pruned, and then its id has to be given whole.
func (m *memoryCmd) runID(name string) string {
	if dir, err := m.state(); err == nil {
		if meta, _, err := dir.Find(name); err == nil {
			return meta.ID
		}
	}
	return name
}

func (m *memoryCmd) add() *cobra.Command {
	var n memory.Note
	c := &cobra.Command{
		Use:   "add TEXT",
		Short: "Add a note; - reads it from standard input",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			n.Workspace, n.Text = m.workspace, strings.Join(args, " ")
			if len(args) == 1 && args[0] == "-" {
				b, err := io.ReadAll(io.LimitReader(m.in, memory.MaxText+1))
				if err != nil {
					return fault.Wrap(err, fault.Usage, "", "read the note")
				}
				n.Text = strings.TrimRight(string(b), "\n")
			}
			return m.with(c.Context(), func(s *memory.Service) error {
				n.User = currentUser()
				added, err := s.Add(c.Context(), n)
				if err == nil {
					fmt.Fprintln(m.out, added.ID)
				}
				return err
			})
		},
	}
	c.Flags().StringVar(&n.Channel, "channel", "", "channel the note came from")
	return c
}

func (m *memoryCmd) search() *cobra.Command {
	var (
		limit  int
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "search QUERY",
		Short: "Find notes by any text, best first",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := notNegative(c); err != nil {
				return err
			}
			return m.with(c.Context(), func(s *memory.Service) error {
				notes, err := s.Search(c.Context(), m.workspace, strings.Join(args, " "), limit)
				if err != nil {
					return err
				}
				if len(notes) == 0 && !asJSON {
					fmt.Fprintln(m.out, "no matching notes")
				}
				for _, n := range notes {
					m.print(n, asJSON)
				}
				return nil
			})
		},
	}
	c.Flags().IntVar(&limit, "limit", memory.DefaultHits, fmt.Sprintf("notes to show, at most %d", memory.MaxHits))
	c.Flags().BoolVar(&asJSON, "json", false, "print one note a line as JSON")
	return c
}

func (m *memoryCmd) list() *cobra.Command {
	var (
		f      memory.Filter
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List the notes of a workspace, oldest first",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return m.with(c.Context(), func(s *memory.Service) error {
				if f.Run != "" {
					f.Run = m.runID(f.Run)
				}
				for n, err := range s.List(c.Context(), m.workspace, f) {
					if err != nil {
						return err
					}
					m.print(n, asJSON)
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&f.Run, "run", "", "only notes that this run added")
	c.Flags().BoolVar(&f.Newest, "newest", false, "newest first")
	c.Flags().BoolVar(&asJSON, "json", false, "print one note a line as JSON")
	return c
}

func (m *memoryCmd) print(n memory.Note, asJSON bool) {
	if asJSON {
		enc := json.NewEncoder(m.out)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(n)
		return
	}
	from := n.Time.Local().Format("2006-01-02 15:04")
	for _, p := range []struct{ label, v string }{{"user ", n.User}, {"channel ", n.Channel}, {"agent ", n.Agent}, {"run ", n.Run}} {
		from += opt(", "+p.label, p.v)
	}
	text := n.Text
	if isTerminal(m.out) {
		text = visible(text)
	}
	// What begins a line is a note: no note can look like another one.
	text = strings.ReplaceAll(text, "\n", "\n    ")
	fmt.Fprintf(m.out, "%s  %s  (%s)\n", n.ID, text, line(from, 2000))
}

func (m *memoryCmd) export() *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Write the notes of a workspace as JSON lines to standard output",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return m.with(c.Context(), func(s *memory.Service) error {
				n, err := s.Export(c.Context(), m.workspace, m.out)
				if err == nil {
					fmt.Fprintf(m.err, "exported %d notes\n", n)
				}
				return err
			})
		},
	}
}

func (m *memoryCmd) imports() *cobra.Command {
	return &cobra.Command{
		Use:   "import [FILE]",
		Short: "Add notes from JSON lines, all or none; notes whose id is there already are skipped",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			in := io.Reader(m.in)
			if len(args) == 1 && args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return fault.Wrap(err, fault.Usage, "give a file that you can read, or - for standard input", "notes to import")
				}
				defer f.Close()
				in = f
			}
			return m.with(c.Context(), func(s *memory.Service) error {
				added, skipped, err := s.Import(c.Context(), m.workspace, in)
				if err == nil {
					fmt.Fprintf(m.err, "imported %d notes, skipped %d that were there\n", added, skipped)
				}
				return err
			})
		},
	}
}

func (m *memoryCmd) delete() *cobra.Command {
	var run string
	c := &cobra.Command{
		Use:   "delete [ID...]",
		Short: "Delete notes by id, or all that one run added",
		RunE: func(c *cobra.Command, ids []string) error {
			if (run == "") == (len(ids) == 0) {
				return fault.New(fault.Usage, "give ids, or --run RUN", "say which notes to delete")
			}
			return m.with(c.Context(), func(s *memory.Service) error {
				if run != "" {
					id := m.runID(run)
					n, err := s.DeleteRun(c.Context(), m.workspace, id)
					if err == nil && n == 0 {
						err = fault.New(fault.Usage, "drawbridge memory list shows which run added what", "run %s has no notes in workspace %s", id, m.workspace)
					}
					if err == nil {
						fmt.Fprintf(m.err, "deleted %d notes\n", n)
					}
					return err
				}
				var missing []string
				for _, id := range ids {
					ok, err := s.Delete(c.Context(), m.workspace, id)
					if err != nil {
						return err
					}
					if !ok {
						missing = append(missing, strconv.Quote(id))
					}
				}
				fmt.Fprintf(m.err, "deleted %d notes\n", len(ids)-len(missing))
				if missing != nil {
					return fault.New(fault.Usage, "drawbridge memory list shows the ids", "no note %s in workspace %s", strings.Join(missing, ", "), m.workspace)
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&run, "run", "", "delete every note this run added")
	return c
}
