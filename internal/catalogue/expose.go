package catalogue

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// maxToolName is how long a tool's own name may be; the MCP specification
// (2025-11-25, server/tools) asks for 1 to 128 characters.
const maxToolName = 128

// aliasHash is how many hex digits of a name's hash its alias carries.
const aliasHash = 12

// Room is how many characters a tool's exposed name may have beside server, so
// that mcp__server__name fits MaxName.
func Room(server string) int { return MaxName - len("mcp__") - len(server) - len("__") }

// Expose says how a model is told each of names: as it is where the model APIs
// take it (A-Z a-z 0-9 _ -, and no longer than fits beside server), else by an
// alias that is what they take of it and a part of its hash. An alias depends on
// nothing but server and the name, unless somebody has taken it: then it is made
// anew, so that no two names share one and a name that needs no alias keeps its
// own. The order of names changes nothing.
func Expose(server string, names []string) map[string]string {
	room := Room(server)
	out := make(map[string]string, len(names))
	taken := make(map[string]bool, len(names))
	var odd []string
	for _, name := range names {
		if fits(name, room) {
			out[name], taken[name] = name, true
		} else {
			odd = append(odd, name)
		}
	}
	slices.Sort(odd)
	for _, name := range slices.Compact(odd) {
		for i := 0; ; i++ {
			if a := alias(name, room, i); !taken[a] {
				out[name], taken[a] = a, true
				break
			}
		}
	}
	return out
}

func fits(name string, room int) bool {
	return len(name) <= room && toolName().MatchString(name)
}

func alias(name string, room, try int) string {
	key := name
	if try > 0 {
		key = fmt.Sprintf("%s\x00%d", name, try)
	}
	sum := sha256.Sum256([]byte(key))
	hash := hex.EncodeToString(sum[:])[:aliasHash]
	readable := strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-') {
			return r
		}
		return '_'
	}, name)
	return readable[:min(len(readable), room-1-aliasHash)] + "_" + hash
}

// checkName reports whether a tool may be called so: anything a person can read
// and a pattern can tell from an upstream's tool.
func checkName(name string) bool {
	return name != "" && len(name) <= maxToolName && utf8.ValidString(name) && name == strings.TrimSpace(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == '*' || !unicode.IsPrint(r) }) && !call.Invisible(name)
}
