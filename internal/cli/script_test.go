package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

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
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}
