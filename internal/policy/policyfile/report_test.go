package policyfile

import (
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// The names of refused tools are a client's own words: they end no comment of
// the suggested file, and nothing in them steers who reads it.
func TestSuggestTamesNames(t *testing.T) {
	s := policy.Suggestion{Allow: []string{"read_file"}, Refused: map[string]int{
		"a\nagents: { x: { tools: { allow: ['*'] } } }": 1, "b\u202eelif": 2, "c\x1b[2J\u0085\u2028d": 3, "e\xff\u200b\ufeff": 4,
	}}
	out, _ := Suggest(nil, audit.Run{Agent: "claude"}, s, options())
	text := string(out)
	for _, bad := range []string{"\nagents: { x", "\u202e", "\x1b", "\u0085", "\u2028", "\u200b", "\ufeff", "\xff"} {
		if strings.Contains(text, bad) {
			t.Errorf("%q is in %q", bad, text)
		}
	}
	if f, err := parse(text); err != nil || len(f.Agents) != 1 {
		t.Errorf("%v\n%s", err, text)
	}
}
