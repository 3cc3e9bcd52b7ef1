//go:build linux

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// TestNothingIsCalledOnceTheRunIsOver: who is told to end and takes its time
// calls no tool in that time.
func TestNothingIsCalledOnceTheRunIsOver(t *testing.T) {
	// The agent is deaf to TERM, and a process of its own tells it when that
	// comes: it has the whole grace for its calls.
	script := "exec (trap 'touch over; exit' TERM; touch waiting; while :; do sleep 0.05; done) >/dev/null 2>&1 &\nignore\n" +
		"exec while [ ! -e over ]; do sleep 0.05; done\n" + strings.Repeat("call write_file {\"path\":\"after\",\"content\":\"x\"}\nsleep 50ms\n", 400)
	for name, tt := range map[string]struct {
		timeout string
		signal  syscall.Signal
		code    int
	}{
		"its time is over":  {"2s", 0, 124},
		"it is interrupted": {"1m", syscall.SIGINT, 130},
		"it is terminated":  {"1m", syscall.SIGTERM, 130},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, nil)
			c := p.start("run", "--agent", "scripted", "--own-tools", "exec", "--allow", "write_file", "--timeout", tt.timeout, "--json", "--", script)
			run := c.until(event.ToolsListed).Run
			c.wait("its process", func() bool {
				_, err := os.Stat(filepath.Join(p.folder, "waiting"))
				return err == nil
			})
			if tt.signal != 0 {
				if err := c.Process.Signal(tt.signal); err != nil {
					t.Fatal(err)
				}
			}
			c.ends(tt.code)
			p.nothing(run, 0, 0)
			records := p.closed(run, tt.code)
			if begun := kindsOf(records, audit.Begin); len(begun) != 0 {
				t.Errorf("%d calls ran when the run was over", len(begun))
			}
			if _, err := os.Stat(filepath.Join(p.folder, "over")); err != nil {
				t.Errorf("nobody was told to end, so this proves nothing: %v", err)
			}
			if _, err := os.Stat(filepath.Join(p.folder, "after")); !errors.Is(err, os.ErrNotExist) {
				t.Error("a call had its effect")
			}
		})
	}
}
