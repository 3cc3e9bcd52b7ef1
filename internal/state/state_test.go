package state

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func open(t *testing.T) *Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func begin(t *testing.T, d *Dir, id string, started time.Time) *Run {
	t.Helper()
	r, err := d.Begin(Meta{ID: id, Workspace: "w", Scope: []string{}, Started: started})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.lock.Close() })
	return r
}

func ended(t *testing.T, d *Dir, id string, started, at time.Time) {
	t.Helper()
	if err := begin(t, d, id, started).End(at); err != nil {
		t.Fatal(err)
	}
}

func ids(ms []Meta) []string {
	list := []string{}
	for _, m := range ms {
		list = append(list, m.ID)
	}
	return list
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range es {
		list = append(list, e.Name())
	}
	return list
}

func wantUsage(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want a usage error with %q", err, says)
	}
}

func TestDefault(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/drawbridge"},
		{map[string]string{"XDG_STATE_HOME": "x", "HOME": "/h"}, "/h/.local/state/drawbridge"},
		{map[string]string{"XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/drawbridge"},
	} {
		if filepath.Separator != '/' {
			t.Skip("paths with slashes")
		}
		if got, err := Default(func(k string) string { return c.env[k] }); got != c.want || err != nil {
			t.Errorf("%v: %q %v, want %q", c.env, got, err, c.want)
		}
	}
}

func TestNewID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID(noon.In(time.FixedZone("x", 7200)))
		if seen[id] || !runID().MatchString(id) || !strings.HasPrefix(id, "20261201T120000-") {
			t.Fatal(id)
		}
		seen[id] = true
	}
	if NewID(noon) >= NewID(noon.Add(time.Second)) {
		t.Error("ids do not sort by time")
	}
}

func TestBeginAndEnd(t *testing.T) {
	d := open(t)
	r, err := d.Begin(Meta{ID: "one", Workspace: "w", Status: "nonsense", Scope: []string{"a"}, Started: noon})
	if err != nil {
		t.Fatal(err)
	}
	if r.Path() != filepath.Join(d.Path(), "runs", "one") || r.File("x") != filepath.Join(r.Path(), "x") {
		t.Errorf("%s %s", r.Path(), r.File("x"))
	}
	m, folder, err := d.Find("one")
	if err != nil || folder != r.Path() || m.Status != Running || m.Ended != nil || !slices.Equal(m.Scope, []string{"a"}) {
		t.Errorf("%+v %s %v", m, folder, err)
	}
	code := 3
	r.Meta.ExitCode, r.Meta.Head = &code, "abc"
	if err := r.End(noon.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	m, _, err = d.Find("one")
	if err != nil || m.Status != Ended || !m.Ended.Equal(noon.Add(time.Minute)) || *m.ExitCode != 3 || m.Head != "abc" {
		t.Errorf("%+v %v", m, err)
	}
	if left := entries(t, d.live()); len(left) != 0 {
		t.Errorf("marks left: %q", left)
	}
	if files := entries(t, r.Path()); !slices.Equal(files, []string{"run.json"}) {
		t.Errorf("files: %q", files)
	}

	_, err = d.Begin(Meta{ID: "one"})
	wantUsage(t, err, "folder of run one")
	if m, _, _ := d.Find("one"); m.Status != Ended {
		t.Error("a taken id changed the run that has it")
	}
	r = begin(t, d, "two", noon)
	_, err = d.Begin(Meta{ID: "two"})
	wantUsage(t, err, "folder of run two")
	if m, _, _ := d.Find("two"); m.Status != Running {
		t.Error("a taken id took the mark of the run that has it")
	}
	r.Discard()
	if _, _, err := d.Find("two"); err == nil || len(entries(t, d.live())) != 0 {
		t.Error("a discarded run is still there")
	}
}

func TestRunIDs(t *testing.T) {
	d := open(t)
	for _, bad := range []string{
		"", ".", "..", "../x", "a/b", `a\b`, "/etc", "a\x00", "a\n", "-a", ".a", ".new-a", " ", "a b", "é", strings.Repeat("a", 65),
	} {
		_, err := d.Begin(Meta{ID: bad})
		wantUsage(t, err, "is not valid")
		if m, _, err := d.Find(bad); err == nil {
			t.Errorf("Find(%q): %+v", bad, m)
		}
	}
	if got := entries(t, d.Path()); !slices.Equal(got, []string{"live", "runs"}) {
		t.Errorf("the state directory has %q", got)
	}
	for _, good := range []string{"a", "nightly.2", "A_b-c", strings.Repeat("a", 64)} {
		begin(t, d, good, noon)
	}
}

func TestFind(t *testing.T) {
	d := open(t)
	_, _, err := d.Find("last")
	wantUsage(t, err, `no run "last"`)
	ended(t, d, "20261201T100000-aaaa1111", noon.Add(-2*time.Hour), noon)
	ended(t, d, "20261201T110000-aaaa2222", noon.Add(-time.Hour), noon)
	ended(t, d, "zz-older", noon.Add(-5*time.Hour), noon)
	ended(t, d, "20261201T110000-aaaa2222-b", noon.Add(-3*time.Hour), noon)
	// What is no run is not found, and is not the last one either.
	for _, junk := range []string{".DS_Store", "zzz.txt"} {
		if err := os.WriteFile(filepath.Join(d.runs(), junk), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string]string{
		"last":                       "20261201T110000-aaaa2222",
		"zz-older":                   "zz-older",
		"1111":                       "20261201T100000-aaaa1111",
		"20261201T10":                "20261201T100000-aaaa1111",
		"20261201T110000-aaaa2222":   "20261201T110000-aaaa2222", // although another begins with it
		"20261201T110000-aaaa2222-b": "20261201T110000-aaaa2222-b",
	} {
		m, folder, err := d.Find(id)
		if err != nil || m.ID != want || folder != filepath.Join(d.runs(), want) {
			t.Errorf("%s: %s %s %v, want %s", id, m.ID, folder, err, want)
		}
	}
	for id, says := range map[string]string{"2026": "3 runs match", "111": "no run", "": "no run", "none": "no run", "zzz.txt": "no run", "../runs/zz-older": "no run", "*": "no run"} {
		_, _, err := d.Find(id)
		wantUsage(t, err, says)
	}
	runs, err := d.Runs()
	if want := []string{"zz-older", "20261201T110000-aaaa2222-b", "20261201T100000-aaaa1111", "20261201T110000-aaaa2222"}; err != nil || !slices.Equal(ids(runs), want) {
		t.Errorf("%q %v, want %q: oldest first", ids(runs), err, want)
	}
}

func TestDamagedRunJSON(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "torn": `{"id":"x","status":"run`, "no JSON": "\x00\x00", "another type": `[]`} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			r := begin(t, d, "one", noon)
			ended(t, d, "two", noon, noon)
			if err := os.WriteFile(r.File("run.json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if m, folder, err := d.Find("one"); err != nil || m.ID != "one" || folder != r.Path() || m.Status != Running {
				t.Errorf("alive: %+v %s %v", m, folder, err)
			}
			_ = r.lock.Close()
			m, _, err := d.Find("one")
			if err != nil || m.ID != "one" || m.Status != Unknown || m.Started.IsZero() {
				t.Errorf("dead: %+v %v", m, err)
			}
			if runs, err := d.Runs(); err != nil || len(runs) != 2 {
				t.Errorf("%q %v", ids(runs), err)
			}
			var swept []Meta
			d.Sweep(func(m Meta) { swept = append(swept, m) })
			if !reflect.DeepEqual(swept, []Meta{{ID: "one", Status: Unknown}}) || len(entries(t, d.live())) != 0 {
				t.Errorf("swept %+v, marks %q", swept, entries(t, d.live()))
			}
		})
	}
	// run.json can't make one run pass for another, nor lead out of its folder.
	d := open(t)
	r := begin(t, d, "one", noon)
	b, _ := json.Marshal(Meta{ID: "../../x", Status: Ended})
	if err := os.WriteFile(r.File("run.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if m, _, err := d.Find("one"); err != nil || m.ID != "one" {
		t.Errorf("%+v %v", m, err)
	}
}

func TestPrune(t *testing.T) {
	d, now := open(t), time.Now()
	ended(t, d, "old", now.Add(-50*time.Hour), now.Add(-49*time.Hour))
	ended(t, d, "long", now.Add(-50*time.Hour), now.Add(-time.Hour))
	begin(t, d, "alive", now.Add(-90*time.Hour))
	_ = begin(t, d, "died", now.Add(-90*time.Hour)).lock.Close()
	for name, age := range map[string]time.Duration{"unknown": 90 * time.Hour, "making": 0} {
		folder := filepath.Join(d.runs(), name)
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		at := now.Add(-age)
		if err := os.Chtimes(folder, at, at); err != nil {
			t.Fatal(err)
		}
	}
	gone, err := d.Prune(now.Add(-48 * time.Hour))
	slices.Sort(gone)
	if err != nil || !slices.Equal(gone, []string{"died", "old", "unknown"}) {
		t.Errorf("%q %v", gone, err)
	}
	// With everything that is over, one that is being made right now stays.
	gone, err = d.Prune(now.Add(time.Hour))
	if err != nil || !slices.Equal(gone, []string{"long"}) {
		t.Errorf("%q %v", gone, err)
	}
	if got := entries(t, d.runs()); !slices.Equal(got, []string{"alive", "making"}) {
		t.Errorf("left: %q", got)
	}
	if gone, err := d.Prune(now.Add(time.Hour)); err != nil || gone == nil || len(gone) != 0 {
		t.Errorf("%#v %v", gone, err)
	}
}

func TestSweep(t *testing.T) {
	d := open(t)
	begin(t, d, "alive", noon)
	ended(t, d, "ended", noon, noon)
	dead := begin(t, d, "dead", noon)
	dead.Meta.TempDir = "/tmp/of-the-run"
	if err := dead.Save(); err != nil {
		t.Fatal(err)
	}
	_ = dead.lock.Close()
	// Ended, and killed before its mark was gone.
	late := begin(t, d, "late", noon)
	late.Meta.Status = Ended
	_ = late.Save()
	_ = late.lock.Close()
	// Marked, and killed before it had a folder; marks in the making, one of
	// them long ago.
	for name, age := range map[string]time.Duration{"folderless": 0, newMark + "young": 0, newMark + "stale": time.Hour} {
		path := filepath.Join(d.live(), name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		_ = os.Chtimes(path, at, at)
	}
	var swept []Meta
	d.Sweep(func(m Meta) { swept = append(swept, m) })
	if want := []string{"dead", "folderless"}; !slices.Equal(ids(swept), want) {
		t.Errorf("swept %q, want %q", ids(swept), want)
	}
	if swept[0].TempDir != "/tmp/of-the-run" {
		t.Errorf("%+v: the temporary folder is not told", swept[0])
	}
	if got, want := entries(t, d.live()), []string{newMark + "young", "alive"}; !slices.Equal(got, want) {
		t.Errorf("marks %q, want %q", got, want)
	}
	m, _, _ := d.Find("dead")
	if m.Status != Died || m.TempDir != "" {
		t.Errorf("%+v", m)
	}
	if m, _, _ := d.Find("alive"); m.Status != Running {
		t.Errorf("%+v", m)
	}
	d.Sweep(func(m Meta) { t.Errorf("%s was swept twice", m.ID) })
}
