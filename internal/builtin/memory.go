package builtin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/memory"
)

// noHit is the whole answer of a search that finds nothing.
const noHit = "no matching notes"

// shownBytes is where a search stops showing more hits, so that the answer is
// not cut in the middle by the gate. The first hit is always shown.
const shownBytes = call.DefaultOutput - 4<<10

// The schemas leave additional properties alone: an identity that a model puts
// among the arguments changes nothing, and stays in the record.
const (
	searchSchema = `{"type":"object","properties":{` +
		`"query":{"type":"string","description":"words to look for, in any language; notes with all of them come first; a word ending in * matches its beginning"},` +
		`"limit":{"type":"integer","minimum":1,"maximum":100,"description":"most notes to return, 10 if left out"}` +
		`},"required":["query"]}`
	addSchema = `{"type":"object","properties":{` +
		`"text":{"type":"string","description":"the note, understandable without this conversation, at most 64 KiB"}` +
		`},"required":["text"]}`
	deleteSchema = `{"type":"object","properties":{` +
		`"id":{"type":"string","description":"the id of the note as memory_search shows it"}` +
		`},"required":["id"]}`
)

// Memory returns memory_search, memory_add and memory_delete over s. Which
// workspace they reach, and what a new note says of its origin, comes from the
// binding of the call and from nowhere else.
func Memory(s *memory.Service) []call.Tool {
	return []call.Tool{
		{
			Name:        "memory_search",
			Description: "Search the notes remembered in this workspace. Shows each note with its id, time and origin, the best match first.",
			InputSchema: []byte(searchSchema),
			Effects:     call.Read,
			Run: func(ctx context.Context, inv call.Invocation) (call.Result, error) {
				var args struct {
					Query string  `json:"query"`
					Limit float64 `json:"limit"` // 5.0 is an integer to JSON Schema
				}
				if err := decode(inv, &args); err != nil {
					return call.Errorf("the arguments do not fit: query must be a string, limit an integer"), nil
				}
				limit := int(min(max(args.Limit, 0), memory.MaxHits))
				notes, err := s.Search(ctx, inv.Binding.Workspace, args.Query, limit)
				if err != nil {
					return memoryFailed(err)
				}
				return showNotes(notes), nil
			},
		},
		{
			Name:        "memory_add",
			Description: "Remember a note in this workspace, so that later runs can find it with memory_search.",
			InputSchema: []byte(addSchema),
			Effects:     call.Write,
			Run: func(ctx context.Context, inv call.Invocation) (call.Result, error) {
				var args struct {
					Text string `json:"text"`
				}
				if err := decode(inv, &args); err != nil {
					return call.Errorf("the arguments do not fit: text must be a string"), nil
				}
				b := inv.Binding
				n, err := s.Add(ctx, memory.Note{
					Workspace: b.Workspace, Text: args.Text, Run: b.Run, Agent: b.Agent, Channel: b.Channel, User: b.User,
				})
				if err != nil {
					return memoryFailed(err)
				}
				return call.Text("added note " + n.ID), nil
			},
		},
		{
			Name:        "memory_delete",
			Description: "Delete one note of this workspace for good.",
			InputSchema: []byte(deleteSchema),
			Effects:     call.Destructive,
			Run: func(ctx context.Context, inv call.Invocation) (call.Result, error) {
				var args struct {
					ID string `json:"id"`
				}
				if err := decode(inv, &args); err != nil {
					return call.Errorf("the arguments do not fit: id must be a string"), nil
				}
				ok, err := s.Delete(ctx, inv.Binding.Workspace, args.ID)
				switch {
				case err != nil:
					return memoryFailed(err)
				case !ok:
					return call.Errorf("no note with the id %q", call.Clip(args.ID)), nil
				}
				return call.Text("deleted note " + args.ID), nil
			},
		},
	}
}

// showNotes puts each note's text first and its origin below. Further lines of a
// text are marked, so that no text can pass for the origin of a note, or for
// another note.
func showNotes(notes []memory.Note) call.Result {
	if len(notes) == 0 {
		return call.Text(noHit)
	}
	var b strings.Builder
	for i, n := range notes {
		hit := showNote(n)
		if i > 0 && b.Len()+len(hit) > shownBytes {
			fmt.Fprintf(&b, "\n[%d more matching notes not shown: use a narrower query or a smaller limit]\n", len(notes)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(hit)
	}
	r := call.Text(b.String())
	r.Flags.Invisible = call.Invisible(r.Content[0].Text)
	return r
}

// lineBreaks is every line break of Unicode (UAX #14), each its own way to start
// a line on some terminal.
var lineBreaks = strings.NewReplacer("\r\n", "\n  | ", "\n", "\n  | ", "\r", "\n  | ", "\v", "\n  | ", "\f", "\n  | ",
	"\u0085", "\n  | ", "\u2028", "\n  | ", "\u2029", "\n  | ")

func showNote(n memory.Note) string {
	var b strings.Builder
	b.WriteString(lineBreaks.Replace(strings.TrimSpace(n.Text)))
	fmt.Fprintf(&b, "\n  [id %s, %s", n.ID, n.Time.UTC().Format(time.RFC3339))
	for _, f := range []struct{ name, value string }{
		{"run", n.Run}, {"agent", n.Agent}, {"channel", n.Channel}, {"user", n.User},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, ", %s %s", f.name, f.value)
		}
	}
	b.WriteString("]\n")
	return b.String()
}

// memoryFailed is what a model learns of an error: the message made for people,
// and not its cause. An ended context is the gate's to judge.
func memoryFailed(err error) (call.Result, error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return call.Result{}, err
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return call.Errorf("memory: %s", f.Message), nil
	}
	return call.Errorf("memory: it can't be reached"), nil
}
