package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/drawbridge-mcp/drawbridge"
)

const (
	workspace = "big"
	notes     = 100_000
)

// queries find one note in a thousand, half of them, all of them, and none.
var queries = []string{"contract", "budget", "the", "what was decided about the budget of the contract", "contr*", "zzzz"}

// writeNotes writes notes for `memory import`: about 20 words each, drawn with
// a frequency of about 1/rank as in a natural text.
func writeNotes(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 20_000)
	for i := range words {
		var b strings.Builder
		for range 2 + r.IntN(3) {
			b.WriteByte("bcdfghjklmnprstvz"[r.IntN(17)])
			b.WriteByte("aeiou"[r.IntN(5)])
		}
		words[i] = b.String()
	}
	zipf := rand.NewZipf(r, 1.1, 1, uint64(len(words)-1))
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	for i := range notes {
		text := []string{"the"}
		for range 10 + r.IntN(20) {
			text = append(text, words[zipf.Uint64()])
		}
		if i%2 == 0 {
			text = append(text, "budget")
		}
		if i%1000 == 1 {
			text = append(text, "contract")
		}
		if err := enc.Encode(map[string]any{
			"id": fmt.Sprintf("n%06d", i), "text": strings.Join(text, " "), "time": time.Unix(int64(i), 0).UTC(),
		}); err != nil {
			return err
		}
	}
	return w.Flush()
}

// memory measures memory_search through a bridge, gate and record included, and
// then what a run that searches takes of memory.
func (l *list) memory(ctx context.Context, binary, dir string) error {
	state, file := filepath.Join(dir, "memory"), filepath.Join(dir, "notes.jsonl")
	if err := writeNotes(file); err != nil {
		return err
	}
	if err := command(ctx, binary, "--state-dir", state, "memory", "import", "--workspace", workspace, file); err != nil {
		return err
	}
	b, err := drawbridge.Start(ctx, drawbridge.Config{
		Binding: drawbridge.Binding{Workspace: workspace}, Builtins: []string{"memory_search"}, Allow: []string{"memory_search"}, StateDir: state,
	})
	if err != nil {
		return err
	}
	worst, slow := time.Duration(0), ""
	for _, q := range queries {
		args, err := json.Marshal(map[string]any{"query": q, "limit": 10})
		if err != nil {
			return err
		}
		took := make([]time.Duration, 0, 200)
		for i := range 210 {
			began := time.Now()
			res, err := b.Call(ctx, "memory_search", args)
			d := time.Since(began)
			if err != nil || res.IsError {
				_ = b.Close()
				return fmt.Errorf("memory_search %q: %s %w", q, res.Text, err)
			}
			if i >= 10 { // warm-up
				took = append(took, d)
			}
		}
		slices.Sort(took)
		if p50 := took[len(took)/2]; p50 > worst {
			worst, slow = p50, q
		}
	}
	if err := b.Close(); err != nil {
		return err
	}
	l.most("memory_search over 100,000 notes, p50 of the slowest query", ms(worst), 5, "ms", fmt.Sprintf("%q", slow))
	return l.resident(ctx, binary, dir, state)
}

// resident starts a scripted run that searches, and reads the high-water mark
// of the drawbridge that supervises it.
func (l *list) resident(ctx context.Context, binary, dir, state string) error {
	const what = "a run's drawbridge, resident at most"
	folder := filepath.Join(dir, "folder")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	var script strings.Builder
	for range 20 {
		for _, q := range queries {
			fmt.Fprintf(&script, "call memory_search {\"query\":%q}\n", q)
		}
	}
	script.WriteString("sleep 500ms\nsay done\n") // so that the last reading sees all of it
	cmd := exec.CommandContext(ctx, binary, "--state-dir", state, "run", "--agent", "scripted", "--workspace", workspace,
		"--folder", folder, "--allow", "memory_search", "--prompt-file", "-")
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(script.String()), &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	high, tick := 0, time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			switch {
			case err != nil:
				return fmt.Errorf("the scripted run: %w\n%s", err, out.Bytes())
			case high == 0:
				l.unmeasured(what, 32, "MiB", "this system has no VmHWM in /proc")
			default:
				l.most(what, float64(high)/1024, 32, "MiB", fmt.Sprintf("VmHWM over %d searches", 20*len(queries)))
			}
			return nil
		case <-tick.C:
			high = max(high, highWater(cmd.Process.Pid))
		}
	}
}

// highWater is the VmHWM of a process in KiB (proc_pid_status(5)), 0 where that
// can't be read.
func highWater(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		kib := 0
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib
		}
	}
	return 0
}

// command measures the binary itself.
func (l *list) command(ctx context.Context, binary string) error {
	info, err := os.Stat(binary)
	if err != nil {
		return err
	}
	l.most("size of the binary", float64(info.Size())/1e6, 40, "MB", filepath.Base(binary))
	var took []time.Duration
	for range 41 {
		began := time.Now()
		if err := command(ctx, binary, "version"); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	l.most("drawbridge version, p50", ms(took[len(took)/2]), 30, "ms", fmt.Sprintf("fastest %.1f ms, n %d", ms(took[0]), len(took)))
	return nil
}

func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return nil
}
