package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

const testToken = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

var testInstall = Installation{Path: "/opt/claude", Version: claudeMentions}

func testPlan() Plan {
	return Plan{
		Server: "osfoundry", URL: "http://127.0.0.1:40001/mcp", Token: testToken, Prompt: []byte("find it"),
		Folder: "/w/a", TempDir: "/tmp/db-1", PrivateDir: "/run/x", Environ: []string{"PATH=/usr/bin", "HOME=/home/me"},
	}
}

func command(t *testing.T, p Plan) proc.Spec {
	t.Helper()
	spec, err := claude{}.Command(testInstall, p)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// refused checks that err is one a person can act on.
func refused(t *testing.T, err error, parts ...string) {
	t.Helper()
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Kind != fault.Usage {
		t.Fatalf("got %v, want a usage error", err)
	}
	if e.Hint == "" {
		t.Errorf("%v has no hint", err)
	}
	for _, part := range parts {
		if !strings.Contains(e.Error()+"\n"+e.Hint, part) {
			t.Errorf("%q with hint %q does not say %q", e.Error(), e.Hint, part)
		}
	}
	if strings.Contains(err.Error(), testToken) {
		t.Error("the error holds the token")
	}
}

func TestClaudeCommandLine(t *testing.T) {
	fixed := []string{
		"claude", "-p", "--output-format", "stream-json", "--verbose", "--permission-mode", "bypassPermissions",
		"--mcp-config=/dev/fd/3", "--strict-mcp-config", "--setting-sources", "", "--no-session-persistence", "--disable-slash-commands",
	}
	for name, tc := range map[string]struct {
		change func(*Plan)
		want   []string
	}{
		"sealed":   {func(*Plan) {}, []string{"--tools", ""}},
		"some":     {func(p *Plan) { p.OwnTools.List = []string{"Read", "Grep"} }, []string{"--tools", "Read,Grep"}},
		"all":      {func(p *Plan) { p.OwnTools.All = true }, nil},
		"model":    {func(p *Plan) { p.Model = "-x" }, []string{"--tools", "", "--model=-x"}},
		"dirs":     {func(p *Plan) { p.Dirs = []string{"/a b", "/c"} }, []string{"--tools", "", "--add-dir=/a b", "--add-dir=/c"}},
		"budget":   {func(p *Plan) { p.Budget = 0.00000025 }, []string{"--tools", "", "--max-budget-usd=0.00000025"}},
		"user arg": {func(p *Plan) { p.Args = []string{"--effort", "low"} }, []string{"--tools", "", "--effort=low"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPlan()
			tc.change(&p)
			spec := command(t, p)
			if diff := cmp.Diff(append(slices.Clone(fixed), tc.want...), spec.Args); diff != "" {
				t.Error(diff)
			}
			if spec.Path != testInstall.Path || spec.Dir != p.Folder || spec.Terminal {
				t.Errorf("path %q, folder %q", spec.Path, spec.Dir)
			}
		})
	}
}

// commander reads arguments as the CLI does: an option with a list of values
// takes in all that follows up to the next option.
func commander(args []string) (values map[string][]string, positional []string) {
	variadic := []string{"--mcp-config", "--tools", "--add-dir", "--betas", "--allowedTools", "--disallowedTools"}
	single := []string{"--output-format", "--permission-mode", "--setting-sources"}
	values = map[string][]string{}
	open := ""
	for i := 1; i < len(args); i++ {
		name, value, inline := strings.Cut(args[i], "=")
		switch {
		case !strings.HasPrefix(args[i], "-"):
			if open == "" {
				positional = append(positional, args[i])
				continue
			}
			values[open] = append(values[open], args[i])
		case inline:
			open, values[name] = "", append(values[name], value)
		case slices.Contains(variadic, name) || slices.Contains(single, name):
			i++
			values[name], open = append(values[name], args[i]), ""
			if slices.Contains(variadic, name) {
				open = name
			}
		default:
			open, values[name] = "", append(values[name], "")
		}
	}
	return values, positional
}

func TestField65_NothingIsSwallowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := testPlan()
		p.Prompt = []byte(rapid.SampledFrom([]string{"## Plan x", "-p", "--help", "plain", "/x"}).Draw(t, "prompt"))
		p.Model = rapid.SampledFrom([]string{"", "opus", "--tools"}).Draw(t, "model")
		for range rapid.IntRange(0, 3).Draw(t, "dirs") {
			p.Dirs = append(p.Dirs, "/"+rapid.StringMatching(`[a-z -]{0,8}`).Draw(t, "dir"))
		}
		p.Args = rapid.SliceOfN(rapid.SampledFrom([]string{"--effort=low", "--betas=x", "--disallowedTools=Bash", "--include-partial-messages"}), 0, 4).Draw(t, "args")
		spec, err := claude{}.Command(testInstall, p)
		if err != nil {
			t.Fatal(err)
		}
		values, positional := commander(spec.Args)
		if len(positional) > 0 {
			t.Fatalf("%q stands alone in %q", positional, spec.Args)
		}
		if !slices.Equal(values["--mcp-config"], []string{"/dev/fd/3"}) || !slices.Equal(values["--tools"], []string{""}) {
			t.Fatalf("mcp-config %q, tools %q", values["--mcp-config"], values["--tools"])
		}
		if got, _ := io.ReadAll(spec.Stdin); !bytes.Equal(got, p.Prompt) {
			t.Fatalf("prompt %q", got)
		}
	})
}

func TestField63_NestedSessionVariablesAreUnset(t *testing.T) {
	p := testPlan()
	p.Environ = append(p.Environ, "CLAUDECODE=1", "CLAUDE_CODE_ENTRYPOINT=cli", "CLAUDE_CODE_SESSION_ACCESS_TOKEN=zzz", "CLAUDE_CODE_SESSION_ID=1", "CLAUDE_CODE_CHILD_SESSION=1")
	for _, kv := range command(t, p).Env {
		name, _, _ := strings.Cut(kv, "=")
		if name == "CLAUDECODE" || strings.Contains(kv, "ENTRYPOINT") || strings.Contains(kv, "SESSION") {
			t.Errorf("%s reaches the agent", name)
		}
	}
}

func TestField92_AgentGetsItsOwnKeysOnly(t *testing.T) {
	p := testPlan()
	p.Environ = []string{
		"PATH=/usr/bin", "HOME=/home/me", "LANG=C.UTF-8", "LC_ALL=C", "TZ=UTC", "ANTHROPIC_API_KEY=k1", "ANTHROPIC_BASE_URL=http://127.0.0.1:1",
		"CLAUDE_CODE_OAUTH_TOKEN=k2", "CLAUDE_CONFIG_DIR=/c", "SSL_CERT_FILE=/ca", "NODE_EXTRA_CA_CERTS=/ca2", "MAX_MCP_OUTPUT_TOKENS=90000",
		"AWS_SECRET_ACCESS_KEY=s", "FOO_TOKEN=s", "LD_PRELOAD=/x.so", "NODE_OPTIONS=--require=/x.js", "OPENAI_API_KEY=s", "GITHUB_TOKEN=s",
		"BASH_ENV=/x", "SSH_AUTH_SOCK=/s", "DRAWBRIDGE_TOKEN=" + testToken, "DRAWBRIDGE_RUN=r", "TMPDIR=/elsewhere", "CLAUDE_CODE_MCP_ALLOWLIST_ENV=1", "novalue", "=x",
	}
	want := []string{
		"PATH=/usr/bin", "HOME=/home/me", "LANG=C.UTF-8", "LC_ALL=C", "TZ=UTC", "SSL_CERT_FILE=/ca", "NODE_EXTRA_CA_CERTS=/ca2",
		"ANTHROPIC_API_KEY=k1", "ANTHROPIC_BASE_URL=http://127.0.0.1:1", "CLAUDE_CODE_OAUTH_TOKEN=k2", "CLAUDE_CONFIG_DIR=/c", "MAX_MCP_OUTPUT_TOKENS=90000",
		"NO_PROXY=127.0.0.1,localhost,::1", "no_proxy=127.0.0.1,localhost,::1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "CLAUDE_CODE_DISABLE_AUTO_MEMORY=1",
		"ENABLE_CLAUDEAI_MCP_SERVERS=false", "ENABLE_TOOL_SEARCH=false", "MCP_TOOL_TIMEOUT=600000",
		"TMPDIR=/tmp/db-1", "CLAUDE_CODE_TMPDIR=/tmp/db-1", "TERM=dumb", "CLAUDE_CODE_DISABLE_FILE_MENTIONS=1",
	}
	if os.Geteuid() == 0 {
		want = append(want, "IS_SANDBOX=1")
	}
	if diff := cmp.Diff(want, command(t, p).Env); diff != "" {
		t.Error(diff)
	}

	t.Run("a cloud's keys only where it is chosen", func(t *testing.T) {
		p.Environ = append(p.Environ, "CLAUDE_CODE_USE_BEDROCK=1", "GOOGLE_APPLICATION_CREDENTIALS=/g")
		env := command(t, p).Env
		if envValue(env, "AWS_SECRET_ACCESS_KEY") != "s" || envValue(env, "GOOGLE_APPLICATION_CREDENTIALS") != "" {
			t.Errorf("%q", env)
		}
	})
	t.Run("the scripted agent", func(t *testing.T) {
		spec, err := scripted{}.Command(Installation{Path: "/x"}, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range spec.Env {
			if strings.Contains(kv, "KEY") || strings.Contains(kv, "TOKEN") || strings.Contains(kv, "PRELOAD") || strings.Contains(kv, "OPTIONS") {
				t.Errorf("%s reaches the agent", kv)
			}
		}
	})
}

func TestClaudeFileMentions(t *testing.T) {
	for name, tc := range map[string]struct {
		own                   OwnTools
		version               string
		mentions, attachments string
	}{
		"sealed":             {OwnTools{}, "2.1.332", "1", ""},
		"sealed, newer":      {OwnTools{}, "3.0.0", "1", ""},
		"sealed, older":      {OwnTools{}, "2.1.331", "1", "1"},
		"sealed, not asked":  {OwnTools{}, "", "1", "1"},
		"without Read":       {OwnTools{List: []string{"Bash"}}, "2.1.332", "1", ""},
		"with Read":          {OwnTools{List: []string{"Bash", "Read"}}, "2.1.332", "", ""},
		"all":                {OwnTools{All: true}, "2.1.332", "", ""},
		"sealed, prerelease": {OwnTools{}, "2.1.400-beta.1", "1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPlan()
			p.OwnTools = tc.own
			p.Environ = append(p.Environ, "CLAUDE_CODE_DISABLE_FILE_MENTIONS=0")
			spec, err := claude{}.Command(Installation{Path: "/c", Version: tc.version}, p)
			if err != nil {
				t.Fatal(err)
			}
			if m, a := envValue(spec.Env, "CLAUDE_CODE_DISABLE_FILE_MENTIONS"), envValue(spec.Env, "CLAUDE_CODE_DISABLE_ATTACHMENTS"); m != tc.mentions || a != tc.attachments {
				t.Errorf("mentions off %q, attachments off %q", m, a)
			}
		})
	}
}

func TestClaudeConfig(t *testing.T) {
	p := testPlan()
	p.CallTimeout = 90 * time.Second
	spec := command(t, p)
	want := `{"mcpServers":{"osfoundry":{"type":"http","url":"http://127.0.0.1:40001/mcp","alwaysLoad":true,"timeout":90000,"headers":{"Authorization":"Bearer ` + testToken + `"}}}}` + "\n"
	if len(spec.Files) != 1 || string(spec.Files[0]) != want {
		t.Errorf("got %s", spec.Files)
	}
	if envValue(spec.Env, "MCP_TOOL_TIMEOUT") != "90000" {
		t.Error("the time for a call is not in the environment")
	}
}

func TestField67_TokenIsInThePipeAlone(t *testing.T) {
	p := testPlan()
	p.Args = []string{"--append-system-prompt", "x"}
	forms := []string{testToken, base64.StdEncoding.EncodeToString([]byte(testToken)), url.QueryEscape(testToken), testToken[:16]}
	for _, cli := range registry {
		p := p
		if cli.Name() == "scripted" {
			p.Args = nil
		}
		spec, err := cli.Command(testInstall, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range append(append([]string{spec.Path, spec.Dir, spec.Marker}, spec.Args...), spec.Env...) {
			for _, f := range forms {
				if strings.Contains(s, f) {
					t.Errorf("%s: the token is in %q", cli.Name(), s)
				}
			}
		}
		if !bytes.Contains(spec.Files[0], []byte(testToken)) {
			t.Errorf("%s: the token is not in the pipe", cli.Name())
		}
		if entries, _ := os.ReadDir(p.PrivateDir); len(entries) > 0 {
			t.Errorf("%s: a file was written", cli.Name())
		}
	}
}

func TestField64_PromptByStdinWhole(t *testing.T) {
	for _, prompt := range []string{
		"x", "- x", "-p", "a\nb\r\n\n", "'\"$(x)%PATH%`id`", "\uFEFFx", "\xff\xfe",
		strings.Repeat("a", 127<<10), strings.Repeat("a", 129<<10), strings.Repeat("é", 3<<19),
	} {
		p := testPlan()
		p.Prompt = []byte(prompt)
		spec := command(t, p)
		got, err := io.ReadAll(spec.Stdin)
		if err != nil || sha256.Sum256(got) != sha256.Sum256([]byte(prompt)) {
			t.Errorf("prompt of %d bytes: %v", len(prompt), err)
		}
		for _, a := range spec.Args {
			if len(prompt) > 3 && strings.Contains(a, prompt) {
				t.Errorf("prompt of %d bytes is in an argument", len(prompt))
			}
		}
	}
	p := testPlan()
	p.Prompt = []byte("a\x00b")
	_, err := claude{}.Command(testInstall, p)
	refused(t, err, "NUL", "offset 1")
}

func TestPlanRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Plan)
		says   string
	}{
		"no prompt":             {func(p *Plan) { p.Prompt = []byte(" \n") }, "empty"},
		"no token":              {func(p *Plan) { p.Token = "" }, "token"},
		"header in token":       {func(p *Plan) { p.Token = "a\r\nX: y" }, "token"},
		"no server":             {func(p *Plan) { p.Server = "" }, "server"},
		"variable in url":       {func(p *Plan) { p.URL = "http://${HOST}/mcp" }, "reference to a variable"},
		"relative folder":       {func(p *Plan) { p.Folder = "a" }, "absolute"},
		"relative further":      {func(p *Plan) { p.Dirs = []string{"-x"} }, "absolute"},
		"no temporary folder":   {func(p *Plan) { p.TempDir = "" }, "temporary"},
		"NUL in model":          {func(p *Plan) { p.Model = "a\x00" }, "NUL"},
		"all by its name":       {func(p *Plan) { p.OwnTools.List = []string{"Default"} }, "--own-tools all"},
		"a list in one":         {func(p *Plan) { p.OwnTools.List = []string{"Read,Bash"} }, "Read,Bash"},
		"empty own tool":        {func(p *Plan) { p.OwnTools.List = []string{""} }, "own tool"},
		"another server's tool": {func(p *Plan) { p.OwnTools.List = []string{"mcp__x__y"} }, "mcp__x__y"},
		"own tool as option":    {func(p *Plan) { p.OwnTools.List = []string{"--bare"} }, "--bare"},
		"variable without =":    {func(p *Plan) { p.Env = []string{"FOO"} }, "NAME=VALUE"},
		"NUL in variable":       {func(p *Plan) { p.Env = []string{"FOO=a\x00B=c"} }, "NAME=VALUE"},
		"the run's mark":        {func(p *Plan) { p.Env = []string{proc.MarkerEnv + "=x"} }, proc.MarkerEnv},
		"nested again":          {func(p *Plan) { p.Env = []string{"CLAUDECODE=1"} }, "CLAUDECODE"},
		"file mentions again":   {func(p *Plan) { p.Env = []string{"CLAUDE_CODE_DISABLE_FILE_MENTIONS=0"} }, "MENTIONS"},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPlan()
			tc.change(&p)
			_, err := claude{}.Command(testInstall, p)
			refused(t, err, tc.says)
		})
	}
}

func TestProxiesAreNotAskedForLoopback(t *testing.T) {
	p := testPlan()
	p.Environ = append(p.Environ, "HTTPS_PROXY=http://proxy:3128", "NO_PROXY=.corp, 127.0.0.1", "no_proxy=*")
	env := command(t, p).Env
	if got := envValue(env, "NO_PROXY"); got != ".corp,127.0.0.1,localhost,::1" {
		t.Errorf("NO_PROXY=%s", got)
	}
	if envValue(env, "no_proxy") != "*" || envValue(env, "HTTPS_PROXY") != "http://proxy:3128" {
		t.Errorf("%q", env)
	}
}

func TestClaudeArguments(t *testing.T) {
	for _, tc := range []struct{ in, want []string }{
		{nil, nil},
		{[]string{"--effort", "high", "-n", "x"}, []string{"--effort=high", "--name=x"}},
		{[]string{"--append-system-prompt", "--mcp-config=/evil"}, []string{"--append-system-prompt=--mcp-config=/evil"}},
		{[]string{"--append-system-prompt=a=b"}, []string{"--append-system-prompt=a=b"}},
		{[]string{"--disallowed-tools", "Bash"}, []string{"--disallowedTools=Bash"}},
		{[]string{"--include-partial-messages"}, []string{"--include-partial-messages"}},
	} {
		got, err := passArgs("claude", tc.in, claudeFlags, claudeRefused)
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%q: %v %s", tc.in, err, diff)
		}
	}
	for _, arg := range []string{
		"--mcp-config", "--mcp-config=/x", "--tools", "--tools=default", "--allowedTools", "--allowed-tools=Bash", "--permission-mode=default",
		"--dangerously-skip-permissions", "--allow-dangerously-skip-permissions", "--settings", "--settings={}", "--setting-sources=user",
		"--strict-mcp-config", "-p", "--print", "--output-format=json", "--input-format", "--add-dir=/", "--resume", "-r", "-c", "--continue",
		"--fork-session", "--plugin-dir=/x", "--plugin-url=x", "--agents={}", "--agent=x", "--ide", "--chrome", "--remote-control", "--remote",
		"--model=x", "--max-budget-usd=9", "--brief", "--bare", "--bg", "--debug", "-d", "--debug-file=/x", "--file=x", "--worktree", "--safe-mode", "--restricted",
		"--permission-prompt-tool=x", "--sdk-url=x", "--some-new-option", "--EFFORT=low", "--effor=low", "-dp", "--", "-", "prompt", "", " --effort", "mcp",
	} {
		_, err := passArgs("claude", []string{arg}, claudeFlags, claudeRefused)
		refused(t, err)
	}
	_, err := passArgs("claude", []string{"--effort"}, claudeFlags, claudeRefused)
	refused(t, err, "no value")
	_, err = passArgs("claude", []string{"--effort", "a\x00"}, claudeFlags, claudeRefused)
	refused(t, err, "NUL")
	_, err = passArgs("claude", []string{"--forward-subagent-text=1"}, claudeFlags, claudeRefused)
	refused(t, err, "takes no value")
	for _, name := range flagNames(claudeFlags) {
		if claudeRefused[name] != "" {
			t.Errorf("%s is both allowed and refused", name)
		}
	}
}

func FuzzClaudeArguments(f *testing.F) {
	f.Add("--effort\nlow\n--tools=x")
	f.Add("--append-system-prompt\n--\n-p")
	f.Add("--name==\n")
	f.Fuzz(func(t *testing.T, in string) {
		out, err := passArgs("claude", strings.Split(in, "\n"), claudeFlags, claudeRefused)
		if err != nil {
			refused(t, err)
			return
		}
		for _, a := range out {
			name, _, inline := strings.Cut(a, "=")
			i := slices.IndexFunc(claudeFlags, func(f flag) bool { return f.names[0] == name })
			if i < 0 || claudeFlags[i].value != inline || strings.Contains(a, "\x00") {
				t.Errorf("%q became %q", in, a)
			}
		}
	})
}

func TestForeign(t *testing.T) {
	announced := []string{"Read", "mcp__osfoundry__memory_search", "mcp__osfoundry__", "mcp__osfoundry2__x", "mcp__other__x", "MCP__osfoundry__x", "memory_search", ""}
	want := []string{"Read", "mcp__osfoundry__", "mcp__osfoundry2__x", "mcp__other__x", "MCP__osfoundry__x", "memory_search", ""}
	if diff := cmp.Diff(want, Foreign(claude{}, "osfoundry", announced)); diff != "" {
		t.Error(diff)
	}
	if got := Foreign(claude{}, "osfoundry", announced[1:2]); got != nil {
		t.Errorf("%q", got)
	}
}

func TestByName(t *testing.T) {
	if !slices.IsSorted(Names()) || !slices.Equal(Names(), []string{"claude", "scripted"}) {
		t.Errorf("%q", Names())
	}
	for _, n := range Names() {
		if c, err := ByName(n); err != nil || c.Name() != n {
			t.Errorf("%s: %v", n, err)
		}
	}
	_, err := ByName("cluade")
	refused(t, err, "cluade", "did you mean claude?")
	_, err = ByName("")
	refused(t, err)
}

func program(t *testing.T, dir, name, script string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	good := program(t, dir, "claude", `echo "2.1.332 (Claude Code)"`)
	env := []string{"PATH=rel::/nowhere:" + dir, "HOME=" + dir, "LD_PRELOAD="}
	for _, path := range []string{"", good} {
		in, err := claude{}.Find(path, env)
		if err != nil || in.Path != good || in.Version != "2.1.332" {
			t.Errorf("%q: %+v %v", path, in, err)
		}
	}
	t.Chdir(dir)
	_, err := claude{}.Find("", []string{"PATH=.::" + dir + "/.."})
	refused(t, err, "not on the PATH")
	if in, err := (claude{}).Find("./claude", env); err != nil || in.Path != good {
		t.Errorf("%+v %v", in, err)
	}

	_, err = claude{}.Find("", []string{"PATH=/nowhere"})
	refused(t, err, "not on the PATH", "npm install -g @anthropic-ai/claude-code", "--agent-path")
	_, err = claude{}.Find(filepath.Join(dir, "none"), env)
	refused(t, err, "no such file")
	_, err = claude{}.Find(dir, env)
	refused(t, err, "not a file")
	plain := filepath.Join(dir, "plain")
	os.WriteFile(plain, nil, 0o600)
	_, err = claude{}.Find(plain, env)
	refused(t, err, "not executable")
	_, err = claude{}.Find(program(t, dir, "broken", "echo 'native binary not installed' >&2; exit 1"), env)
	refused(t, err, "native binary not installed")
	_, err = claude{}.Find(program(t, dir, "old", "echo 2.1.196"), env)
	refused(t, err, "2.1.196", "@latest")
	_, err = claude{}.Find(program(t, dir, "other", "echo hello"), env)
	refused(t, err, "names no version")
	_, err = claude{}.Find(program(t, dir, "envdump", `echo "2.1.332 $LD_PRELOAD$SECRET"; [ -z "$SECRET" ]`), append(env, "SECRET=s"))
	if err != nil {
		t.Error("the version was asked with the caller's whole environment:", err)
	}
	versionWait = 200 * time.Millisecond
	defer func() { versionWait = defaultVersionWait }()
	_, err = claude{}.Find(program(t, dir, "slow", "exec /bin/sleep 60"), env)
	refused(t, err, "no answer")
	_, err = scripted{}.Find("/x", env)
	refused(t, err, "built in")
}

func TestField78_ShimIsNamed(t *testing.T) {
	dir := t.TempDir()
	for _, ext := range []string{".cmd", ".bat", ".ps1"} {
		shim := program(t, dir, "claude"+ext, "touch "+dir+"/ran")
		_, err := claude{}.Find("", []string{"PATH=" + dir})
		refused(t, err, shim, "read the arguments again", ".exe")
		_, err = claude{}.Find(shim, nil)
		refused(t, err, shim)
		os.Remove(shim)
	}
	if _, err := os.Stat(dir + "/ran"); err == nil {
		t.Error("the shim was started")
	}
}

func TestVersionsCompare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := [3]int{rapid.IntRange(0, 999).Draw(t, "a"), rapid.IntRange(0, 9).Draw(t, "b"), rapid.IntRange(0, 999).Draw(t, "c")}
		b := [3]int{rapid.IntRange(0, 999).Draw(t, "d"), rapid.IntRange(0, 9).Draw(t, "e"), rapid.IntRange(0, 999).Draw(t, "f")}
		s := func(v [3]int) string {
			b, _ := json.Marshal(v)
			return strings.NewReplacer("[", "", "]", "", ",", ".").Replace(string(b))
		}
		if atLeast(s(a), s(b)) != (slices.Compare(a[:], b[:]) >= 0) {
			t.Fatalf("%v %v", a, b)
		}
	})
	for _, v := range []string{"", "2", "2.1", "x.1.2", "2.1.x"} {
		if atLeast(v, "0.0.0") {
			t.Errorf("%q", v)
		}
	}
}
