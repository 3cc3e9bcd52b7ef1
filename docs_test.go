package drawbridge_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs are the pages that name files and tests.
func docs(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("docs/*.md")
	if err != nil || len(names) < 4 {
		t.Fatalf("pages found: %q, %v", names, err)
	}
	pages := map[string]string{}
	for _, name := range append(names, "README.md") {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pages[name] = string(b)
	}
	return pages
}

func TestLinksOfTheDocs(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^):#]+)\)`)
	for name, page := range docs(t) {
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			}
		}
	}
}

// A row of the threat model is as good as the test it names.
func TestThreatModelNamesTests(t *testing.T) {
	defined := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	tests := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && (d.Name() == "node_modules" || d.Name() == ".git") {
				return fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range defined.FindAllSubmatch(b, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	if err != nil || len(tests) < 100 {
		t.Fatalf("%d tests found, %v", len(tests), err)
	}
	page := docs(t)["docs/THREAT_MODEL.md"]
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)[^`]*`").FindAllStringSubmatch(page, -1)
	if len(named) < 20 {
		t.Errorf("only %d tests are named", len(named))
	}
	for _, m := range named {
		if !tests[m[1]] {
			t.Errorf("%s is named and is no test", m[1])
		}
	}
	for _, m := range regexp.MustCompile("`(wire|script)/(\\w+)`").FindAllStringSubmatch(page, -1) {
		dir := map[string]string{"wire": "internal/endpoint/testdata", "script": "internal/cli/testdata/script"}[m[1]]
		if _, err := os.Stat(filepath.Join(dir, m[2]+".txtar")); err != nil && m[2] != "NAME" {
			t.Errorf("%s/%s is named and is no test: %v", m[1], m[2], err)
		}
	}
}
