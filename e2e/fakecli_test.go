package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/session"
)

// stageMain is where this test binary is something else for a while: started
// under the name claude it is a CLI that behaves as one of the plays below,
// under the name attack it is code of an agent that has the run's config.
func stageMain() {
	switch filepath.Base(os.Args[0]) {
	case "claude":
		fakeMain()
	case "attack":
		attackMain()
	default:
		return
	}
	os.Exit(0)
}

// stand is a link to this test binary under another name.
func stand(t testing.TB, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	return link
}

// bridge is an endpoint as an mcpServers document names it.
type bridge struct{ url, authorization string }

func readBridge(r io.Reader) (bridge, int) {
	var doc struct {
		MCPServers map[string]struct {
			URL     string
			Headers map[string]string
		} `json:"mcpServers"`
	}
	if err := json.NewDecoder(r).Decode(&doc); err != nil {
		return bridge{}, 0
	}
	for _, s := range doc.MCPServers {
		return bridge{s.URL, s.Headers["Authorization"]}, len(doc.MCPServers)
	}
	return bridge{}, 0
}

// post sends one message and returns the status and the answer.
func (b bridge) post(message string) (int, string) {
	req, err := http.NewRequest(http.MethodPost, b.url, strings.NewReader(message))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Authorization", b.authorization)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Close = true
	res, err := (&http.Client{Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

// said is what came of one call.
type said struct {
	Tool   string
	Status int
	Code   int    // of the JSON-RPC error, 0 for none
	Text   string // of the error or of the result
	Failed bool   // isError
}

// call sends a raw tools/call. The arguments fit every built-in tool.
func (b bridge) call(tool string) said {
	args := `{"query":"budget","text":"planted","id":1,"path":"victim.txt","content":"x","pattern":"x","old":"precious","new":"x","old_text":"precious","new_text":"x","cmd":"touch ran"}`
	name, _ := json.Marshal(tool)
	status, body := b.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":` + string(name) + `,"arguments":` + args + `}}`)
	s := said{Tool: tool, Status: status}
	var answer struct {
		Error struct {
			Code    int
			Message string
		}
		Result struct {
			IsError bool
			Content []struct{ Text string }
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		s.Text = body
		return s
	}
	s.Code, s.Text, s.Failed = answer.Error.Code, answer.Error.Message, answer.Result.IsError
	for _, c := range answer.Result.Content {
		s.Text += c.Text
	}
	return s
}

// everyName are the names an agent could try: all tools of the product, names
// of no tool, and other spellings.
func everyName() []string {
	names := session.Builtins()
	for _, n := range []string{"memory_search", "execute_command"} {
		names = append(names, "mcp__drawbridge__"+n, strings.ToUpper(n), n+" ", n+"\x00")
	}
	return append(names, "no_such_tool", "__proto__", "*", "")
}

// attackMain is the code of an agent that has found the run's config, in the
// file it is given: it calls everything and prints what came of it.
func attackMain() {
	f, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	b, _ := readBridge(f)
	out := json.NewEncoder(os.Stdout)
	_, _ = b.post(`{"jsonrpc":"2.0","id":0,"method":"tools/list"}`)
	for _, name := range everyName() {
		_ = out.Encode(b.call(name))
	}
}

// fake is a CLI that takes Claude Code's command line and config.
type fake struct {
	bridge
	servers int
	prompt  []byte
	arg     string // what the prompt says after the name of the play
	out     *bufio.Writer
}

func fakeMain() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("2.1.332 (Claude Code)")
		return
	}
	f := &fake{out: bufio.NewWriterSize(os.Stdout, 1<<20)}
	f.prompt, _ = io.ReadAll(os.Stdin)
	config := os.NewFile(3, "config")
	f.bridge, f.servers = readBridge(config)
	_ = config.Close()
	first, _, _ := strings.Cut(string(f.prompt), "\n")
	play, arg, _ := strings.Cut(first, " ")
	f.arg = arg
	do, ok := plays[play]
	if !ok {
		do = plays["whole"]
	}
	do(f)
	_ = f.out.Flush()
}

// up says what a CLI says that has listed its tools.
func (f *fake) up() {
	_, _ = f.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	f.init("connected", `["mcp__drawbridge__memory_search"]`)
}

func (f *fake) init(status, tools string) {
	f.print(`{"type":"system","subtype":"init","cwd":"/","session_id":"0","tools":` + tools + `,"mcp_servers":[{"name":"drawbridge","status":"` + status + `"}],"model":"fake","permissionMode":"bypassPermissions","claude_code_version":"2.1.332"}` + "\n")
}

func (f *fake) print(s string) {
	_, _ = f.out.WriteString(s)
	_ = f.out.Flush()
}

func (f *fake) text(s string) {
	b, _ := json.Marshal(s)
	f.print(`{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":` + string(b) + `}]}}` + "\n")
}

func (f *fake) result(s string) { f.print(resultLine(s) + "\n") }

func resultLine(s string) string {
	b, _ := json.Marshal(s)
	return `{"type":"result","subtype":"success","is_error":false,"num_turns":1,"result":` + string(b) + `,"usage":{"input_tokens":1,"output_tokens":1}}`
}

// long prints one line of n bytes that is a tool's result.
func (f *fake) long(n int) {
	const head, end = `{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"`, `"}]}}`
	_, _ = f.out.WriteString(head)
	block := bytes.Repeat([]byte("x"), 1<<16)
	for left := n - len(head) - len(end); left > 0; left -= len(block) {
		_, _ = f.out.Write(block[:min(left, len(block))])
	}
	f.print(end + "\n")
}

// shell starts a command that outlives this process, on its streams.
func (f *fake) shell(cmd string) {
	c := exec.Command("/bin/sh", "-c", cmd)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	_ = c.Run()
}

const forever = 10 * time.Minute

var plays = map[string]func(*fake){
	"answer": func(f *fake) { f.up(); f.result("ok") },
	"hang":   func(*fake) { time.Sleep(forever) },
	"stay":   func(f *fake) { f.up(); f.result("ok"); time.Sleep(forever) },
	"stay-child": func(f *fake) {
		f.up()
		f.shell("sleep 600 &")
		f.result("ok")
	},
	"silent": func(f *fake) { f.up(); f.text("working"); f.long(200); time.Sleep(forever) },
	"quit": func(f *fake) {
		f.up()
		f.text("working")
		f.long(200)
		fmt.Fprintln(os.Stderr, "the last words")
		code, err := strconv.Atoi(f.arg)
		if err != nil {
			self, _ := os.FindProcess(os.Getpid())
			_ = self.Kill()
			time.Sleep(forever)
		}
		_ = f.out.Flush()
		os.Exit(code)
	},
	"long": func(f *fake) {
		f.up()
		for _, n := range []int{70 << 10, 1 << 20, 20 << 20, 100 << 20, 300 << 20} {
			f.long(n)
		}
		f.text("after the long lines")
		f.result("ok")
	},
	"noise": func(f *fake) {
		f.print("Now using node v20\n\n")
		_, _ = f.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		f.init("connected", `["mcp__drawbridge__memory_search"]`)
		f.print(`{"type":"brand_new","x":1}` + "\r\n")
		f.print("\xff\xfe not text \x1b[2J\n42\nnull\n\"s\"\n[]\n{}\n{\"type\":\"resu\n")
		f.print(`[{"type":"brand_new"},{"type":"assistant","message":{"content":[{"type":"text","text":"in an array"}]}}]` + "\n")
		f.print(resultLine("no newline after this"))
	},
	"torn": func(f *fake) { f.up(); f.print(`{"type":"resu`) },
	"shell": func(f *fake) {
		f.up()
		f.shell(f.arg)
		f.result("ok")
	},
	"shell-stay": func(f *fake) {
		f.up()
		f.shell(f.arg)
		time.Sleep(forever)
	},
	"environment": func(f *fake) {
		f.up()
		var names []string
		for _, kv := range os.Environ() {
			name, _, _ := strings.Cut(kv, "=")
			names = append(names, name)
		}
		f.result(strings.Join(names, " "))
	},
	// whole tells what arrived: the digest of the prompt, the number of
	// servers, and what a parser of options such as commander takes for words.
	"whole": func(f *fake) {
		f.up()
		sum := sha256.Sum256(f.prompt)
		var words []string
		variadic := false
		for i := 1; i < len(os.Args); i++ {
			arg := os.Args[i]
			switch {
			case strings.HasPrefix(arg, "-"):
				name, _, inline := strings.Cut(arg, "=")
				variadic = !inline && (name == "--mcp-config" || name == "--allowedTools" || name == "--disallowedTools" || name == "--tools" || name == "--add-dir")
				if !inline && (name == "--output-format" || name == "--permission-mode" || name == "--setting-sources" || name == "--model") {
					i++
				}
			case !variadic:
				words = append(words, arg)
			}
		}
		f.result(fmt.Sprintf("%s %d %d words %q", hex.EncodeToString(sum[:]), len(f.prompt), f.servers, words))
	},
	"greedy": func(f *fake) {
		f.up()
		var all []string
		for _, tool := range strings.Fields(f.arg) {
			s := f.call(tool)
			all = append(all, fmt.Sprintf("%s %d", tool, s.Code))
		}
		f.result(strings.Join(all, ", "))
	},
	"not-connected": func(f *fake) { f.init(f.arg, `[]`); f.result("I had no tools") },
	"wrong-token": func(f *fake) {
		f.authorization = "Bearer " + strings.Repeat("0", 64)
		_, _ = f.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		f.init("failed", `[]`)
		f.result("I had no tools")
	},
	"ask": func(f *fake) { f.up(); f.call("memory_search"); time.Sleep(forever) },
}
