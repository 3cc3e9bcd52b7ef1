// Package e2e drives real agent CLIs and MCP clients against Drawbridge, with
// a scripted model and without a network.
//
// The programs are pinned in npm/package-lock.json and installed by install.sh.
// Tests run in a network namespace of their own that holds nothing but
// loopback: whatever a CLI tries to reach besides the endpoint and the model is
// not there.
package e2e

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/e2e/model"
)

// Program is the absolute path of an installed program: claude, node or
// mcp-inspector. A test without it is skipped.
func Program(t testing.TB, name string) string {
	t.Helper()
	_, here, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(here) {
		t.Skip("the folder of the end-to-end tests is not known to this binary (built with -trimpath)")
	}
	path := filepath.Join(filepath.Dir(here), "npm", "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not installed: run e2e/install.sh", name)
	}
	return path
}

// Model starts a scripted model that ends with the test.
func Model(t testing.TB, steps ...model.Step) *model.Server {
	t.Helper()
	m, err := model.Start(steps...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// Environ is the environment of a person who has nothing but an empty home
// folder and a key for m: what `env -i` would leave. The pinned programs come
// first on the PATH.
func Environ(t testing.TB, m *model.Server) []string {
	t.Helper()
	home := t.TempDir()
	return []string{
		"PATH=" + filepath.Dir(Program(t, "node")) + ":/usr/local/bin:/usr/bin:/bin",
		"HOME=" + home,
		"LANG=C.UTF-8",
		"ANTHROPIC_BASE_URL=" + m.URL(),
		"ANTHROPIC_API_KEY=sk-ant-scripted-model-0000",
		"CLAUDE_CODE_MAX_RETRIES=1",
	}
}
