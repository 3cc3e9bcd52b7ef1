package memory

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// maxLine leaves room for a text whose every byte is written as an escape of
// six.
const maxLine = 8 * MaxText

// Export writes every note of the workspace to w, one JSON object a line with
// all fields of Note, oldest first, and reports how many. Import takes the same
// lines.
func (s *Service) Export(ctx context.Context, workspace string, w io.Writer) (int, error) {
	out := bufio.NewWriter(w)
	count := 0
	for n, err := range s.List(ctx, workspace, Filter{}) {
		if err != nil {
			return count, err
		}
		if err := json.MarshalWrite(out, n); err != nil {
			return count, writeError(err)
		}
		if err := out.WriteByte('\n'); err != nil {
			return count, writeError(err)
		}
		count++
	}
	if err := out.Flush(); err != nil {
		return count, writeError(err)
	}
	return count, nil
}

func writeError(err error) error {
	return fault.Wrap(err, fault.Usage, "what was written is not the whole workspace", "notes could not be written")
}

// Import adds the notes r holds as JSON lines to the workspace, all or none: an
// error, which names the line, leaves the workspace as it was. Only text is
// required. A line without a workspace belongs to this one, a line with another
// one is an error; a line without a time is from now; a line without an id gets
// one made from its bytes. Notes whose id the workspace has already are
// skipped, so the same file can be imported twice. The whole input is held in
// memory, and others who add meanwhile wait until it is stored.
func (s *Service) Import(ctx context.Context, workspace string, r io.Reader) (added, skipped int, err error) {
	if err := checkWorkspace(workspace); err != nil {
		return 0, 0, err
	}
	now := s.now().UTC().Round(0)
	var notes []Note
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	no := 0
	for lines.Scan() {
		no++
		line := bytes.TrimSpace(lines.Bytes())
		if no == 1 {
			line = bytes.TrimPrefix(line, []byte("\uFEFF"))
		}
		if len(line) == 0 {
			continue
		}
		n, err := parseLine(line, workspace, now)
		if err != nil {
			return 0, 0, lineError(no, err)
		}
		notes = append(notes, n)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return 0, 0, lineError(no+1, fault.New(fault.Usage, "", "longer than %d bytes", maxLine))
	} else if err != nil {
		return 0, 0, fault.Wrap(err, fault.Usage, "nothing was imported", "notes could not be read after line %d", no)
	}
	if len(notes) == 0 {
		return 0, 0, nil
	}
	added, err = s.store.Add(ctx, notes)
	if err != nil {
		return 0, 0, err
	}
	return added, len(notes) - added, nil
}

func parseLine(line []byte, workspace string, now time.Time) (Note, error) {
	var n Note
	if err := json.Unmarshal(line, &n, json.RejectUnknownMembers(true)); err != nil {
		return n, fault.Wrap(err, fault.Usage, "", "not a note")
	}
	switch n.Workspace {
	case "":
		n.Workspace = workspace
	case workspace:
	default:
		return n, fault.New(fault.Usage, "", "the note belongs to workspace %q, not %q", n.Workspace, workspace)
	}
	if n.ID == "" {
		sum := sha256.Sum256(line)
		n.ID = idText.EncodeToString(sum[:])[:idLen]
	}
	if n.Time.IsZero() {
		n.Time = now
	}
	n.Time = n.Time.UTC()
	return n, n.check()
}

func lineError(no int, err error) error {
	return fault.Wrap(err, fault.Usage, "nothing was imported; correct the line and import again", "line %d", no)
}
