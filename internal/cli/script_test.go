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
			e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("XDG_STATE_HOME", "")
			e.Setenv("STATE", filepath.Join(e.WorkDir, "home", ".local", "state", "drawbridge"))
			return os.Mkdir(filepath.Join(e.WorkDir, "home"), 0o700)
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}
