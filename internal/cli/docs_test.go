package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/drawbridge-mcp/drawbridge/internal/policy/policyfile"
)

// The policies of docs/policy.md are those the scripts run, and all of them are
// good ones.
func TestPoliciesOfTheDocs(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```yaml\n(version: 1\n.*?)```").FindAllSubmatch(page, -1) {
		blocks = append(blocks, string(m[1]))
		f, err := policyfile.Parse("policy.md", m[1], policyOptions())
		if err != nil {
			t.Errorf("%v\n%s", err, m[1])
			continue
		}
		if w := f.Warnings(policyOptions().Tools, os.LookupEnv); len(w) > 0 {
			t.Errorf("%q\n%s", w, m[1])
		}
	}
	if len(blocks) < 6 {
		t.Fatalf("%d policies found", len(blocks))
	}
	for _, name := range []string{"policy_review", "policy_chatbot", "policy_nightly", "policy_plan", "policy_teams"} {
		if !bytes.Contains(page, []byte("(`"+name+"`)")) {
			t.Errorf("the page does not name %s", name)
		}
		script, err := txtar.ParseFile(filepath.Join("testdata", "script", name+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(strings.TrimSpace(string(script.Files[0].Data)), "cli: scripted # claude", "cli: claude", 1)
		found := false
		for _, b := range blocks {
			found = found || strings.TrimSpace(b) == text
		}
		if !found {
			t.Errorf("the policy of %s is not on the page", name)
		}
	}
}

func TestStarterIsGood(t *testing.T) {
	for _, found := range [][]string{nil, {"claude"}} {
		f, err := policyfile.Parse("drawbridge.yaml", starter(found), policyOptions())
		if err != nil {
			t.Fatal(err)
		}
		if w := f.Warnings(policyOptions().Tools, os.LookupEnv); len(w) > 0 {
			t.Errorf("%q", w)
		}
		// What is commented out has to be right too.
		text := regexp.MustCompile(`(?m)^# (workspaces:|approvals:|  .*)$`).ReplaceAllString(string(starter(found)), "$1")
		text = regexp.MustCompile(`(?m)^( +)# (- tools:.*|  (?:when|then):.*|mode: .*|deny: .*)$`).ReplaceAllString(text, "$1$2")
		f, err = policyfile.Parse("drawbridge.yaml", []byte(text), policyOptions())
		if err != nil || !strings.Contains(text, "\nworkspaces:\n") || strings.Contains(text, "# mode") {
			t.Fatalf("%v\n%s", err, text)
		}
		if f.Approvals == nil || len(f.Agents["researcher"].Rules) != 2 || f.Agents["researcher"].Mode.Value != "plan" {
			t.Errorf("left in comments:\n%s", text)
		}
	}
}
