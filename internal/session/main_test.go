package session

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

func TestMain(m *testing.M) {
	proc.Helper()
	agent.ScriptedMain()
	if what := os.Getenv(envChild); what != "" {
		child(strings.Fields(what))
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// envChild makes the test program do one thing, in whatever process:
//
//	answer FOLDER ID   say yes to a question, and print what comes of it
//	listen FOLDER      take answers in the place of the run, for good
//	sit                see sitting, where there is one
const envChild = "DRAWBRIDGE_TEST_CHILD"

var sit = func() {}

func child(what []string) {
	switch what[0] {
	case "answer":
		err := control.Answer(context.Background(), what[1], what[2], approve.Answer{Yes: true, Note: "it says itself"})
		fmt.Println("answered:", err)
	case "listen":
		if _, err := control.Listen(what[1], thief{}, control.Options{}); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("listening")
		select {}
	case "sit":
		sit()
	}
}

// thief takes every answer for its own.
type thief struct{}

func (thief) Pending() []approve.Question { return nil }
func (thief) Answer(context.Context, string, approve.Answer) error {
	return nil
}

// shellChild is a shell word by which a command becomes such a child.
func shellChild(t *testing.T, what ...string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return envChild + "='" + strings.Join(what, " ") + "' '" + exe + "'"
}
