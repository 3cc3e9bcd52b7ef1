// Package drawbridgetest helps to test programs that embed a bridge: a bridge
// that is checked and closed when the test ends, a run of the scripted agent,
// and raw requests.
//
// A test program that plays a script has to call [drawbridge.Helper] first:
//
//	func TestMain(m *testing.M) {
//		drawbridge.Helper()
//		os.Exit(m.Run())
//	}
package drawbridgetest

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge"
	"github.com/drawbridge-mcp/drawbridge/audit"
)

// Start starts a bridge for one test. An empty StateDir is a temporary one. When
// the test ends the bridge is closed and its record verified; an incomplete or
// changed record fails the test.
func Start(t testing.TB, cfg drawbridge.Config) *drawbridge.Bridge {
	t.Helper()
	if cfg.StateDir == "" {
		cfg.StateDir = filepath.Join(t.TempDir(), "state")
	}
	b, err := drawbridge.Start(context.Background(), cfg)
	if err != nil {
		t.Fatalf("start a bridge: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close the bridge: %v", err)
		}
		Records(t, filepath.Join(cfg.StateDir, "runs", b.ID(), "audit.jsonl"), b.AuditHead())
	})
	return b
}

// Play runs script with the scripted agent (docs/scripted.md) and returns what
// [drawbridge.Run] does, and the events. Empty StateDir and Folder are
// temporary ones. The record is verified.
func Play(t testing.TB, cfg drawbridge.Config, script string) (*drawbridge.Result, []drawbridge.Event, error) {
	t.Helper()
	if cfg.StateDir == "" {
		cfg.StateDir = filepath.Join(t.TempDir(), "state")
	}
	if cfg.Folder == "" {
		cfg.Folder = t.TempDir()
	}
	var events []drawbridge.Event
	follow := cfg.Events
	cfg.Events = func(e drawbridge.Event) {
		events = append(events, e)
		if follow != nil {
			follow(e)
		}
	}
	res, err := drawbridge.Run(context.Background(), drawbridge.RunConfig{
		Config: cfg, Agent: "scripted", Prompt: script, Timeout: time.Minute,
	})
	if res != nil {
		Records(t, res.AuditFile, res.AuditHead)
	}
	return res, events, err
}

// Records verifies the record in file against head and returns its lines.
func Records(t testing.TB, file, head string) []audit.Record {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatalf("the audit record: %v", err)
	}
	defer f.Close()
	rep, err := audit.Verify(f, head)
	if err != nil || rep.Problem != "" || !rep.Closed {
		t.Errorf("the audit record: %v, line %d: %s, closed %v", err, rep.FirstBad, rep.Problem, rep.Closed)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatalf("the audit record: %v", err)
	}
	var records []audit.Record
	if err := audit.Read(f, func(r audit.Record) error { records = append(records, r); return nil }); err != nil {
		t.Fatalf("the audit record: %v", err)
	}
	return records
}

// Post sends one message to a bridge, with its token, and returns the status
// and the body of the answer.
func Post(t testing.TB, b *drawbridge.Bridge, message string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.URL(), strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.Token())
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}).Do(req)
	if err != nil {
		t.Fatalf("POST: %v", err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("POST: %v", err)
	}
	return res.StatusCode, string(answer)
}
