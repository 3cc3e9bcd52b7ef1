//go:build unix

package state

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

const holdEnv = "DRAWBRIDGE_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		hold(dir)
	}
	os.Exit(m.Run())
}

// hold begins a run and keeps it until the process is killed.
func hold(dir string) {
	d, err := Open(dir)
	if err == nil {
		_, err = d.Begin(Meta{ID: "held", Scope: []string{}, Started: time.Now(), TempDir: "/tmp/held"})
	}
	fmt.Println(err)
	time.Sleep(time.Minute)
	os.Exit(1)
}

// umask sets the umask of the process; no test here is parallel.
func umask(t *testing.T, mask int) {
	old := syscall.Umask(mask)
	t.Cleanup(func() { syscall.Umask(old) })
}

func TestField69_ModesUnderAnyUmask(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o077, 0o277, 0o777} {
		t.Run(fmt.Sprintf("%03o", mask), func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "state")
			umask(t, mask)
			d, err := Open(root)
			if err != nil {
				t.Fatal(err)
			}
			r, err := d.Begin(Meta{ID: "one"})
			if err != nil {
				t.Fatal(err)
			}
			check := func(when string) {
				n := 0
				_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
					if err != nil {
						t.Errorf("%s: %v", when, err)
						return nil
					}
					n++
					want := fs.FileMode(0o600)
					if e.IsDir() {
						want = 0o700
					}
					if filepath.Dir(path) == d.live() {
						want &^= fs.FileMode(mask) // holds nothing; only its lock counts
					}
					if info, _ := e.Info(); info.Mode().Perm() != want {
						t.Errorf("%s: %s has mode %04o, want %04o", when, path, info.Mode().Perm(), want)
					}
					return nil
				})
				if n < 5 {
					t.Errorf("%s: only %d files", when, n)
				}
			}
			check("while it runs")
			if m, _, err := d.Find("one"); err != nil || m.Status != Running && mask&0o400 == 0 {
				t.Errorf("%+v %v", m, err)
			}
			if err := r.End(time.Now()); err != nil {
				t.Fatal(err)
			}
			check("at the end")
		})
	}
}

// What lies at the path of a file that is to be written is replaced: a link is
// not followed, and a mode is not kept.
func TestField69_PlantedFiles(t *testing.T) {
	d := open(t)
	r := begin(t, d, "one", noon)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"run.json.new", "run.json"} {
		for _, plant := range []func(string) error{
			func(p string) error { return os.Symlink(victim, p) },
			func(p string) error { return os.WriteFile(p, []byte("{}"), 0o644) },
			func(p string) error { return syscall.Mkfifo(p, 0o644) },
		} {
			_ = os.Remove(r.File(name))
			if err := plant(r.File(name)); err != nil {
				t.Fatal(err)
			}
			if err := r.Save(); err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(r.File("run.json"))
			if err != nil || info.Mode() != 0o600 {
				t.Errorf("%s: %v %v", name, info.Mode(), err)
			}
			if m, _, err := d.Find("one"); err != nil || m.Status != Running || m.Workspace != "w" {
				t.Errorf("%s: %+v %v", name, m, err)
			}
		}
	}
	if b, _ := os.ReadFile(victim); string(b) != "mine" {
		t.Errorf("the link was followed: %q", b)
	}
}

func TestOpenRefuses(t *testing.T) {
	mode := func(m fs.FileMode) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, m); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(path, 0o700) })
		}
	}
	asUser := func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root writes where the mode forbids it")
		}
	}
	for _, c := range []struct {
		name string
		make func(*testing.T, string)
		says string
	}{
		{"readable by all", mode(0o755), "can be read by others (mode 0755)"},
		{"readable by the group", mode(0o740), "can be read by others (mode 0740)"},
		{"entered by others", mode(0o701), "can be read by others (mode 0701)"},
		{"not writable", func(t *testing.T, p string) { asUser(t); mode(0o500)(t, p) }, "is not writable"},
		{"not entered", func(t *testing.T, p string) { asUser(t); mode(0o600)(t, p) }, "is not writable"},
		{"a file", func(t *testing.T, p string) {
			if err := os.WriteFile(p, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "is not a directory"},
		{"a link to nothing", func(t *testing.T, p string) {
			if err := os.Symlink(p+"-none", p); err != nil {
				t.Fatal(err)
			}
		}, "state directory"},
		{"below a file", func(t *testing.T, p string) {
			if err := os.WriteFile(filepath.Dir(p)+"/f", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Dir(p)+"/f/x", p); err != nil {
				t.Fatal(err)
			}
		}, "state directory"},
		{"another user's", func(t *testing.T, p string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a directory away")
			}
			mode(0o700)(t, p)
			if err := os.Chown(p, 12345, 12345); err != nil {
				t.Skip("this root can't give a directory away: " + err.Error())
			}
		}, "belongs to another user (uid 12345)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			c.make(t, path)
			d, err := Open(path)
			if d != nil {
				t.Errorf("opened %s", d.Path())
			}
			wantUsage(t, err, c.says)
			if !strings.Contains(fmt.Sprint(err), filepath.Base(path)) {
				t.Errorf("%v does not name the directory", err)
			}
		})
	}
}

// A file system that is mounted read-only refuses root as well.
func TestOpenReadOnlyFilesystem(t *testing.T) {
	const path = "/proc/self/drawbridge"
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("no /proc")
	}
	_, err := Open(path)
	wantUsage(t, err, path)
	if fault.HintOf(err) == "" {
		t.Error("no hint")
	}
}

func TestOpenResolvesLinks(t *testing.T) {
	real := filepath.Join(t.TempDir(), "real")
	if err := os.Mkdir(real, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	d, err := Open(link)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := filepath.EvalSymlinks(real); d.Path() != want || d.Database() != filepath.Join(want, "drawbridge.db") {
		t.Errorf("%s %s, want below %s", d.Path(), d.Database(), want)
	}
	if err := os.Chmod(real, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = Open(link)
	wantUsage(t, err, "can be read by others")
}

// holder starts a process that holds the run "held".
func holder(t *testing.T, d *Dir) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"="+d.Path())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "<nil>\n" {
		t.Fatalf("the holder says %q %v", line, err)
	}
	return cmd
}

func TestField69_KilledRunIsSwept(t *testing.T) {
	d := open(t)
	cmd := holder(t, d)
	d.Sweep(func(m Meta) { t.Errorf("%s was swept while it was alive", m.ID) })
	if m, _, err := d.Find("held"); err != nil || m.Status != Running {
		t.Fatalf("%+v %v", m, err)
	}
	if gone, err := d.Prune(time.Now().Add(time.Hour)); err != nil || len(gone) != 0 {
		t.Fatalf("pruned %q while it was alive, %v", gone, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if m, _, err := d.Find("held"); err != nil || m.Status != Died || m.TempDir != "/tmp/held" {
		t.Errorf("%+v %v", m, err)
	}
	var swept []Meta
	d.Sweep(func(m Meta) { swept = append(swept, m) })
	if !slices.Equal(ids(swept), []string{"held"}) || swept[0].TempDir != "/tmp/held" || swept[0].Status != Died {
		t.Errorf("swept %+v", swept)
	}
	if m, _, err := d.Find("held"); err != nil || m.Status != Died || m.TempDir != "" {
		t.Errorf("%+v %v", m, err)
	}
	if left := entries(t, d.live()); len(left) != 0 {
		t.Errorf("marks left: %q", left)
	}
}

func TestSweepersAtOnce(t *testing.T) {
	d := open(t)
	for round := range 20 {
		const n = 20
		for i := range n {
			_ = begin(t, d, fmt.Sprintf("r%d-%d", round, i), noon).lock.Close()
		}
		var cleaned sync.Map
		var count atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				d.Sweep(func(m Meta) {
					count.Add(1)
					if _, twice := cleaned.LoadOrStore(m.ID, true); twice {
						t.Errorf("%s was cleaned twice", m.ID)
					}
				})
			})
		}
		wg.Wait()
		if count.Load() != n || len(entries(t, d.live())) != 0 {
			t.Fatalf("%d of %d cleaned, %d marks left", count.Load(), n, len(entries(t, d.live())))
		}
	}
}

// A sweep that opened a mark before another one finished with it finds the
// lock free and the mark gone.
func TestMarkThatIsGone(t *testing.T) {
	d := open(t)
	_ = begin(t, d, "one", noon).lock.Close()
	path := filepath.Join(d.live(), "one")
	f, err := tryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !stillThere(path, f) {
		t.Error("it is there")
	}
	_ = os.Remove(path)
	if stillThere(path, f) {
		t.Error("it is gone")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if stillThere(path, f) {
		t.Error("it is another one")
	}
}
