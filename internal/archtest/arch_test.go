// Package archtest holds the arrows of docs/DESIGN.md section 3.
package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/drawbridge-mcp/drawbridge"

type pkg struct {
	ImportPath string
	Name       string
	Doc        string
	Dir        string
	GoFiles    []string
	Imports    []string
	Deps       []string
	Standard   bool
}

func load(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Doc,Dir,GoFiles,Imports,Deps,Standard", module+"/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	pkgs := map[string]pkg{}
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs[strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")] = p
	}
	if len(pkgs) < 15 {
		t.Fatalf("only %d packages found", len(pkgs))
	}
	return pkgs
}

// inside lists the rooms of ours that p imports directly.
func (p pkg) inside() []string {
	var in []string
	for _, i := range p.Imports {
		if rest, ok := strings.CutPrefix(i, module); ok {
			in = append(in, strings.TrimPrefix(rest, "/"))
		}
	}
	return in
}

func TestArrows(t *testing.T) {
	pkgs := load(t)

	t.Run("leaves import no sibling", func(t *testing.T) {
		for _, leaf := range []string{"internal/call", "internal/proc", "internal/redact", "internal/event", "internal/fault", "audit"} {
			if in := pkgs[leaf].inside(); len(in) > 0 {
				t.Errorf("%s imports %v", leaf, in)
			}
		}
	})
	t.Run("gate imports call and audit only", func(t *testing.T) {
		for _, in := range pkgs["internal/gate"].inside() {
			if in != "internal/call" && in != "audit" {
				t.Errorf("gate imports %s", in)
			}
		}
	})
	t.Run("early imports next to nothing", func(t *testing.T) {
		for _, d := range pkgs["cmd/drawbridge/internal/early"].Deps {
			if first, _, _ := strings.Cut(d, "/"); strings.Contains(first, ".") &&
				!slices.Contains([]string{"golang.org/x/sys/unix", module + "/internal/proc", module + "/internal/version"}, d) {
				t.Errorf("early depends on %s, which is initialised before it", d)
			}
		}
	})
	t.Run("approve imports call and fault only", func(t *testing.T) {
		for _, in := range pkgs["internal/approve"].inside() {
			if in != "internal/call" && in != "internal/fault" {
				t.Errorf("approve imports %s", in)
			}
		}
	})
	t.Run("audit is standard library only", func(t *testing.T) {
		for _, d := range pkgs["audit"].Deps {
			if strings.Contains(strings.Split(d, "/")[0], ".") {
				t.Errorf("audit depends on %s", d)
			}
		}
	})
	t.Run("only these may import", func(t *testing.T) {
		for what, who := range map[string][]string{
			"github.com/spf13/cobra":                   {"internal/cli"},
			"modernc.org/sqlite":                       {"internal/store/sqlite"},
			"github.com/modelcontextprotocol/go-sdk":   {"internal/endpoint", "internal/upstream"},
			"github.com/santhosh-tekuri/jsonschema/v6": {"internal/catalogue"},
			"go.opentelemetry.io/otel/exporters":       {"internal/telemetry"},
			"cel.dev/cel-go":                           {"internal/policy/celrule"},
			"mvdan.cc/sh/v3":                           {"internal/policy/celrule"},
			"go.yaml.in/yaml/v4":                       {"internal/policy/policyfile"},
			"cel.dev/cel-go/cel":                       {}, // its parts are enough, and set up less at every start
			module + "/internal/policy/celrule":        {"internal/cli", "bench/targets"},
			module + "/internal/policy/policyfile":     {"internal/cli", "bench/targets"},
			module + "/internal/gate":                  {"internal/session"},
			module + "/internal/endpoint":              {"internal/session"},
			module + "/internal/session":               {"", "internal/cli"},
			module + "/internal/cli":                   {"cmd/drawbridge"},
			module + "/internal/store/sqlite":          {"internal/session", "internal/cli"},
			module + "/internal/builtin":               {"internal/session"},
			module + "/internal/approve":               {"", "internal/session", "internal/cli", "internal/control", "internal/store/sqlite", "internal/store/storetest"},
			module + "/internal/control":               {"internal/session", "internal/cli"},
			module + "/internal/upstream":              {"internal/session"},
		} {
			for name, p := range pkgs {
				for _, i := range p.Imports {
					if (i == what || strings.HasPrefix(i, what+"/")) && !slices.Contains(who, name) && "internal/"+strings.TrimPrefix(what, module+"/internal/") != name {
						t.Errorf("%q imports %s", name, i)
					}
				}
			}
		}
	})
	t.Run("embedding stays light", func(t *testing.T) {
		for _, d := range pkgs[""].Deps {
			for _, heavy := range []string{"github.com/spf13/cobra", "go.opentelemetry.io/otel/exporters", "github.com/modelcontextprotocol/go-sdk",
				"cel.dev/cel-go", "mvdan.cc/sh/v3", "go.yaml.in/yaml/v4", "testing"} {
				if d == heavy || strings.HasPrefix(d, heavy+"/") {
					t.Errorf("the root package links %s", d)
				}
			}
		}
	})
	t.Run("one package doc each", func(t *testing.T) {
		for name, p := range pkgs {
			if p.Doc == "" && len(p.GoFiles) > 0 {
				t.Errorf("%q has no package doc", name)
			}
		}
	})
}

// A tool has one caller. Whoever adds a second one has made a way around the
// gate.
func TestOneCallerOfTools(t *testing.T) {
	root := repo(t)
	call := regexp.MustCompile(`\b\w+\.Run\(ctx, (inv|call\.Invocation)`)
	var found []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			if d != nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git") {
				return filepath.SkipDir
			}
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for range call.FindAll(b, -1) {
			rel, _ := filepath.Rel(root, path)
			found = append(found, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0] != "internal/gate/run.go" {
		t.Errorf("tools are called from %v, want internal/gate/run.go alone", found)
	}
}

// The words of a question are for everybody who shows one. Its answering side is
// the run's own: what else could answer would be a way around the person.
func TestOneHolderOfTheDesk(t *testing.T) {
	words := []string{"Question", "State", "Answer", "Store", "Pending", "Approved", "Denied", "Expired", "Void", "Used",
		"ErrUnknown", "ErrSettled", "Visible", "MaxArguments", "MaxPlan"}
	for name, p := range load(t) {
		if name == "internal/approve" || name == "internal/session" {
			continue
		}
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			as := ""
			for _, i := range f.Imports {
				if i.Path.Value == strconv.Quote(module+"/internal/approve") {
					as = "approve"
					if i.Name != nil {
						as = i.Name.Name
					}
				}
			}
			if as == "" {
				continue
			}
			if as == "." {
				t.Errorf("%s/%s imports approve into its own names", name, file)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == as && !slices.Contains(words, s.Sel.Name) {
						t.Errorf("%s/%s uses approve.%s", name, file, s.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

func TestNoReplace(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(repo(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`(?m)^\s*replace\b`).Match(b) {
		t.Error("go.mod has a replace directive: the module can't be installed with go install")
	}
}

func repo(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(filepath.Dir(dir))
}
