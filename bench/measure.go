package bench

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// probe times one thing once. What has to be prepared or cleaned up is done
// outside of the time it returns.
type probe struct {
	name       string
	connection string // Fresh, KeepAlive or ""
	floor      string // name of the probe it is compared with, "" for none
	once       func() (time.Duration, error)
}

// interleave times every probe in turn, block times a turn, until there are
// rounds durations of each, and returns them by probe. The first warmup of each
// are thrown away. Each turn of all has an order of its own, so that no probe
// always meets the caches and the connection that the same other one has just
// left behind. It stops early, without an error, when deadline has passed; each
// probe then has the same number of durations.
func interleave(ctx context.Context, probes []probe, block, warmup, rounds int, deadline time.Time) ([][]time.Duration, error) {
	took := make([][]time.Duration, len(probes))
	order := make([]int, len(probes))
	for i := range probes {
		took[i] = make([]time.Duration, 0, rounds)
		order[i] = i
	}
	shuffle := rand.New(rand.NewPCG(1, 2)) // the same in every run
	for first := -warmup; first < rounds; first += block {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !time.Now().Before(deadline) {
			break
		}
		shuffle.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, i := range order {
			for round := first; round < min(first+block, rounds); round++ {
				d, err := probes[i].once()
				if err != nil {
					return nil, failed(err, "%s %s", probes[i].name, probes[i].connection)
				}
				if round >= 0 {
					took[i] = append(took[i], d)
				}
			}
		}
	}
	return took, nil
}

// quantile is the value below which a share q of the durations lies (nearest
// rank), in microseconds; 0 of none.
func quantile(took []time.Duration, q float64) float64 {
	if len(took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(took))
	d := sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
	return float64(d.Nanoseconds()) / 1000
}
