package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/bench"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

func (a *app) benchCommand() *cobra.Command {
	var (
		o      bench.Options
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure what a bridge costs on this machine",
		Long: `Time the start of a bridge, a handshake, calls that are allowed and refused, a wrong
token and the shutdown, beside a bare TCP echo and a bare net/http handler in the same
run. The bare handler is measured as two cases; where these differ by more than 3 %,
the machine was too busy, the run is void and the exit code is 1. State is kept in a
temporary directory.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.bench(c.Context(), o, asJSON) },
	}
	c.Flags().IntVar(&o.Rounds, "n", bench.DefaultRounds, fmt.Sprintf("how often each case is timed, %d to %d", bench.MinRounds, bench.MaxRounds))
	c.Flags().DurationVar(&o.Time, "time", bench.DefaultTime, "time after which no further round begins")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object; times are in microseconds")
	return c
}

func (a *app) bench(ctx context.Context, o bench.Options, asJSON bool) error {
	if o.Rounds == 0 { // which would be the default
		return fault.New(fault.Usage, fmt.Sprintf("measure %d to %d rounds", bench.MinRounds, bench.MaxRounds), "0 rounds")
	}
	dir, err := bench.TempDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o.Dir = dir + "/state"
	r, err := bench.Run(ctx, o)
	switch {
	case ctx.Err() != nil:
		return fault.New(fault.Interrupted, "", "interrupted")
	case err != nil:
		return err
	}
	if asJSON {
		enc := json.NewEncoder(a.out)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = r.WriteTable(a.out)
	}
	if err != nil {
		return fault.Wrap(err, fault.Usage, "", "write the table")
	}
	if r.Void {
		return fault.New(fault.Agent, "try again on a quiet machine", "the run is void: the same case measured twice differs by more than 3 %%")
	}
	return nil
}
