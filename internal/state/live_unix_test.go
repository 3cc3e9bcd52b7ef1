//go:build unix

package state

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestLive(t *testing.T) {
	d := open(t)
	if l, err := d.Live(); err != nil || l == nil || len(l) != 0 {
		t.Errorf("%+v, %v", l, err)
	}
	begin(t, d, "young", noon)
	begin(t, d, "old", noon.Add(-time.Hour))
	broken := begin(t, d, "broken", noon)
	ended(t, d, "over", noon, noon)
	dead := begin(t, d, "dead", noon)
	_ = dead.lock.Close()
	if err := os.WriteFile(broken.File("run.json"), []byte("no"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.Path(), "live", ".new-x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := d.Live()
	got := ids(l)
	if i := slices.Index(got, "old"); i < 0 || i > slices.Index(got, "young") {
		t.Errorf("not by their time: %v", got)
	}
	slices.Sort(got) // what can't be read counts from its folder's time
	if err != nil || !slices.Equal(got, []string{"broken", "old", "young"}) {
		t.Errorf("%v, %v", got, err)
	}
	if broken.Path() != d.Folder("broken") {
		t.Errorf("%s, %s", broken.Path(), d.Folder("broken"))
	}
}
