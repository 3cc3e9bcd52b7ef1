// Package state is the state directory: who may read it, where each run keeps
// its files, which runs are alive, and what a dead one left behind.
//
//	drawbridge.db       memory and questions (SQLite)
//	live/<run>          held locked while the run lives
//	runs/<run>/         audit.jsonl run.json transcript.jsonl stderr.log control.sock
//
// Directories are 0700 and files 0600, whatever the umask.
package state

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// Dir is an opened state directory.
type Dir struct{ path string }

// Default is $XDG_STATE_HOME/drawbridge, or ~/.local/state/drawbridge.
// A relative XDG_STATE_HOME is ignored, as the XDG base directory
// specification asks.
func Default(getenv func(string) string) (string, error) {
	if d := getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "drawbridge"), nil
	}
	if h := getenv("HOME"); filepath.IsAbs(h) {
		return filepath.Join(h, ".local", "state", "drawbridge"), nil
	}
	if h, err := os.UserHomeDir(); err == nil && filepath.IsAbs(h) {
		return filepath.Join(h, ".local", "state", "drawbridge"), nil
	}
	return "", fault.New(fault.Usage, "set HOME or XDG_STATE_HOME, or give a state directory", "no home directory to keep state in")
}

// Open creates path where it is missing and refuses one that others can read
// or that can't be written. Errors are of kind Usage.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "state directory")
	}
	const writable = "give a directory that you can write, with --state-dir or XDG_STATE_HOME"
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
		err = makePrivate(path)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, writable, "state directory %s can't be made", path)
	}
	// A link would let whoever owns it move the state elsewhere between runs,
	// and everything that compares paths needs the real one.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "state directory %s", path)
	}
	if err := private(path, info); err != nil {
		return nil, err
	}
	d := &Dir{path: path}
	for _, sub := range []string{d.runs(), d.live()} {
		if err := makePrivate(sub); err != nil {
			return nil, fault.Wrap(err, fault.Usage, writable, "state directory %s is not writable", path)
		}
	}
	return d, nil
}

// makePrivate makes a directory where there is none. Its mode is set apart,
// because a umask may take bits of the owner away.
func makePrivate(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(path, 0o700)
}

// Path is the directory, absolute and free of links.
func (d *Dir) Path() string { return d.path }

// Database is where memory is kept.
func (d *Dir) Database() string { return filepath.Join(d.path, "drawbridge.db") }

func (d *Dir) runs() string { return filepath.Join(d.path, "runs") }
func (d *Dir) live() string { return filepath.Join(d.path, "live") }

// Meta is run.json.
type Meta struct {
	ID        string     `json:"id"`
	Workspace string     `json:"workspace"`
	Channel   string     `json:"channel"`
	User      string     `json:"user"`
	Agent     string     `json:"agent"`
	Level     string     `json:"level"`
	Folder    string     `json:"folder,omitempty"`
	Scope     []string   `json:"scope"`
	Started   time.Time  `json:"started"`
	Ended     *time.Time `json:"ended,omitempty"`
	// Status is one of Running, Ended, Died and Unknown.
	Status   string `json:"status"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Error    string `json:"error,omitempty"`
	Head     string `json:"audit_head,omitempty"`
	TempDir  string `json:"temp_dir,omitempty"`
}

// maxMeta is how much of a run.json is read.
const maxMeta = 1 << 20

var errNotRegular = errors.New("not a regular file")

// newMark begins the name of a mark that may not be locked yet.
const newMark = ".new-"

// What Meta.Status says.
const (
	Running = "running"
	Ended   = "ended"
	Died    = "died"    // its drawbridge was killed
	Unknown = "unknown" // its run.json can't be read; the record may still be whole
)

// young is how old something must be that is not marked and locked, before it
// is taken for a leftover: it may be in the making.
const young = time.Minute

// Run is the folder of one live run.
type Run struct {
	dir  *Dir
	lock *os.File
	Meta Meta
}

// NewID is a fresh run id: its time, so that names sort, and 64 random bits.
func NewID(now time.Time) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return now.UTC().Format("20060102T150405") + "-" + hex.EncodeToString(b[:])
}

var runID = lazy(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// Begin makes the folder of a run and marks it alive. m.ID may be chosen by the
// caller and must be new; m.Status is set. Errors are of kind Usage.
func (d *Dir) Begin(m Meta) (*Run, error) {
	if !runID().MatchString(m.ID) {
		return nil, fault.New(fault.Usage, "use up to 64 of A-Z a-z 0-9 _ . -", "run id %q is not valid", m.ID)
	}
	m.Status = Running
	r := &Run{dir: d, Meta: m}
	err := os.Mkdir(r.Path(), 0o700) // which a taken id fails
	if err == nil {
		err = os.Chmod(r.Path(), 0o700)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "is the disk full, or the run id taken?", "folder of run %s", m.ID)
	}
	if r.lock, err = d.mark(m.ID); err != nil {
		_ = os.Remove(r.Path())
		return nil, fault.Wrap(err, fault.Usage, "", "mark run %s alive", m.ID)
	}
	if err := r.Save(); err != nil {
		r.release()
		_ = os.RemoveAll(r.Path())
		return nil, err
	}
	return r, nil
}

// Path is the folder of the run.
func (r *Run) Path() string { return r.dir.Folder(r.Meta.ID) }

// File is a file in the folder of the run.
func (r *Run) File(name string) string { return filepath.Join(r.Path(), name) }

// Save writes run.json anew, whole or not at all.
func (r *Run) Save() error { return save(r.Path(), r.Meta) }

// End saves the run as ended and gives up its mark.
func (r *Run) End(now time.Time) error {
	r.Meta.Status = Ended
	now = now.UTC()
	r.Meta.Ended = &now
	err := r.Save()
	r.release()
	return err
}

// Discard removes the folder of a run that never began.
func (r *Run) Discard() {
	_ = os.RemoveAll(r.Path())
	r.release()
}

func (r *Run) release() {
	_ = os.Remove(filepath.Join(r.dir.live(), r.Meta.ID))
	_ = r.lock.Close()
}

func save(folder string, m Meta) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(folder, "run.json.new")
	if err := writePrivate(tmp, append(b, '\n')); err != nil {
		return fault.Wrap(err, fault.Usage, "is the disk full?", "write run.json")
	}
	if err := os.Rename(tmp, filepath.Join(folder, "run.json")); err != nil {
		return fault.Wrap(err, fault.Usage, "", "write run.json")
	}
	return nil
}

// writePrivate never follows a link that was planted at path, nor keeps the
// mode of a file that was left there.
func writePrivate(path string, b []byte) error {
	_ = os.Remove(path)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := f.Chmod(0o600); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		_ = f.Close()
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// Runs lists the runs on record, oldest first. Never nil.
func (d *Dir) Runs() ([]Meta, error) {
	ids, err := d.ids()
	if err != nil {
		return nil, err
	}
	list := []Meta{}
	for _, id := range ids {
		list = append(list, d.loadAny(id))
	}
	slices.SortStableFunc(list, func(a, b Meta) int { return a.Started.Compare(b.Started) })
	return list, nil
}

// Live lists the runs that are alive, oldest first. Those of another state
// directory are not seen. Never nil.
func (d *Dir) Live() ([]Meta, error) {
	entries, err := os.ReadDir(d.live())
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "list live runs")
	}
	list := []Meta{}
	for _, e := range entries {
		if runID().MatchString(e.Name()) && d.alive(e.Name()) {
			list = append(list, d.loadAny(e.Name()))
		}
	}
	slices.SortStableFunc(list, func(a, b Meta) int { return a.Started.Compare(b.Started) })
	return list, nil
}

// Folder is where the run with that id keeps its files, if there is one.
func (d *Dir) Folder(id string) string { return filepath.Join(d.runs(), id) }

// ids are the names in runs/ that can be a run's, sorted.
func (d *Dir) ids() ([]string, error) {
	entries, err := os.ReadDir(d.runs())
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "list runs")
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && runID().MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Find is the run called id, or the only one whose id begins or ends with at
// least four characters of it, or the one that started last for "last"; and its
// folder. The error is of kind Usage.
func (d *Dir) Find(id string) (Meta, string, error) {
	ids, err := d.ids()
	if err != nil {
		return Meta{}, "", err
	}
	var hits []string
	switch {
	case slices.Contains(ids, id):
		hits = []string{id}
	case id == "last":
		runs, err := d.Runs()
		if err != nil {
			return Meta{}, "", err
		}
		if len(runs) > 0 {
			hits = []string{runs[len(runs)-1].ID}
		}
	case len(id) >= 4:
		for _, n := range ids {
			if strings.HasPrefix(n, id) || strings.HasSuffix(n, id) {
				hits = append(hits, n)
			}
		}
	}
	switch len(hits) {
	case 0:
		return Meta{}, "", fault.New(fault.Usage, "drawbridge runs list shows them", "no run %q", id)
	case 1:
		return d.loadAny(hits[0]), filepath.Join(d.runs(), hits[0]), nil
	}
	return Meta{}, "", fault.New(fault.Usage, "give more of the id: "+strings.Join(hits[:min(len(hits), 5)], ", "), "%d runs match %q", len(hits), id)
}

// loadAny stands in for a run.json that can't be read: the record beside it may
// be what somebody needs, and prune has to see the folder.
func (d *Dir) loadAny(id string) Meta {
	m, err := d.load(id)
	if err == nil {
		return m
	}
	m = Meta{ID: id, Status: Unknown, Scope: []string{}}
	if d.alive(id) {
		m.Status = Running
	}
	if info, err := os.Stat(filepath.Join(d.runs(), id)); err == nil {
		m.Started = info.ModTime().UTC()
	}
	return m
}

func (d *Dir) load(id string) (Meta, error) {
	var m Meta
	f, err := OpenFile(filepath.Join(d.runs(), id, "run.json"), os.O_RDONLY)
	if err != nil {
		return m, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMeta))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, err
	}
	m.ID = id
	if m.Status == Running && !d.alive(id) {
		m.Status = Died
	}
	return m, nil
}

// Beside is the run.json that lies beside a record copied from elsewhere; where
// there is none, only ID is set, to name.
func Beside(record, name string) Meta {
	m := Meta{ID: name}
	f, err := OpenFile(filepath.Join(filepath.Dir(record), "run.json"), os.O_RDONLY)
	if err != nil {
		return m
	}
	defer f.Close()
	if b, err := io.ReadAll(io.LimitReader(f, maxMeta)); err != nil || json.Unmarshal(b, &m) != nil {
		return Meta{ID: name}
	}
	return m
}

// Prune removes the folders of runs that ended before that time (of those that
// died or are unknown: started) and returns their ids. Live runs stay.
func (d *Dir) Prune(before time.Time) ([]string, error) {
	runs, err := d.Runs()
	if err != nil {
		return nil, err
	}
	gone := []string{}
	for _, m := range runs {
		at := m.Started
		if m.Ended != nil {
			at = *m.Ended
		}
		if m.Status == Running || !at.Before(before) || m.Status == Unknown && time.Since(at) < young {
			continue
		}
		if err := os.RemoveAll(filepath.Join(d.runs(), m.ID)); err != nil {
			return gone, fault.Wrap(err, fault.Usage, "", "remove run %s", m.ID)
		}
		gone = append(gone, m.ID)
	}
	return gone, nil
}

// Sweep finds runs whose drawbridge was killed, hands each to clean (which ends
// processes and removes the temporary folder), and marks it as died. Of several
// sweeps at once one cleans a run. Of a run whose run.json can't be read clean
// gets the ID alone.
func (d *Dir) Sweep(clean func(Meta)) {
	entries, err := os.ReadDir(d.live())
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(d.live(), e.Name())
		if info, err := e.Info(); strings.HasPrefix(e.Name(), newMark) && err == nil && time.Since(info.ModTime()) < young {
			continue
		}
		f, err := tryLock(path)
		if err != nil {
			continue // held: the run is alive
		}
		if stillThere(path, f) {
			d.bury(e.Name(), clean)
			_ = os.Remove(path)
		}
		_ = f.Close()
	}
}

// stillThere reports whether f, locked by now, is the mark at path: another
// sweep may have been through with it between the opening and the lock.
func stillThere(path string, f *os.File) bool {
	at, err1 := os.Lstat(path)
	held, err2 := f.Stat()
	return err1 == nil && err2 == nil && os.SameFile(at, held)
}

// bury cleans up after the dead run id. Its mark is held.
func (d *Dir) bury(id string, clean func(Meta)) {
	if !runID().MatchString(id) {
		return
	}
	m, err := d.load(id)
	switch {
	case err != nil:
		clean(Meta{ID: id, Status: Unknown})
	case m.Status != Ended:
		m.Status = Died
		clean(m)
		m.TempDir = ""
		_ = save(filepath.Join(d.runs(), id), m) // a dead run marked as running is shown as died anyway
	}
}

// lazy compiles a pattern when it is first used: every start of the program, and
// of each helper, would pay for it otherwise.
func lazy(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
