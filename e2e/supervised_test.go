//go:build linux

package e2e

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/e2e/model"
	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// TestAgentsUnderSupervision: the configuration gets through the descriptor
// that the process helper hands on, and nothing is left alive.
func TestAgentsUnderSupervision(t *testing.T) {
	for name, prompt := range map[string]string{"claude": "find the thing", "scripted": "call memory_search {\"query\":\"foo\"}\nsay all done"} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, model.Step{Tool: "memory_search", Args: map[string]any{"query": "foo"}}, model.Step{Text: "all done"})
			s.plan.Prompt = []byte(prompt)
			cli, err := agent.ByName(name)
			if err != nil {
				t.Fatal(err)
			}
			path := ""
			if name == "claude" {
				path = Program(t, name)
			}
			in, err := cli.Find(path, s.plan.Environ)
			if err != nil {
				t.Fatal(err)
			}
			spec, err := cli.Command(in, s.plan)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			parser := agent.ParserFor(cli, server)
			var end event.Event
			lines := proc.NewLines(0, func(b []byte, cut bool) {
				for _, e := range parser.Line(b, cut) {
					if e.Kind == event.Finished {
						end = e
					}
				}
			})
			var stderr bytes.Buffer
			spec.Marker, spec.Stdout, spec.Stderr = "e2e-"+strings.ToLower(name), lines, &stderr
			p, err := proc.Start(ctx, spec)
			if err != nil {
				t.Fatal(err)
			}
			exit, err := p.Wait()
			lines.Close()
			if err != nil || exit.Code != 0 || end.OK == nil || !*end.OK || end.Text != "all done" {
				t.Errorf("%v, %+v, %+v\n%s", err, exit, end, stderr.String())
			}
			if _, calls := s.server.seen(); len(calls) != 1 {
				t.Errorf("calls %q", calls)
			}
			if alive := proc.Alive(spec.Marker); len(alive) > 0 {
				t.Errorf("alive: %v", alive)
			}
		})
	}
}
