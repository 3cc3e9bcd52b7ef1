package agent

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// The revisions the scripted agent speaks.
const (
	scriptedLegacy = "2025-11-25"
	scriptedModern = "2026-07-28"
)

const (
	maxAnswer = 64 << 20
	maxPages  = 100
)

// scriptedClient is an MCP client over streamable HTTP, independent of the
// endpoint's code so that one mistake can't hide in both.
type scriptedClient struct {
	server, url string
	own, token  string
	modern      bool
	ready       bool // a legacy handshake was done
	version     string
	tools       []string
	id          int
	http        *http.Client
}

func newScriptedClient(config []byte) (*scriptedClient, error) {
	name, entry, err := oneServer(config)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(entry.URL)
	if err != nil {
		return nil, errors.New("the url is not one")
	}
	// The token goes where the URL says, in the clear.
	if ip := net.ParseIP(u.Hostname()); u.Scheme != "http" || ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("host %q is not a loopback address", clip(u.Host, 64))
	}
	token, ok := strings.CutPrefix(entry.Headers["Authorization"], "Bearer ")
	if !ok {
		return nil, errors.New("the Authorization header holds no bearer token")
	}
	return &scriptedClient{
		server: name, url: entry.URL, own: token, token: token,
		http: &http.Client{
			Timeout:       time.Duration(entry.Timeout) * time.Millisecond,
			Transport:     &http.Transport{Proxy: nil, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

func (c *scriptedClient) close() { c.http.CloseIdleConnections() }

func (c *scriptedClient) spell(tool string) string { return scripted{}.ToolName(c.server, tool) }

func (c *scriptedClient) useToken(v string) {
	if v == "-" {
		v = c.own
	}
	c.token = v
}

// handshake does what a client does before it knows its tools.
func (c *scriptedClient) handshake() error {
	c.tools, c.ready, c.version = nil, false, ""
	if c.modern {
		if _, err := c.request("server/discover", "", map[string]any{}); err != nil {
			return err
		}
	} else {
		result, err := c.request("initialize", "", map[string]any{
			"protocolVersion": scriptedLegacy, "capabilities": struct{}{}, "clientInfo": scriptedInfo,
		})
		if err != nil {
			return err
		}
		var in struct {
			ProtocolVersion string `json:"protocolVersion"`
		}
		if json.Unmarshal(result, &in) != nil || in.ProtocolVersion == "" {
			return errors.New("the answer to initialize names no version")
		}
		c.ready, c.version = true, in.ProtocolVersion
		status, body, err := c.post([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), "notifications/initialized", "")
		if err != nil {
			return err
		}
		if status != http.StatusAccepted || len(body) > 0 {
			return fmt.Errorf("a notification was answered with http %d and %d bytes", status, len(body))
		}
	}
	tools, err := c.list()
	c.tools = tools
	return err
}

var scriptedInfo = map[string]string{"name": scriptedName, "version": "1"}

// list is all pages of tools/list.
func (c *scriptedClient) list() ([]string, error) {
	var names []string
	cursor := ""
	for range maxPages {
		params := map[string]any{}
		if cursor != "" {
			params["cursor"] = cursor
		}
		result, err := c.request("tools/list", "", params)
		if err != nil {
			return names, err
		}
		var page struct {
			Tools []struct {
				Name string `json:"name"`
			} `json:"tools"`
			NextCursor string `json:"nextCursor"`
		}
		if err := json.Unmarshal(result, &page); err != nil {
			return names, fmt.Errorf("the list of tools is not one: %w", err)
		}
		if page.Tools == nil {
			return names, errors.New("the list of tools has no array")
		}
		for _, t := range page.Tools {
			names = append(names, t.Name)
		}
		if page.NextCursor == "" {
			return names, nil
		}
		cursor = page.NextCursor
	}
	return names, errors.New("the list of tools does not end")
}

// call is one tools/call: its text, and whether it failed.
func (c *scriptedClient) call(tool, args string) (string, bool) {
	params := map[string]any{"name": tool}
	if args != "" {
		params["arguments"] = json.RawMessage(args)
	}
	result, err := c.request("tools/call", tool, params)
	if err != nil {
		return err.Error(), true
	}
	var in struct {
		Content json.RawMessage `json:"content"`
		IsError bool            `json:"isError"`
	}
	if err := json.Unmarshal(result, &in); err != nil {
		return "the result is not one: " + err.Error(), true
	}
	return blockText(in.Content), in.IsError
}

// raw posts body as it is and shows the whole answer.
func (c *scriptedClient) raw(body string) (string, bool) {
	var in struct {
		Method string `json:"method"`
		Params struct {
			Name string `json:"name"`
		} `json:"params"`
	}
	json.Unmarshal([]byte(body), &in)
	status, answer, err := c.post([]byte(body), in.Method, in.Params.Name)
	if err != nil {
		return err.Error(), true
	}
	return strings.TrimSpace(fmt.Sprintf("http %d %s", status, clean(string(answer)))), status >= 400
}

// request sends one request and returns its result. The error reads as a
// person would report it: "error CODE: MESSAGE", "http STATUS", or both.
func (c *scriptedClient) request(method, name string, params map[string]any) (json.RawMessage, error) {
	c.id++
	if c.modern {
		params["_meta"] = map[string]any{
			"io.modelcontextprotocol/protocolVersion":    scriptedModern,
			"io.modelcontextprotocol/clientInfo":         scriptedInfo,
			"io.modelcontextprotocol/clientCapabilities": struct{}{},
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]any{"jsonrpc": "2.0", "id": c.id, "method": method, "params": params}); err != nil {
		return nil, err
	}
	status, body, err := c.post(bytes.TrimSpace(b.Bytes()), method, name)
	if err != nil {
		return nil, err
	}
	var in struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Code    json.Number `json:"code"`
			Message string      `json:"message"`
		} `json:"error"`
	}
	var prefix string
	if status != http.StatusOK {
		prefix = fmt.Sprintf("http %d", status)
	}
	switch err := json.Unmarshal(body, &in); {
	case err == nil && in.Error != nil:
		if prefix != "" {
			prefix += ": "
		}
		return nil, fmt.Errorf("%serror %s: %s", prefix, in.Error.Code, clip(in.Error.Message, call.DefaultOutput))
	case prefix != "":
		return nil, errors.New(prefix)
	case err != nil || in.Result == nil:
		return nil, errors.New("the answer is not a JSON-RPC response")
	case string(in.ID) != fmt.Sprint(c.id):
		return nil, fmt.Errorf("the answer is to id %s, not %d", clip(string(in.ID), 64), c.id)
	}
	return in.Result, nil
}

// post sends one message and returns the answer's message, which may be the
// whole body or the last one of an event stream.
func (c *scriptedClient) post(body []byte, method, name string) (status int, answer []byte, err error) {
	req, err := http.NewRequest(http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	switch {
	case c.modern:
		req.Header.Set("MCP-Protocol-Version", scriptedModern)
		if method != "" {
			req.Header.Set("Mcp-Method", method)
		}
		if name != "" {
			req.Header.Set("Mcp-Name", headerValue(name))
		}
	case c.ready:
		req.Header.Set("MCP-Protocol-Version", c.version)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, nil, connectError(err)
	}
	defer res.Body.Close()
	r := io.LimitReader(res.Body, maxAnswer)
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		answer, err = lastMessage(r)
	} else {
		answer, err = io.ReadAll(r)
	}
	if err != nil {
		return 0, nil, connectError(err)
	}
	return res.StatusCode, answer, nil
}

// headerValue is name as the modern revision has it in a header: in base64
// where it is not plain printable ASCII.
func headerValue(name string) string {
	plain := strings.TrimSpace(name) == name && !strings.HasPrefix(name, "=?base64?")
	for i := range len(name) {
		plain = plain && name[i] >= 0x20 && name[i] <= 0x7e
	}
	if plain {
		return name
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(name)) + "?="
}

// connectError is err without the URL and the addresses in it.
func connectError(err error) error {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("connection refused")
	case errors.As(err, &timeout) && timeout.Timeout():
		return errors.New("no answer in time")
	}
	return errors.New("the connection was lost")
}

// lastMessage is the response in an event stream: the last message that is no
// notification. Events before it, such as progress, are passed over.
func lastMessage(r io.Reader) ([]byte, error) {
	var message, data []byte
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		line = bytes.TrimRight(line, "\r\n")
		if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(rest, []byte(" "))...)
		}
		if (len(line) == 0 || err != nil) && data != nil {
			var m struct {
				Method *string `json:"method"`
			}
			if json.Unmarshal(data, &m) == nil && m.Method == nil {
				message = data
			}
			data = nil
		}
		if err == io.EOF {
			return message, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
