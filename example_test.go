package drawbridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/drawbridge-mcp/drawbridge"
)

// An app lowers a bridge over its own state. Its client gets MCPConfig; here
// the app makes two calls itself, through the same gate.
func Example() {
	var mu sync.Mutex
	stock := map[string]int{"tea": 3}
	count := drawbridge.Tool{
		Name:        "count",
		Description: "How many of an article are in stock.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"article":{"type":"string"}},"required":["article"]}`),
		Effects:     drawbridge.Read,
		Run: func(_ context.Context, b drawbridge.Binding, args json.RawMessage) (drawbridge.ToolResult, error) {
			var in struct{ Article string }
			if err := json.Unmarshal(args, &in); err != nil {
				return drawbridge.ToolResult{}, err
			}
			mu.Lock()
			defer mu.Unlock()
			return drawbridge.ToolResult{Text: fmt.Sprintf("%d of %s, for %s", stock[in.Article], in.Article, b.User)}, nil
		},
	}
	order := drawbridge.Tool{Name: "order", Effects: drawbridge.Destructive, Run: count.Run}

	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	b, err := drawbridge.Start(context.Background(), drawbridge.Config{
		Binding:  drawbridge.Binding{Workspace: "shop", User: "ada"},
		Server:   "shop",
		Tools:    []drawbridge.Tool{count, order},
		Allow:    []string{"count"},
		StateDir: filepath.Join(dir, "state"),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()

	config := strings.NewReplacer(b.URL(), "URL", b.Token(), "TOKEN").Replace(string(b.MCPConfig()))
	fmt.Println(config)
	res, err := b.Call(context.Background(), "count", json.RawMessage(`{"article":"tea","user":"mallory"}`))
	fmt.Println(res.Text, err)
	res, err = b.Call(context.Background(), "count", nil)
	fmt.Println(res.IsError, err)
	_, err = b.Call(context.Background(), "order", nil)
	fmt.Println(errors.Is(err, drawbridge.ErrNotAvailable))
	// Output:
	// {"mcpServers":{"shop":{"type":"http","url":"URL","headers":{"Authorization":"Bearer TOKEN"},"timeout":120000}}}
	// 3 of tea, for ada <nil>
	// true <nil>
	// true
}

// A person is asked before a tool runs, in the embedder's own window.
func ExampleConfig_approve() {
	dir, _ := os.MkdirTemp("", "example-*")
	defer os.RemoveAll(dir)
	b, err := drawbridge.Start(context.Background(), drawbridge.Config{
		StateDir: dir,
		Tools: []drawbridge.Tool{{
			Name: "open_door", Description: "Open a door.", Effects: drawbridge.Destructive,
			Run: func(_ context.Context, _ drawbridge.Binding, args json.RawMessage) (drawbridge.ToolResult, error) {
				return drawbridge.ToolResult{Text: "open"}, nil
			},
		}},
		Allow: []string{"open_door"},
		Ask:   []string{"open_door"},
		Approve: func(_ context.Context, q drawbridge.Question) drawbridge.Answer {
			fmt.Println("may it?", q.Tool, q.Arguments)
			return drawbridge.Answer{Yes: q.Arguments == `{"door": "garden"}`, Reason: "the garden only"}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	for _, door := range []string{"garden", "safe"} {
		res, _ := b.Call(context.Background(), "open_door", json.RawMessage(`{"door":"`+door+`"}`))
		fmt.Println(res.Text)
	}
	// Output:
	// may it? open_door {"door": "garden"}
	// open
	// may it? open_door {"door": "safe"}
	// refused: a person was asked about this call and said no: the garden only
}
