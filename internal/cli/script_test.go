package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/drawbridge-mcp/drawbridge"
)

func TestMain(m *testing.M) {
	drawbridge.Helper()
	testscript.Main(m, map[string]func(){
		"drawbridge": func() { os.Exit(Main()) },
		"waiting":    waitingRun,
	})
}

// asked is a command of the scripts: it waits for a question that holds all of
// the words, and sets a variable to its ID. A question it has named before it
// does not name again.
//
//	asked VARIABLE [WORD...]
func asked(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: asked VARIABLE [WORD...]")
	}
	known := strings.Fields(ts.Getenv("ASKED"))
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		list := exec.Command("sh", "-c", "drawbridge approvals --json")
		list.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME")}
		out, _ := list.Output() // a run that begins or ends may not answer
		for text := range strings.Lines(string(out)) {
			var q struct{ ID string }
			if err := json.Unmarshal([]byte(text), &q); err != nil {
				ts.Fatalf("%v: %s", err, text)
			}
			if !slices.Contains(known, q.ID) && !slices.ContainsFunc(args[1:], func(w string) bool { return !strings.Contains(text, w) }) {
				ts.Setenv(args[0], q.ID)
				ts.Setenv("ASKED", strings.Join(append(known, q.ID), " "))
				return
			}
		}
	}
	ts.Fatalf("no question holds %q", args[1:])
}

// TestScripts runs testdata/script: each file is one topic of the command line,
// in a HOME and a folder of its own.
func TestScripts(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the scripts run agents, which needs Linux")
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			// Not around the scripts' folder: the file tools don't work in a home.
			home, err := os.MkdirTemp("", "script-home-")
			if err != nil {
				return err
			}
			e.Defer(func() { _ = os.RemoveAll(home) })
			e.Setenv("HOME", home)
			e.Setenv("XDG_STATE_HOME", "")
			e.Setenv("XDG_CONFIG_HOME", "")
			e.Setenv("STATE", filepath.Join(home, ".local", "state", "drawbridge"))
			return nil
		},
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"asked": asked},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}
