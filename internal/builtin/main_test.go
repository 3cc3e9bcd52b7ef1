package builtin

import (
	"os"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

func TestMain(m *testing.M) {
	proc.Helper()
	if dir := os.Getenv(crashEnv); dir != "" {
		writeForever(dir)
	}
	os.Exit(m.Run())
}
