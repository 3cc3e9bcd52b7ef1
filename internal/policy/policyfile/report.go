package policyfile

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"

	"go.yaml.in/yaml/v4"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

//go:embed policy.schema.json
var schema []byte

// Schema is the JSON Schema of the file, made from its types.
func Schema() []byte { return schema }

// runsAnything are programs that are no wrappers and still start whatever they
// are told to: a rule that trusts one trusts everything.
var runsAnything = sync.OnceValue(func() []string {
	return strings.Fields(`git go find python python2 python3 perl ruby node deno bun lua php awk gawk mawk sed ed ex vi vim nvim nano emacs less more man
	make cmake ninja bazel gradle mvn cargo rustc npm npx yarn pnpm pip pip3 pipx uv uvx gem bundle composer tar cpio zip rsync curl wget ftp sftp scp
	sqlite3 psql mysql mongo redis-cli tclsh java javac gcc cc clang ld cpp m4 dc bc sort split tee ping nmap tcpdump journalctl systemctl service apt
	apt-get dpkg yum dnf rpm brew pacman emerge ip ss logrotate osascript open xdg-open at jq yq`)
})

var quoted = lazy(`"([A-Za-z0-9_.+/-]+)"|'([A-Za-z0-9_.+/-]+)'`)

// Warnings are about what is well written and still not what it may seem, in
// the order of the file's names. Each begins with path:line.
func (f *File) Warnings(tools []string, getenv func(string) (string, bool)) []string {
	var out []string
	warn := func(at Pos, format string, args ...any) {
		out = append(out, fmt.Sprintf("%s:%d: %s", f.path, at.Line, fmt.Sprintf(format, args...)))
	}
	section := func(path string, s *Section) {
		for i, r := range s.Rules {
			for _, p := range trusted(r.When.Value) {
				warn(r.When.At, "%s.rules[%d] trusts %s, which runs anything it is told to", path, i, p)
			}
		}
	}
	for _, name := range f.AgentNames() {
		a := f.Agents[name]
		path := "agents." + call.Clip(name)
		section(path, &a.Section)
		if a.Sandbox != nil {
			warn(a.Sandbox.At, "%s.sandbox: there is no sandbox in this version: a run does not start without --sandbox=off", path)
		}
		if a.CLI.Value == "" {
			warn(a.At, "%s names no cli: it can be used with drawbridge exec only", path)
		}
		s := &Selected{f: f}
		l := s.layer(policy.AgentLayer, &a.Section)
		if p := policy.New(l); !slices.ContainsFunc(tools, p.InScope) {
			warn(a.At, "%s is allowed no tool", path)
		}
		if where, why := f.selfAnswered(name, tools); why != "" {
			warn(a.At, "%s asks a person%s, and code of the run could answer instead: %s; a run does not start without approvals: { same_user_can_answer: true }", path, where, why)
		}
		for i, p := range l.Allow {
			if _, ok := p.Upstream(); ok {
				warn(a.Tools.Allow.at[i], "%s is allowed %s: upstreams are not built yet, and a run does not start", path, p)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Workspaces)) {
		w := f.Workspaces[name]
		path := "workspaces." + call.Clip(name)
		section(path, &w.Section)
		for _, channel := range slices.Sorted(maps.Keys(w.Channels)) {
			ch := w.Channels[channel]
			section(path+".channels."+call.Clip(channel), &ch.Section)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Upstreams)) {
		if err := f.unset(name, getenv); err != nil {
			out = append(out, err.Error())
		}
	}
	return out
}

// trusted are the programs an all() of a condition lets through although they
// run anything.
func trusted(when string) []string {
	if !strings.Contains(when, "programs(") || !strings.Contains(when, ".all(") {
		return nil
	}
	var found []string
	for _, m := range quoted().FindAllStringSubmatch(when, -1) {
		name := m[1] + m[2]
		if base := name[strings.LastIndexByte(name, '/')+1:]; slices.Contains(runsAnything(), base) && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

// Suggest writes s as a policy file. The rules are those of f for the run, where
// f is not nil and knows its agent; known says whether it does.
func Suggest(f *File, run audit.Run, s policy.Suggestion, o Options) (out []byte, known bool) {
	type rule struct {
		Tools  []string `yaml:"tools,omitempty,flow"`
		When   string   `yaml:"when,omitempty"`
		Then   string   `yaml:"then"`
		Reason string   `yaml:"reason,omitempty"`
	}
	type tools struct {
		Allow []string `yaml:"allow,flow"`
	}
	type entry struct {
		CLI   string `yaml:"cli,omitempty"`
		Tools tools  `yaml:"tools"`
		Rules []rule `yaml:"rules,omitempty"`
	}
	e := entry{Tools: tools{s.Allow}}
	name := run.Agent
	if name == "" || slices.Contains(o.CLIs, name) {
		e.CLI, name = name, "suggested"
	}
	if f != nil {
		if _, known = f.Agents[run.Agent]; known {
			e.CLI = f.Agents[run.Agent].CLI.Value
		}
		agent := ""
		if known {
			agent = run.Agent
		}
		if sel, err := f.Select(agent, run.Workspace, run.Channel); err == nil {
			for _, l := range sel.Layers() {
				for _, r := range l.Rules {
					next := rule{When: r.Text, Then: string(r.Then), Reason: r.Reason}
					for _, p := range r.Tools {
						if _, up := p.Upstream(); !up {
							next.Tools = append(next.Tools, p.String())
						}
					}
					if r.Tools == nil || len(next.Tools) > 0 {
						e.Rules = append(e.Rules, next)
					}
				}
			}
		}
	}
	if known {
		e.Tools.Allow = slices.Sorted(slices.Values(slices.Concat(s.Allow, s.Asked)))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# The least scope that lets through what the runs did.\n")
	if len(s.Unused) > 0 {
		fmt.Fprintf(&b, "# Granted and never used: %s\n", comment(strings.Join(s.Unused, ", ")))
	}
	for _, tool := range slices.Sorted(maps.Keys(s.Refused)) {
		fmt.Fprintf(&b, "# Refused %d times: %s\n", s.Refused[tool], comment(tool))
	}
	text, err := yaml.Dump(struct {
		Version int              `yaml:"version"`
		Agents  map[string]entry `yaml:"agents"`
	}{1, map[string]entry{name: e}})
	if err != nil {
		text = fmt.Appendf(nil, "# %s\n", comment(err.Error())) // strings always dump
	}
	return append(b.Bytes(), text...), known
}

// comment is text on one line: names in a record are a client's own words.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == 0x2028 || r == 0x2029 || r == 0xfffd || call.Invisible(string(r)) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(call.Clip(s), "?"))
}
