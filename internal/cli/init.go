package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/config"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

func (a *app) initCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "init",
		Short: "Write a policy file to start from, for the agent CLIs found here",
		Long: `Write a commented policy file to your config directory, or to --config. A file that
is there is never changed.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if path == "" {
				if path = config.Default(os.Getenv); path == "" {
					return fault.New(fault.Usage, "set HOME, or give --config", "no home directory to write to")
				}
			}
			var found []string
			for _, name := range agent.Names() {
				cli, err := agent.ByName(name)
				if err != nil {
					return err
				}
				if _, err := cli.Find("", os.Environ()); err == nil && name != "scripted" {
					found = append(found, name)
				}
			}
			if err := writeNew(path, starter(found)); err != nil {
				return err
			}
			fmt.Fprintf(a.out, "wrote %s\n", visible(path))
			fmt.Fprintf(a.err, "drawbridge: hint: see what it means with: drawbridge policy explain --agent researcher\n")
			return nil
		},
	}
	c.Flags().StringVar(&path, "config", "", "where to write (default $XDG_CONFIG_HOME/drawbridge/drawbridge.yaml)")
	return c
}

func writeNew(path string, data []byte) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if errors.Is(err, fs.ErrExist) {
		return fault.New(fault.Usage, "change it by hand, or write another one with --config", "%s is there already, and is not changed", path)
	}
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fault.Wrap(err, fault.Usage, "", "write the policy file")
	}
	return nil
}

// starter is the file init writes. found are the agent CLIs that are installed;
// without one it names the scripted agent, so that it can be tried.
func starter(found []string) []byte {
	cli, note := "scripted", "no other agent CLI was found when this file was written; drawbridge doctor tells how to get one"
	if len(found) > 0 {
		cli, note = found[0], "found here: "+strings.Join(found, ", ")
	}
	return []byte(strings.NewReplacer("CLI_NAME", cli, "CLI_NOTE", note).Replace(starterText))
}

const starterText = `# Drawbridge policy: what each agent may call. Default is deny.
# Check it with "drawbridge policy check", read it with "drawbridge policy explain".
version: 1

# The middle of the tool name a model sees: mcp__drawbridge__memory_search.
# server: drawbridge

agents:
  # drawbridge run --agent researcher -- "What do we know about the budget?"
  researcher:
    cli: CLI_NAME # CLI_NOTE
    tools:
      # Names, or patterns with *. What is not listed can't be called.
      allow: [memory_search, read_file, list_files, search_files]
      # deny beats allow, in whatever order.
      # deny: [delete_file]

    # A rule makes calls stricter: deny, or ask a person.
    rules:
      - tools: ["memory_*"]
        when: binding.channel == "public"
        then: deny
        reason: notes are not for public channels
      # Each of these calls waits until you answer, with drawbridge approve or deny.
      # - tools: ["write_*", "edit_*", "delete_*"]
      #   when: '!path_in(args.path, "drafts")'
      #   then: ask

    # Until you have approved a plan only tools that read run; also: --plan.
    # mode: plan

    # A limit refuses further calls; wall ends the run.
    limits: { calls: 200, wall: 30m, output: 64KiB }

# How long a question counts, and a program that gets it as JSON on standard input.
# approvals:
#   expiry: 10m
#   notify: [notify-send, "drawbridge: an agent asks"]

# Workspaces and their channels can only take away. Once one is listed, a run has
# to name one that is; "*" is every other name.
# workspaces:
#   ws-personal:
#     folder: ~/work
#     channels:
#       ch-public: { tools: { deny: ["memory_*"] } }
`
