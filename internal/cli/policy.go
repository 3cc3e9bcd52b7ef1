package cli

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/catalogue"
	"github.com/drawbridge-mcp/drawbridge/internal/config"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
	"github.com/drawbridge-mcp/drawbridge/internal/policy/policyfile"
	"github.com/drawbridge-mcp/drawbridge/internal/session"
)

func (a *app) policyCommand() *cobra.Command {
	return group("policy", "Check, explain and test the policy file", a.policyCheck(), a.policyExplain(), a.policyTest(),
		a.policySuggest(), a.policyReplay(), a.policySchema())
}

// needPolicy is the policy file, which has to be there.
func needPolicy(path string) (*policyfile.File, error) {
	file, err := policyFile(path)
	if err == nil && file == nil {
		err = fault.New(fault.Usage, "drawbridge init writes one to start from, or give one with --config", "there is no policy file %s", config.Default(os.Getenv))
	}
	return file, err
}

func (a *app) policyCheck() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Read the whole policy file as a run would, and name what is wrong",
		Long: `Read a policy file as a run would and name each error by file, line and column, up
to 20 at once; what names stand for is looked at once the form of the file is right.
Exit code 2 where there is an error. Warnings are about what is well written and
still not what it may seem: questions that the run's own code could answer, trust in
programs that run anything, what is not built yet.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				if path != "" {
					return fault.New(fault.Usage, "give one of them", "two policy files: %s and --config %s", args[0], path)
				}
				path = args[0]
			}
			file, err := needPolicy(path)
			if err != nil {
				return err
			}
			for _, w := range file.Warnings(session.Builtins(), os.LookupEnv) {
				fmt.Fprintf(a.out, "warning: %s\n", visible(w))
			}
			fmt.Fprintf(a.out, "ok: %s: %d agents, %d workspaces, %d upstreams\n", visible(file.Path()), len(file.Agents), len(file.Workspaces), len(file.Upstreams))
			return nil
		},
	}
	addConfig(c, &path)
	return c
}

// bindingFlags say which run of a policy is meant.
type bindingFlags struct{ config, agent, workspace, channel, user string }

func (f *bindingFlags) add(c *cobra.Command) {
	addConfig(c, &f.config)
	c.Flags().StringVar(&f.agent, "agent", "", "agent of the policy file (default: the only one)")
	c.Flags().StringVar(&f.workspace, "workspace", "default", "workspace of the run")
	c.Flags().StringVar(&f.channel, "channel", "", "channel of the run")
	c.Flags().StringVar(&f.user, "user", "", "user of the run (default: you)")
}

func onlyAgent(file *policyfile.File, name string) (string, error) {
	if names := file.AgentNames(); name == "" {
		if len(names) != 1 {
			return "", fault.New(fault.Usage, "there are: "+strings.Join(names, ", "), "--agent is missing, and the policy file has %d agents", len(names))
		}
		return names[0], nil
	}
	return name, nil
}

func (a *app) policyExplain() *cobra.Command {
	var f bindingFlags
	c := &cobra.Command{
		Use:   "explain [TOOL [ARGUMENTS]]",
		Short: "Say for every tool what is decided, and by which layer and line",
		Long: `Say for every tool of a run what the policy decides, and which layer and line of the
file decided it. With a TOOL, also the rules that look at its arguments; with
ARGUMENTS (a JSON object), the decision of that very call.`,
		Example: `  drawbridge policy explain --agent researcher --workspace ws-personal
  drawbridge policy explain --agent researcher execute_command '{"cmd":"ls | wc"}'`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			file, err := needPolicy(f.config)
			if err != nil {
				return err
			}
			name, err := onlyAgent(file, f.agent)
			if err != nil {
				return err
			}
			sel, err := file.Select(name, f.workspace, f.channel)
			if err != nil {
				return err
			}
			if f.user == "" {
				f.user = currentUser()
			}
			p := policy.New(sel.Layers()...).Bound(call.Binding{Workspace: f.workspace, Channel: f.channel, User: f.user, Agent: name}, nil)
			names := slices.Sorted(maps.Keys(session.Effects()))
			mode, at := p.Mode()
			if mode != policy.Plan {
				names = slices.DeleteFunc(names, func(n string) bool { return n == policy.PlanTool })
			}
			server := sel.Server
			if server == "" {
				server = "drawbridge"
			}
			if len(args) > 0 {
				if !slices.Contains(names, args[0]) {
					return fault.New(fault.Usage, fault.Suggest(args[0], names), "no tool is called %q", call.Clip(args[0]))
				}
				names = args[:1]
			}
			if len(args) == 2 {
				return a.explainCall(p, args[0], args[1])
			}
			if mode == policy.Plan {
				fmt.Fprintf(a.out, "mode plan, set by %s: until a person approves a plan only tools that read run; what is decided after that:\n", line(at, 300))
			}
			a.explainTools(p, server, names, len(args) == 1)
			a.explainQuestions(sel, p, names)
			if err := sel.Startable(false, os.LookupEnv); err != nil {
				fmt.Fprintf(a.out, "note: a run would not start: %s\n", visible(err.Error()))
			}
			return nil
		},
	}
	f.add(c)
	return c
}

func (a *app) explainTools(p *policy.Policy, server string, names []string, rules bool) {
	exposed := catalogue.Expose(server, names)
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOOL\tDECISION\tBY\tTHE MODEL SEES")
	for _, name := range names {
		e := p.Explain(name)
		verdict, sees := string(e.Decision.Verdict), "-"
		if len(e.Depends) > 0 {
			verdict += ", or stricter"
		}
		if p.InScope(name) {
			sees = "mcp__" + server + "__" + exposed[name]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, verdict, by(e.Decision), sees)
		for _, r := range e.Depends {
			fmt.Fprintf(w, "\t%s\t%s\t\n", "  rule", line(r.String()+" ("+r.At+")", 300))
		}
	}
	_ = w.Flush()
	if !rules {
		return
	}
	if l := p.Limits(); l != (policy.Limits{}) {
		fmt.Fprintf(a.out, "limits of the run: %s\n", limits(l))
	}
	for _, name := range names {
		if l := p.ToolLimits(name); l != (policy.Limits{}) {
			fmt.Fprintf(a.out, "limits of %s: %s\n", name, limits(l))
		}
	}
}

// explainQuestions says how a person is asked, where one can be.
func (a *app) explainQuestions(sel *policyfile.Selected, p *policy.Policy, names []string) {
	if !policyfile.CanAsk(p, names) {
		return
	}
	expiry := sel.Approvals.Expiry.Value
	if expiry == 0 {
		expiry = approve.DefaultExpiry
	}
	fmt.Fprintf(a.out, "questions: answered with drawbridge approve and drawbridge deny, expire after %s\n", expiry)
	switch why := sel.Answerable(p); {
	case why == "":
	case sel.Approvals.SameUser:
		fmt.Fprintf(a.out, "note: code of the run could answer in a person's place, and the policy accepts it: %s\n", why)
	default:
		fmt.Fprintf(a.out, "note: a run would not start: code of the run could answer in a person's place: %s\n", why)
	}
}

func by(d call.Decision) string {
	return strings.TrimSpace(d.Layer + " " + line(d.Rule, 300))
}

func limits(l policy.Limits) string {
	var parts []string
	add := func(name string, set bool, v any) {
		if set {
			parts = append(parts, fmt.Sprintf("%s %v", name, v))
		}
	}
	add("calls", l.Calls > 0, l.Calls)
	add("concurrent", l.Concurrent > 0, l.Concurrent)
	add("output", l.Output > 0, fmt.Sprint(l.Output, " bytes"))
	add("total", l.Total > 0, fmt.Sprint(l.Total, " bytes"))
	add("call", l.Call > 0, l.Call)
	add("wall", l.Wall > 0, l.Wall)
	add("budget", l.Budget > 0, session.Dollars(l.Budget))
	return strings.Join(parts, ", ")
}

func (a *app) explainCall(p *policy.Policy, tool, raw string) error {
	args, err := call.DecodeObject([]byte(raw))
	if err != nil {
		return fault.Wrap(err, fault.Usage, `give a JSON object, like '{"cmd":"ls"}'`, "arguments")
	}
	d := p.Decide(call.Request{Tool: tool}, &call.Tool{Name: tool, Effects: session.Effects()[tool]}, args)
	fmt.Fprintf(a.out, "%s by %s\n", d.Verdict, by(d))
	if d.Reason != "" {
		fmt.Fprintf(a.out, "the model is told: %s\n", line(d.Reason, 1000))
	}
	return nil
}

func (a *app) policySchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the policy file, for editors",
		Long: `Print the JSON Schema (draft 2020-12) of the policy file. Editors that know YAML
complete and check by it; what it can't say, policy check does.`,
		Example: `  drawbridge policy schema > drawbridge.schema.json
  # and as first line of the policy: # yaml-language-server: $schema=drawbridge.schema.json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := a.out.Write(policyfile.Schema())
			return err
		},
	}
}

func (a *app) policySuggest() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "suggest RUN...",
		Short: "Print the least scope that lets through what recorded runs did",
		Long: `Print a policy file with the least scope that would have let the recorded runs do
what they did, and in comments what they were given and never used, and what they
were refused. Rules are taken over from the policy file where the run's agent is in
it. RUN is a run's id, a part of one, "last", or the path of a record.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var records []*policy.Record
			for _, name := range args {
				rec, err := a.readRecord(name)
				if err != nil {
					return err
				}
				if len(records) > 0 && records[0].Run.Agent != rec.Run.Agent {
					return fault.New(fault.Usage, "suggest for one agent at a time", "run %s is of agent %q, run %s of %q",
						records[0].Run.ID, call.Clip(records[0].Run.Agent), rec.Run.ID, call.Clip(rec.Run.Agent))
				}
				records = append(records, rec)
			}
			file, err := policyFile(path)
			if err != nil {
				return err
			}
			s := policy.Suggest(records...)
			out, known := policyfile.Suggest(file, records[0].Run, s, policyOptions())
			if s.ByRules > 0 && !known {
				fmt.Fprintf(a.err, "drawbridge: warning: rules refused %d of these calls, and their policy is not at hand: the suggestion has no rules\n", s.ByRules)
			}
			_, err = a.out.Write(out)
			return err
		},
	}
	addConfig(c, &path)
	return c
}

func (a *app) readRecord(name string) (*policy.Record, error) {
	f, _, err := a.record(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rec, err := policy.ReadRecord(f)
	if err != nil {
		return nil, fault.Wrap(err, fault.Record, "drawbridge audit verify names the first bad line", "read the record")
	}
	if rec.Run.ID == "" {
		return nil, fault.New(fault.Record, "drawbridge audit verify names the first bad line", "the record of %s does not open with a run", name)
	}
	return rec, nil
}

func (a *app) policyReplay() *cobra.Command {
	var path, agent string
	c := &cobra.Command{
		Use:   "replay RUN",
		Short: "Say which recorded calls the policy file would decide differently now",
		Long: `Hold a recorded run against the policy file (as a rule a changed one, with --config)
and print each call that would be decided differently, or that can't be decided
because the record holds its arguments only masked or as a digest. Exit code 1
where there is one.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			rec, err := a.readRecord(args[0])
			if err != nil {
				return err
			}
			file, err := needPolicy(path)
			if err != nil {
				return err
			}
			if agent == "" {
				agent = rec.Run.Agent
				if _, ok := file.Agents[agent]; !ok {
					if agent, err = onlyAgent(file, ""); err != nil {
						return err
					}
				}
			}
			sel, err := file.Select(agent, rec.Run.Workspace, rec.Run.Channel)
			if err != nil {
				return err
			}
			tools := slices.Concat(session.Builtins(), rec.Run.Scope, []string{policy.PlanTool})
			differ := policy.New(sel.Layers()...).Replay(rec, tools)
			for _, d := range differ {
				if d.Undecidable != "" {
					fmt.Fprintf(a.out, "line %d: %s: undecidable: %s\n", d.Line, line(d.Tool, 80), d.Undecidable)
					continue
				}
				fmt.Fprintf(a.out, "line %d: %s: was %s, is %s by %s\n", d.Line, line(d.Tool, 80), d.Verdict, d.Now.Verdict, by(d.Now))
			}
			fmt.Fprintf(a.out, "%d calls, %d decided differently or undecidable, %d refused for other reasons than the policy\n", len(rec.Calls), len(differ), rec.Other)
			if len(differ) > 0 {
				return exitCode(fault.Agent)
			}
			return nil
		},
	}
	addConfig(c, &path)
	c.Flags().StringVar(&agent, "agent", "", "agent of the policy file (default: the run's own, or the only one)")
	return c
}

func (a *app) policyTest() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "test FILE",
		Short: "Run a table of calls, and the decisions they have to get, against the policy",
		Long: `Run a table of calls against the policy file. FILE is YAML:

  policy: drawbridge.yaml        # beside this file; --config comes first
  tests:
    - name: listing is fine      # agent, workspace, channel, user as in a run
      agent: maintainer
      workspace: ws-personal
      tool: execute_command
      args: { cmd: "ls | wc -l" }
      want: allow                # or ask, or deny
      by: agent                  # optional: the layer that decides

Each test that fails is named by file, line and column, with the layer and line of
the policy that decided. Exit code 1 where one fails.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			src, err := config.Read(args[0], policyfile.MaxFile)
			if err != nil {
				return err
			}
			table, err := policyfile.ParseTests(src.Path, src.Data)
			if err != nil {
				return err
			}
			if path == "" {
				path = table.Beside()
			}
			file, err := needPolicy(path)
			if err != nil {
				return err
			}
			failed := 0
			for _, t := range table.Tests {
				if problem := t.Run(file, session.Effects()); problem != "" {
					failed++
					fmt.Fprintf(a.out, "FAIL %s:%d:%d: %s\n", src.Path, t.At.Line, t.At.Column, line(problem, 1000))
				}
			}
			fmt.Fprintf(a.out, "%d tests, %d failed\n", len(table.Tests), failed)
			if failed > 0 {
				return exitCode(fault.Agent)
			}
			return nil
		},
	}
	addConfig(c, &path)
	return c
}
