package agent

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// claude is Claude Code. What is said here of its behaviour was seen in 2.1.332.
type claude struct{}

// claudeOldest is the oldest version that was seen to keep to what Command asks
// of it. An older one is refused: nobody knows what it would leave out.
const claudeOldest = "2.1.197"

// claudeMentions is a version that knows CLAUDE_CODE_DISABLE_FILE_MENTIONS.
const claudeMentions = "2.1.332"

const claudeInstall = "install it with: npm install -g @anthropic-ai/claude-code"

// claudeEnv is what Claude Code gets beyond base: how it reaches its model and
// how long it may try, nothing that loads or allows anything.
var claudeEnv = []string{
	"ANTHROPIC_*", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR",
	"API_TIMEOUT_MS", "CLAUDE_CODE_MAX_RETRIES", "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
	"MAX_THINKING_TOKENS", "MAX_MCP_OUTPUT_TOKENS", "MCP_TIMEOUT",
	"DISABLE_PROMPT_CACHING*", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING",
}

// claudeClouds are the variables that hold a cloud's credentials, taken only
// where the variable that chooses the cloud is set.
var claudeClouds = map[string][]string{
	"CLAUDE_CODE_USE_BEDROCK": {"CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_SKIP_BEDROCK_AUTH", "AWS_*"},
	"CLAUDE_CODE_USE_VERTEX":  {"CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_SKIP_VERTEX_AUTH", "GOOGLE_*", "CLOUD_ML_REGION", "CLOUDSDK_CONFIG", "VERTEX_REGION_*"},
	"CLAUDE_CODE_USE_FOUNDRY": {"CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_SKIP_FOUNDRY_AUTH", "AZURE_*"},
}

// claudeReserved are variables that would undo what Command sets up, or make
// the CLI take itself for the child of another one and refuse to start.
var claudeReserved = []string{
	"CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SESSION_*", "CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_REMOTE*",
	"CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_SAFE_MODE", "CLAUDE_CODE_SUBPROCESS_ENV_SCRUB", "CLAUDE_CODE_MCP_*", "CLAUDE_CODE_PLUGIN_*",
	"CLAUDE_CODE_DISABLE_FILE_MENTIONS", "CLAUDE_CODE_DISABLE_ATTACHMENTS", "CLAUDE_CODE_DISABLE_AUTO_MEMORY",
	"CLAUDE_CODE_TMPDIR", "CLAUDE_TMPDIR", "TMPDIR", "IS_SANDBOX", "ENABLE_CLAUDEAI_MCP_SERVERS", "ENABLE_TOOL_SEARCH",
	"MCP_TOOL_TIMEOUT", "MCP_CONNECTION_NONBLOCKING", "CLAUDE_AGENT_SDK_*",
}

// claudeFlags are the options a run does not depend on.
var claudeFlags = []flag{
	{names: []string{"--append-system-prompt"}, value: true},
	{names: []string{"--append-system-prompt-file"}, value: true},
	{names: []string{"--system-prompt"}, value: true},
	{names: []string{"--system-prompt-file"}, value: true},
	{names: []string{"--system-prompt-snapshot"}, value: true},
	{names: []string{"--exclude-dynamic-system-prompt-sections"}},
	{names: []string{"--fallback-model"}, value: true},
	{names: []string{"--effort"}, value: true},
	{names: []string{"--betas"}, value: true},
	{names: []string{"--autocompact"}, value: true},
	{names: []string{"--max-turns"}, value: true},
	{names: []string{"--json-schema"}, value: true},
	{names: []string{"--session-id"}, value: true},
	{names: []string{"--name", "-n"}, value: true},
	{names: []string{"--disallowedTools", "--disallowed-tools"}, value: true},
	{names: []string{"--include-partial-messages"}},
	{names: []string{"--forward-subagent-text"}},
}

const (
	claudeConversation = "leave it out; a run starts a conversation of its own, so that nothing reaches it from another binding"
	claudeOwn          = "leave it out; the run sets it itself"
)

// claudeRefused says what to do instead, for options people reach for.
var claudeRefused = map[string]string{
	"--model":                              "use --model of drawbridge",
	"--add-dir":                            "use --add-dir of drawbridge",
	"--max-budget-usd":                     "use --budget of drawbridge",
	"--tools":                              "use --own-tools of drawbridge",
	"--allowedTools":                       "use --allow of drawbridge: in bypass mode this option does not hold",
	"--allowed-tools":                      "use --allow of drawbridge: in bypass mode this option does not hold",
	"--mcp-config":                         "leave it out; the bridge is the only MCP server of a run",
	"--resume":                             claudeConversation,
	"-r":                                   claudeConversation,
	"--continue":                           claudeConversation,
	"-c":                                   claudeConversation,
	"--fork-session":                       claudeConversation,
	"-p":                                   claudeOwn,
	"--print":                              claudeOwn,
	"--verbose":                            claudeOwn,
	"--output-format":                      claudeOwn,
	"--input-format":                       claudeOwn,
	"--permission-mode":                    claudeOwn,
	"--dangerously-skip-permissions":       claudeOwn,
	"--allow-dangerously-skip-permissions": claudeOwn,
	"--strict-mcp-config":                  claudeOwn,
	"--setting-sources":                    claudeOwn,
	"--no-session-persistence":             claudeOwn,
	"--disable-slash-commands":             claudeOwn,
	"--settings":                           "leave it out; settings can hold hooks, which are programs that never pass the gate",
}

func (claude) Name() string { return "claude" }

func (claude) ToolName(server, tool string) string { return "mcp__" + server + "__" + tool }

func (claude) Find(path string, environ []string) (Installation, error) {
	p, err := findProgram("claude", path, claudeInstall, environ)
	if err != nil {
		return Installation{}, err
	}
	var env environment
	env.take(environ, base)
	v, err := version(p, env)
	if err != nil {
		return Installation{}, err
	}
	if !atLeast(v, claudeOldest) {
		return Installation{}, fault.New(fault.Usage, "install a newer one: npm install -g @anthropic-ai/claude-code@latest (its newest versions want Node.js 22)",
			"claude %s at %s is older than %s, the oldest version known to keep to what a run asks of it", v, p, claudeOldest)
	}
	return Installation{Path: p, Version: v}, nil
}

func (claude) Command(in Installation, p Plan) (proc.Spec, error) {
	if err := checkPlan(p); err != nil {
		return proc.Spec{}, err
	}
	tools, err := claudeTools(p.OwnTools)
	if err != nil {
		return proc.Spec{}, err
	}
	extra, err := passArgs("claude", p.Args, claudeFlags, claudeRefused)
	if err != nil {
		return proc.Spec{}, err
	}
	config, err := mcpConfig(p)
	if err != nil {
		return proc.Spec{}, err
	}
	env, err := claudeEnvironment(in.Version, p)
	if err != nil {
		return proc.Spec{}, err
	}

	// No positional argument, and every option with a list of values is closed
	// by =: such an option takes in whatever stands after it.
	args := []string{
		"claude", "-p", "--output-format", "stream-json", "--verbose",
		"--permission-mode", "bypassPermissions",
		"--mcp-config=/dev/fd/3", "--strict-mcp-config",
		"--setting-sources", "",
		"--no-session-persistence", "--disable-slash-commands",
	}
	args = append(args, tools...)
	for _, d := range p.Dirs {
		args = append(args, "--add-dir="+d)
	}
	if p.Model != "" {
		args = append(args, "--model="+p.Model)
	}
	if p.Budget > 0 {
		args = append(args, "--max-budget-usd="+strconv.FormatFloat(p.Budget, 'f', -1, 64))
	}
	return proc.Spec{
		Path:  in.Path,
		Args:  append(args, extra...),
		Env:   env,
		Dir:   p.Folder,
		Stdin: bytes.NewReader(p.Prompt),
		// The token is in the pipe alone: in no argument, no variable, no file.
		Files: [][]byte{config},
	}, nil
}

var ownToolName = lazy(`^[A-Za-z][A-Za-z0-9_]{0,63}$`)

func claudeTools(own OwnTools) ([]string, error) {
	if own.All {
		return nil, nil
	}
	for _, name := range own.List {
		switch {
		case strings.EqualFold(name, "default"):
			return nil, fault.New(fault.Usage, "use --own-tools all", "own tool %q stands for all own tools of claude", name)
		case !ownToolName().MatchString(name) || strings.HasPrefix(name, "mcp__"):
			return nil, fault.New(fault.Usage, "name tools as claude does, for example Read,Grep", "own tool %q is not a name claude can have", clip(name, 64))
		}
	}
	return []string{"--tools", strings.Join(own.List, ",")}, nil
}

func claudeEnvironment(version string, p Plan) ([]string, error) {
	var env environment
	env.take(p.Environ, base)
	env.take(p.Environ, claudeEnv)
	for choice, names := range claudeClouds {
		if v := envValue(p.Environ, choice); v != "" && v != "0" && v != "false" {
			env.take(p.Environ, names)
		}
	}
	if err := env.add(p.Env, claudeReserved); err != nil {
		return nil, err
	}
	env.exempt()
	millis := strconv.FormatInt(p.callTimeout().Milliseconds(), 10)
	for _, kv := range [][2]string{
		{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"},
		{"DISABLE_AUTOUPDATER", "1"},
		// Notes of its own that it reads again in the next run would carry text
		// from one binding to another.
		{"CLAUDE_CODE_DISABLE_AUTO_MEMORY", "1"},
		// Servers of the person's account.
		{"ENABLE_CLAUDEAI_MCP_SERVERS", "false"},
		// Tools are announced from the first turn, all of them and no others:
		// with tool search on the model is also offered a placeholder.
		{"ENABLE_TOOL_SEARCH", "false"},
		{"MCP_TOOL_TIMEOUT", millis},
		{"TMPDIR", p.TempDir},
		{"CLAUDE_CODE_TMPDIR", p.TempDir},
		{"TERM", "dumb"},
	} {
		env.set(kv[0], kv[1])
	}
	// In a prompt, @PATH makes the CLI read that file by itself and hand it to
	// the model, whatever tools are on. It is a read that never passes the gate,
	// and in a chat it is a stranger who writes the prompt.
	if !p.OwnTools.All && !slices.Contains(p.OwnTools.List, "Read") {
		env.set("CLAUDE_CODE_DISABLE_FILE_MENTIONS", "1")
		if !atLeast(version, claudeMentions) {
			// The only switch there was; the server's instructions go with it.
			env.set("CLAUDE_CODE_DISABLE_ATTACHMENTS", "1")
		}
	}
	// It refuses to bypass its prompts as root unless told that it is confined.
	// The endpoint is what confines here, as far as anything does.
	if os.Geteuid() == 0 {
		env.set("IS_SANDBOX", "1")
	}
	return env, nil
}

// mcpConfig is the mcpServers document that names the endpoint. All values are
// literal: a reference to a variable that is not set would be sent as it is
// written.
func mcpConfig(p Plan) ([]byte, error) {
	type server struct {
		Type       string            `json:"type"`
		URL        string            `json:"url"`
		AlwaysLoad bool              `json:"alwaysLoad"`
		Timeout    int64             `json:"timeout"` // ms
		Headers    map[string]string `json:"headers"`
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(map[string]map[string]server{"mcpServers": {p.Server: {
		Type: "http", URL: p.URL,
		// Else its tools may wait behind a search tool, which is one of the own
		// tools that a sealed run has switched off.
		AlwaysLoad: true,
		Timeout:    p.callTimeout().Milliseconds(),
		Headers:    map[string]string{"Authorization": "Bearer " + p.Token},
	}}})
	return b.Bytes(), err
}

var planToken = lazy(`^[A-Za-z0-9._~+/=-]+$`)

// checkPlan refuses what no CLI can be started with.
func checkPlan(p Plan) error {
	switch {
	case runtime.GOOS == "windows":
		return fault.Wrap(proc.ErrUnsupported, fault.Usage, "run it on Linux, or in a Linux container", "starting an agent")
	case p.Server == "" || p.URL == "" || !planToken().MatchString(p.Token):
		return fault.New(fault.Usage, "start the bridge first", "the agent needs a server name, a URL and a token")
	case strings.Contains(p.Server+p.URL, "${"):
		return fault.New(fault.Usage, "write the value itself", "server %q at %q holds a reference to a variable", p.Server, p.URL)
	case len(bytes.TrimSpace(p.Prompt)) == 0:
		return fault.New(fault.Usage, "give it after --, with --prompt-file or on standard input", "the prompt is empty")
	case bytes.IndexByte(p.Prompt, 0) >= 0:
		return fault.New(fault.Usage, "give the prompt as text", "the prompt holds a NUL byte at offset %d", bytes.IndexByte(p.Prompt, 0))
	case strings.ContainsRune(p.Model, 0):
		return fault.New(fault.Usage, "take the NUL byte out", "the model's name holds a NUL byte")
	case !filepath.IsAbs(p.Folder):
		return fault.New(fault.Usage, "give an absolute path", "folder %q is not absolute", p.Folder)
	case p.TempDir == "":
		return fault.New(fault.Usage, "give the run a temporary folder of its own", "the agent has no temporary folder")
	}
	for _, d := range p.Dirs {
		if !filepath.IsAbs(d) || strings.ContainsRune(d, 0) {
			return fault.New(fault.Usage, "give an absolute path", "further folder %q", clip(d, 200))
		}
	}
	return nil
}

func (claude) Parser() Parser                 { return &claudeStream{} }
func (claude) parserFor(server string) Parser { return &claudeStream{server: server} }

// lazy compiles a pattern when it is first used: every start of the program, and
// of each helper, would pay for it otherwise.
func lazy(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
