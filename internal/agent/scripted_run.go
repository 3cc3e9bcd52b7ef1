package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// ScriptedMain is the scripted agent, if this process was started as it; it
// then does not return. Otherwise it does nothing. A program calls it before
// anything else in main.
//
// The agent reads a script from standard input, one command a line. A line that
// is no command is said as text, so a prompt in plain language plays as well.
//
//	# TEXT             a comment
//	say TEXT           the model says TEXT
//	call TOOL [JSON]   call a tool; JSON is an object
//	list               list the tools again
//	raw JSON           POST this very message
//	initialize         do the handshake again
//	no-handshake       as first command: leave the handshake out
//	modern             speak the 2026-07-28 revision from here on
//	legacy             speak 2025-11-25 again
//	token VALUE        use another token from here on; - is the run's own
//	exec COMMAND       run a program through /bin/sh, as an agent's own shell
//	                   would; only with own tools on. It finds the endpoint in
//	                   SCRIPTED_URL and SCRIPTED_TOKEN
//	env NAME           show a variable of the agent's environment
//	print TEXT         a line on standard output that is no event
//	warn TEXT          a line on standard error
//	sleep DURATION     wait, for example 200ms
//	ignore             ignore TERM, INT and HUP from here on
//	cost DOLLARS       what the run has cost so far, to be reported at its end
//	finish             report success now and play on
//	fail TEXT          report failure and exit with 1
//	exit CODE          exit now, without a report
//
// The handshake (initialize, notifications/initialized, tools/list; in the
// modern revision server/discover and tools/list) comes by itself before the
// first command other than no-handshake, modern, legacy and token. A failed one
// is reported and does not stop the script, as real CLIs go on without tools.
func ScriptedMain() {
	if len(os.Args) == 0 || os.Args[0] != scriptedName {
		return
	}
	os.Exit(playScript(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// maxScript is how long a script may be; a prompt of 3 MB must get through.
const maxScript = 16 << 20

// player plays one script.
type player struct {
	out, stderr io.Writer
	client      *scriptedClient
	ownTools    bool
	started     bool
	said        string
	turns       int
	cost        float64
	finished    bool
}

func playScript(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &player{out: stdout, stderr: stderr}
	var path string
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--mcp-config" && i+1 < len(args):
			i++
			path = args[i]
		case args[i] == "--own-tools":
			p.ownTools = true
		default:
			fmt.Fprintf(stderr, "unknown argument %q\n", args[i])
			return 2
		}
	}
	config, err := os.ReadFile(path)
	if err == nil {
		p.client, err = newScriptedClient(config)
	}
	if err != nil {
		fmt.Fprintln(stderr, "the MCP configuration:", err)
		return 2
	}
	defer p.client.close()
	script, err := io.ReadAll(io.LimitReader(stdin, maxScript))
	if err != nil {
		fmt.Fprintln(stderr, "reading the script:", err)
		return 2
	}
	for line := range strings.Lines(string(script)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if code, stop := p.play(line); stop {
			return code
		}
	}
	p.begin(true)
	p.finish(true, p.said)
	return 0
}

// play does one line. stop ends the script with code.
func (p *player) play(line string) (code int, stop bool) {
	word, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch {
	case word == "no-handshake" && rest == "":
		p.begin(false)
		return
	case (word == "modern" || word == "legacy") && rest == "":
		p.client.modern = word == "modern"
		return
	case word == "token" && rest != "" && !strings.Contains(rest, " "):
		p.client.useToken(rest)
		return
	}
	p.begin(true)
	name, args, _ := strings.Cut(rest, " ")
	args = strings.TrimSpace(args)
	switch {
	case word == "say" && rest != "":
		p.say(rest)
	case word == "call" && name != "" && (args == "" || isObject(args)):
		p.tool(p.client.spell(name), args, func() (string, bool) { return p.client.call(name, args) })
	case word == "list" && rest == "":
		p.tool("list", "", func() (string, bool) {
			tools, err := p.client.list()
			if err != nil {
				return err.Error(), true
			}
			return strings.Join(tools, "\n"), false
		})
	case word == "raw" && rest != "" && strings.ContainsRune(`{["0123456789-tfn`, rune(rest[0])) && looksJSON(rest):
		p.tool("raw", "", func() (string, bool) { return p.client.raw(rest) })
	case word == "initialize" && rest == "":
		p.tool("initialize", "", func() (string, bool) {
			if err := p.client.handshake(); err != nil {
				return err.Error(), true
			}
			return "ok", false
		})
	case word == "exec" && rest != "":
		p.tool(scriptedExec, "", func() (string, bool) { return p.exec(rest) })
	case word == "env" && rest != "" && !strings.Contains(rest, " "):
		p.tool("env", "", func() (string, bool) {
			if v, ok := os.LookupEnv(rest); ok {
				return rest + "=" + v, false
			}
			return rest + " is not set", false
		})
	case word == "print":
		fmt.Fprintln(p.out, rest)
	case word == "warn" && rest != "":
		fmt.Fprintln(p.stderr, rest)
	case word == "ignore" && rest == "":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	case word == "finish" && rest == "":
		p.finish(true, p.said)
	case word == "fail" && rest != "":
		p.finish(false, rest)
		return 1, true
	default:
		if d, err := time.ParseDuration(rest); word == "sleep" && err == nil {
			time.Sleep(d)
			return
		}
		if usd, err := strconv.ParseFloat(rest, 64); word == "cost" && err == nil && usd >= 0 && usd <= math.MaxFloat64 {
			p.cost = usd
			return
		}
		if n, err := strconv.ParseUint(rest, 10, 8); word == "exit" && err == nil {
			return int(n), true
		}
		p.say(line)
	}
	return
}

func isObject(s string) bool { return s[0] == '{' && json.Valid([]byte(s)) }

// looksJSON tells a message, broken ones too, from a line of plain language.
func looksJSON(s string) bool { return s[0] == '{' || s[0] == '[' || json.Valid([]byte(s)) }

// begin reports the start, after the handshake where there is to be one.
func (p *player) begin(handshake bool) {
	if p.started {
		return
	}
	p.started = true
	e := event.Event{Kind: event.Started, Status: "pending"}
	if handshake {
		e.Status = "connected"
		if err := p.client.handshake(); err != nil {
			e.Status, e.Text = "failed", err.Error()
		}
		for _, t := range p.client.tools {
			e.Tools = append(e.Tools, p.client.spell(t))
		}
	}
	if p.ownTools {
		e.Tools = append(e.Tools, scriptedExec)
	}
	p.emit(scriptedLine{Event: e, Server: p.client.server})
}

func (p *player) say(text string) {
	p.said = text
	p.emit(scriptedLine{Event: event.Event{Kind: event.Text, Text: text}})
}

func (p *player) tool(name, args string, run func() (string, bool)) {
	p.turns++
	id := fmt.Sprintf("call_%d", p.turns)
	e := event.Event{Kind: event.ToolCall, Tool: name, CallID: id}
	if args != "" {
		e.Arguments = json.RawMessage(args)
	}
	p.emit(scriptedLine{Event: e})
	text, failed := run()
	p.emit(scriptedLine{Event: event.Event{Kind: event.ToolResult, Tool: name, CallID: id, Result: text, IsError: failed}})
}

// finish reports the end, once. Tokens are none because no model was asked.
func (p *player) finish(ok bool, text string) {
	if p.finished {
		return
	}
	p.finished = true
	p.emit(scriptedLine{Event: event.Event{Kind: event.Finished, OK: &ok, Text: text, Turns: p.turns, Usage: &event.Usage{}, CostUSD: &p.cost}})
}

func (p *player) emit(l scriptedLine) {
	l.Time = time.Now().UTC()
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(l); err != nil {
		fmt.Fprintln(p.stderr, "an event that can't be written:", err)
		return
	}
	if _, err := io.WriteString(p.out, b.String()); err != nil {
		os.Exit(1)
	}
}

func (p *player) exec(command string) (string, bool) {
	if !p.ownTools {
		return "own tools are off", true
	}
	cmd := exec.CommandContext(context.Background(), "/bin/sh", "-c", command)
	cmd.Env = append(os.Environ(), "SCRIPTED_URL="+p.client.url, "SCRIPTED_TOKEN="+p.client.token)
	// What the command leaves in the background may keep the pipe.
	cmd.WaitDelay = 200 * time.Millisecond
	out := &call.HeadTail{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	text, _, _ := out.Text()
	if err != nil {
		return strings.TrimSpace(text + "\n" + err.Error()), true
	}
	return strings.TrimSpace(text), false
}

// oneServer reads the mcpServers document of a configuration, which must name
// exactly one.
func oneServer(config []byte) (name string, entry scriptedEntry, err error) {
	var in struct {
		Servers map[string]scriptedEntry `json:"mcpServers"`
	}
	if err := json.Unmarshal(config, &in); err != nil {
		return "", entry, fmt.Errorf("not an mcpServers document: %w", err)
	}
	if len(in.Servers) != 1 {
		return "", entry, fmt.Errorf("it names %d servers, not one", len(in.Servers))
	}
	for name, entry = range in.Servers {
	}
	return name, entry, nil
}

type scriptedEntry struct {
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Timeout int64             `json:"timeout"` // ms
}
