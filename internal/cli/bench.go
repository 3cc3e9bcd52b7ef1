package cli

import (
	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

func (a *app) benchCommand() *cobra.Command {
	return &cobra.Command{Use: "bench", RunE: func(*cobra.Command, []string) error { return fault.New(fault.Usage, "", "not built yet") }}
}
