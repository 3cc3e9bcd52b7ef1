package memory

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"iter"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// Limits of one search.
const (
	DefaultHits = 10
	MaxHits     = 100
)

// Service is memory as the tools and the command use it: a Store behind the
// rules for what a note may be. Its errors are those of a Store, and for a
// refused note a *fault.Error of kind Usage. It is safe for concurrent use.
type Service struct {
	store Store
	now   func() time.Time

	mu    sync.Mutex
	added map[string]int // by run
}

// NewService returns a Service over store. now is the clock, nil for time.Now.
// The count towards MaxPerRun is kept in the Service, so one Service must serve
// the whole of a run.
func NewService(store Store, now func() time.Time) *Service {
	if now == nil {
		now = time.Now
	}
	return &Service{store: store, now: now, added: map[string]int{}}
}

// Add stores one note and returns it as stored: an empty ID is made up, a zero
// Time is now. A note with an ID the workspace has already is refused. Notes of
// a run count towards MaxPerRun.
func (s *Service) Add(ctx context.Context, n Note) (Note, error) {
	made := n.ID == ""
	if made {
		n.ID = newID()
	}
	if n.Time.IsZero() {
		n.Time = s.now()
	}
	n.Time = n.Time.UTC().Round(0)
	if err := n.check(); err != nil {
		return Note{}, err
	}
	release, err := s.reserve(n.Run)
	if err != nil {
		return Note{}, err
	}
	for {
		added, err := s.store.Add(ctx, []Note{n})
		if err != nil {
			release()
			return Note{}, err
		}
		if added == 1 {
			return n, nil
		}
		if !made {
			release()
			return Note{}, fault.New(fault.Usage, "leave the id out to have one made up", "a note with id %q exists already", n.ID)
		}
		n.ID = newID()
	}
}

// reserve takes one of the notes the run may add; release gives it back.
func (s *Service) reserve(run string) (release func(), err error) {
	if run == "" {
		return func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.added[run] >= MaxPerRun {
		return nil, fault.New(fault.Usage, "", "this run has added %d notes, the most one run may add", MaxPerRun)
	}
	s.added[run]++
	return func() {
		s.mu.Lock()
		s.added[run]--
		s.mu.Unlock()
	}, nil
}

// Search finds notes of the workspace by any text, see ParseQuery and
// Store.Search. limit 0 is DefaultHits; more than MaxHits is MaxHits. No hit is
// an empty slice.
func (s *Service) Search(ctx context.Context, workspace, query string, limit int) ([]Note, error) {
	if err := checkWorkspace(workspace); err != nil {
		return nil, err
	}
	if limit <= 0 {
		limit = DefaultHits
	}
	return s.store.Search(ctx, workspace, ParseQuery(query), min(limit, MaxHits))
}

// List yields the notes of the workspace.
func (s *Service) List(ctx context.Context, workspace string, f Filter) iter.Seq2[Note, error] {
	if err := checkWorkspace(workspace); err != nil {
		return func(yield func(Note, error) bool) { yield(Note{}, err) }
	}
	return s.store.List(ctx, workspace, f)
}

// Delete removes one note and reports whether it was there.
func (s *Service) Delete(ctx context.Context, workspace, id string) (bool, error) {
	if err := checkWorkspace(workspace); err != nil {
		return false, err
	}
	n, err := s.store.Delete(ctx, workspace, []string{id})
	return n > 0, err
}

// DeleteRun removes what a run added to the workspace and reports how many
// notes that were. An empty run is refused: it would name every note added by
// hand.
func (s *Service) DeleteRun(ctx context.Context, workspace, run string) (int, error) {
	if err := checkWorkspace(workspace); err != nil {
		return 0, err
	}
	if run == "" {
		return 0, fault.New(fault.Usage, "name the run, as `drawbridge runs list` shows it", "no run given")
	}
	return s.store.DeleteRun(ctx, workspace, run)
}

func checkWorkspace(name string) error { return checkField("workspace", name, true) }

// check reports the first rule the note breaks.
func (n *Note) check() error {
	if err := checkWorkspace(n.Workspace); err != nil {
		return err
	}
	for _, f := range []struct{ name, value string }{
		{"run", n.Run}, {"agent", n.Agent}, {"channel", n.Channel}, {"user", n.User},
	} {
		if err := checkField(f.name, f.value, false); err != nil {
			return err
		}
	}
	if !validID(n.ID) {
		return fault.New(fault.Usage, "", "id is not 1 to 64 letters, digits, '.', '_' or '-'")
	}
	if y := n.Time.Year(); y < 1700 || y > 2200 {
		return fault.New(fault.Usage, "", "time is not between the years 1700 and 2200")
	}
	switch {
	case len(n.Text) > MaxText:
		return fault.New(fault.Usage, "split it into several notes", "text is %d bytes, a note may have %d", len(n.Text), MaxText)
	case !utf8.ValidString(n.Text):
		return fault.New(fault.Usage, "convert it to UTF-8 first", "text is not valid UTF-8")
	}
	for _, r := range n.Text {
		if !unicode.IsSpace(r) {
			return nil
		}
	}
	return fault.New(fault.Usage, "", "text is empty")
}

// checkField keeps control characters out of what is shown in one line.
func checkField(name, value string, required bool) error {
	if value == "" && required {
		return fault.New(fault.Usage, "", "no %s given", name)
	}
	if len(value) > MaxField {
		return fault.New(fault.Usage, "", "%s is longer than %d bytes", name, MaxField)
	}
	if !utf8.ValidString(value) {
		return fault.New(fault.Usage, "", "%s is not valid UTF-8", name)
	}
	for _, r := range value {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return fault.New(fault.Usage, "", "%s has a control character", name)
		}
	}
	return nil
}

func validID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for _, c := range []byte(id) {
		ok := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
		if !ok {
			return false
		}
	}
	return true
}

// idText leaves out the letters that are taken for digits.
var idText = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

const idLen = 10 // 50 bits: one clash in a million notes of a workspace is a 1 in 2000 chance, and met by another try

func newID() string {
	var b [7]byte
	rand.Read(b[:])
	return idText.EncodeToString(b[:])[:idLen]
}
