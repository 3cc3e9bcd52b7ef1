package session

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

func TestMain(m *testing.M) {
	proc.Helper()
	agent.ScriptedMain()
	upstreamMain()
	goleak.VerifyTestMain(m)
}
