package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drawbridge-mcp/drawbridge"
	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/config"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
	"github.com/drawbridge-mcp/drawbridge/internal/policy/celrule"
	"github.com/drawbridge-mcp/drawbridge/internal/policy/policyfile"
	"github.com/drawbridge-mcp/drawbridge/internal/session"
)

// scopeFlags are what run and exec have in common: whom the run works for and
// what it may call.
type scopeFlags struct {
	agent, config                                     string
	workspace, channel, user, folder, server, sandbox string
	allow, ask                                        []string
	plan                                              bool
	maxCalls                                          int64
	maxOutput                                         int
	callTimeout                                       time.Duration
}

func (f *scopeFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.agent, "agent", "", "agent of the policy file, or agent CLI: "+strings.Join(agent.Names(), ", "))
	addConfig(c, &f.config)
	fl.StringVar(&f.workspace, "workspace", "default", "workspace the run is bound to: whose memory it sees")
	fl.StringVar(&f.channel, "channel", "", "channel the run is bound to")
	fl.StringVar(&f.user, "user", "", "user the run is bound to (default: you)")
	fl.StringVar(&f.folder, "folder", ".", "folder the run works in; the file tools can't leave it (default with a policy agent: the workspace's)")
	fl.StringArrayVar(&f.allow, "allow", nil, "tools the run may see and call: names, or patterns with *, separated by commas; nothing is allowed by default; beside an agent of the policy file it narrows")
	fl.StringArrayVar(&f.ask, "ask", nil, "of the allowed tools, those a person is asked about before each call; see drawbridge approvals")
	fl.BoolVar(&f.plan, "plan", false, "begin in plan mode: until a person has approved the agent's plan only tools that read run")
	fl.StringVar(&f.server, "server-name", "drawbridge", "the middle of the tool name the model sees, mcp__NAME__tool")
	fl.StringVar(&f.sandbox, "sandbox", "", `"off" accepts that execute_command runs unconfined`)
	fl.Int64Var(&f.maxCalls, "max-calls", 0, "tool calls the run may make; further ones are refused (0: no limit but the policy's)")
	fl.IntVar(&f.maxOutput, "max-output", 64<<10, "bytes of one tool result; the middle of a longer one is left out")
	fl.DurationVar(&f.callTimeout, "call-timeout", 10*time.Minute, "time one tool call may take")
	complete(c, "agent", agent.Names())
	complete(c, "allow", session.Builtins())
	complete(c, "ask", session.Builtins())
	complete(c, "sandbox", []string{"off"})
}

// complete tells shell completion the values of a flag of c.
func complete(c *cobra.Command, flag string, values []string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // it fails for a flag that is not there, or twice
}

func addConfig(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "config", "", "policy file (default $XDG_CONFIG_HOME/drawbridge/drawbridge.yaml, where there is one)")
}

// chosen is what the flags and the policy file come to.
type chosen struct {
	cfg    session.Config
	cli    agent.CLI // nil where none was named
	file   *policyfile.File
	agent  string // of the policy file, "" for none
	policy *policy.Policy
}

// policyFile reads the file at path, or where that is "" the one in the user's
// config directory; nil where there is none.
func policyFile(path string) (*policyfile.File, error) {
	explicit := path != ""
	if !explicit {
		if path = config.Default(os.Getenv); path == "" {
			return nil, nil
		}
	}
	src, err := config.Read(path, policyfile.MaxFile)
	if errors.Is(err, fs.ErrNotExist) && !explicit {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return policyfile.Parse(src.Path, src.Data, policyOptions())
}

func policyOptions() policyfile.Options {
	return policyfile.Options{Tools: session.Builtins(), CLIs: agent.Names(), Compile: celrule.Compile}
}

func (f *scopeFlags) choose(a *app, c *cobra.Command) (*chosen, error) {
	set := c.Flags().Changed
	if err := f.check(c); err != nil {
		return nil, err
	}
	file, err := policyFile(f.config)
	if err != nil {
		return nil, err
	}
	ch := &chosen{file: file}
	if err := ch.who(f.agent); err != nil {
		return nil, err
	}
	var sel *policyfile.Selected
	if file != nil {
		if sel, err = file.Select(ch.agent, f.workspace, f.channel); err != nil {
			return nil, err
		}
		if err := sel.Startable(f.sandbox == "off", os.LookupEnv); err != nil {
			return nil, err
		}
	}
	if err := ch.decideBy(sel, f, set("allow")); err != nil {
		return nil, err
	}
	if sel != nil && ch.agent != "" {
		if ch.cli == nil && sel.CLI != "" {
			if ch.cli, err = agent.ByName(sel.CLI); err != nil {
				return nil, err
			}
		}
		if sel.Folder != "" && !set("folder") {
			home, _ := os.UserHomeDir()
			if f.folder, err = policyfile.HomeFolder(sel.Folder, home); err != nil {
				return nil, err
			}
		}
	}
	if sel != nil && sel.Server != "" && !set("server-name") {
		f.server = sel.Server
	}
	if f.user == "" {
		f.user = currentUser()
	}
	cfg := &ch.cfg
	cfg.Binding = call.Binding{Workspace: f.workspace, Channel: f.channel, User: f.user, Agent: ch.agent}
	if ch.agent == "" && ch.cli != nil {
		cfg.Binding.Agent = ch.cli.Name()
	}
	cfg.Server, cfg.Folder, cfg.StateDir = f.server, f.folder, a.stateDir
	cfg.Builtins, cfg.Policy = session.Builtins(), ch.policy
	if sel != nil {
		ap := sel.Approvals
		cfg.Approvals = session.Approvals{Expiry: ap.Expiry.Value, SameUser: ap.SameUser}
		for _, word := range ap.Notify {
			cfg.Approvals.Notify = append(cfg.Approvals.Notify, word.Value)
		}
	}
	cfg.SandboxOff = f.sandbox == "off"
	cfg.Version = "drawbridge " + drawbridge.Version
	cfg.Limits.Calls = f.maxCalls
	if set("max-output") { // else a limit of the policy comes before the default
		cfg.Limits.Output = f.maxOutput
	}
	if set("call-timeout") {
		cfg.Limits.Call = f.callTimeout
	}
	if file != nil {
		cfg.Protected = []string{file.Path()}
		if err := config.CheckPlace(file.Path(), cfg.Folder); err != nil {
			return nil, err
		}
	}
	f.hints(a, file, cfg.SandboxOff)
	return ch, nil
}

func (f *scopeFlags) check(c *cobra.Command) error {
	if f.sandbox != "" && f.sandbox != "off" {
		return fault.New(fault.Usage, "this version has no sandbox yet; --sandbox=off accepts that", "--sandbox %q is not known", f.sandbox)
	}
	if err := notNegative(c); err != nil {
		return err
	}
	for _, name := range []string{"config", "workspace", "timeout", "ready-timeout", "idle-timeout", "call-timeout", "max-output", "budget"} {
		fl := c.Flags().Lookup(name)
		if fl == nil || !fl.Changed {
			continue
		}
		if v := strings.TrimSpace(fl.Value.String()); v == "" || v == "0" || v == "0s" {
			return fault.New(fault.Usage, "give a value, or leave the flag out", "--%s is %q", name, fl.Value)
		}
	}
	return nil
}

// notNegative refuses numbers and times below zero in the flags of c.
func notNegative(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "int", "int64", "float64", "duration":
			if err == nil && strings.HasPrefix(f.Value.String(), "-") {
				err = fault.New(fault.Usage, "give a value that is not", "--%s is negative: %s", f.Name, f.Value)
			}
		}
	})
	return err
}

// who takes name for an agent of the policy file, else for a CLI.
func (ch *chosen) who(name string) error {
	if name == "" {
		return nil
	}
	var own []string
	if ch.file != nil {
		own = ch.file.AgentNames()
	}
	if slices.Contains(own, name) {
		ch.agent = name
		return nil
	}
	cli, err := agent.ByName(name)
	if err != nil {
		return fault.New(fault.Usage, fault.Suggest(name, append(own, agent.Names()...)), "no agent is called %q", call.Clip(name))
	}
	ch.cli = cli
	return nil
}

// decideBy makes the policy of the run. Without an agent of the file the
// command line is the layer that grants; beside one it can only narrow.
func (ch *chosen) decideBy(sel *policyfile.Selected, f *scopeFlags, given bool) error {
	allow, err := policy.ParseList("allow", commas(f.allow), session.Builtins())
	if err != nil {
		return err
	}
	ask, err := policy.ParseList("ask", commas(f.ask), session.Builtins())
	if err != nil {
		return err
	}
	var layers []policy.Layer
	if sel == nil || sel.Agent == nil {
		layers = append(layers, policy.Layer{Name: policy.AgentLayer, Allow: allow})
	}
	if sel != nil {
		layers = append(layers, sel.Layers()...)
	}
	run := policy.Layer{Name: policy.RunLayer, Plan: f.plan, PlanAt: "--plan"}
	if sel != nil && sel.Agent != nil && given {
		run.Allow = allow
	}
	if len(ask) > 0 {
		run.Rules = []policy.Rule{{Tools: ask, Then: call.Ask, At: "--ask"}}
	}
	if run.Allow != nil || run.Plan || run.Rules != nil {
		layers = append(layers, run)
	}
	ch.policy = policy.New(layers...)
	return nil
}

// commas splits the values of a flag that takes lists.
func commas(lists []string) (names []string) {
	for _, list := range lists {
		for _, name := range strings.Split(list, ",") {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names
}

// noCLI is why run has nothing to start.
func (ch *chosen) noCLI() error {
	names := strings.Join(agent.Names(), ", ")
	if ch.agent != "" {
		return fault.New(fault.Usage, "add cli: "+strings.Join(agent.Names(), " or cli: "), "%s: agent %s names no agent CLI to start", ch.file.Path(), ch.agent)
	}
	if ch.file != nil {
		names = strings.Join(append(ch.file.AgentNames(), agent.Names()...), ", ")
	}
	return fault.New(fault.Usage, "there are: "+names, "--agent is missing")
}

// say names the policy.
func (ch *chosen) say(a *app) {
	if ch.file == nil {
		return
	}
	if ch.agent == "" {
		fmt.Fprintf(a.err, "drawbridge: policy %s: it narrows what --allow names\n", line(ch.file.Path(), 400))
		return
	}
	fmt.Fprintf(a.err, "drawbridge: policy %s, agent %s\n", line(ch.file.Path(), 400), line(ch.agent, 80))
}

func (f *scopeFlags) hints(a *app, file *policyfile.File, sandboxOff bool) {
	// A file in a folder is never read by itself: a cloned repository must not
	// say what may run.
	for _, dir := range []string{f.folder, "."} {
		there, err := filepath.Abs(filepath.Join(dir, config.Name))
		if err != nil || file != nil && there == file.Path() {
			continue
		}
		if _, err := os.Lstat(there); err == nil {
			fmt.Fprintf(a.err, "drawbridge: hint: %s is not read by itself; give it with --config if you trust it\n", line(there, 400))
			break
		}
	}
	if sandboxOff {
		fmt.Fprintln(a.err, "drawbridge: warning: --sandbox=off: commands run unconfined, with all you can do yourself")
	}
}

func currentUser() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return fmt.Sprintf("uid-%d", os.Getuid())
}
