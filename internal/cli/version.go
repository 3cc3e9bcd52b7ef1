package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/version"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintln(a.out, version.Line())
			return nil
		},
	}
}
