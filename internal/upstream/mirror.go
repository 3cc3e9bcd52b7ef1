package upstream

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// mirrored is an argument that the modern era has a client repeat in a header,
// because its schema has "x-mcp-header" (2026-07-28, basic/transports, "Custom
// Headers from Tool Parameters").
type mirrored struct {
	path   []string
	header string
}

// maxMirrored keeps a schema from making requests of any size.
const maxMirrored = 64

// readMirrored finds the arguments to mirror. bad says what is wrong with them:
// no request to such a tool is one that its server may accept.
func readMirrored(schema []byte) (found []mirrored, bad string) {
	seen := map[string]bool{}
	var walk func(schema []byte, path []string)
	walk = func(schema []byte, path []string) {
		properties := member(schema, "properties")
		members, _ := call.Members(properties)
		for _, p := range members {
			at := append(append([]string(nil), path...), p.Name)
			if h := member(p.Value, "x-mcp-header"); h != nil {
				name := text(h)
				switch kind := text(member(p.Value, "type")); {
				case kind != "string" && kind != "integer" && kind != "boolean":
					bad = "x-mcp-header stands at an argument that is no string, integer or boolean"
				case !token(name) || seen[strings.ToLower(name)] || len(found) == maxMirrored:
					bad = "an x-mcp-header is no name of a header, or stands twice"
				}
				seen[strings.ToLower(name)] = true
				found = append(found, mirrored{at, name})
			}
			walk(p.Value, at)
		}
	}
	walk(schema, nil)
	if bad != "" {
		return nil, bad
	}
	return found, ""
}

func member(object []byte, name string) (value []byte) {
	members, _ := call.Members(object)
	for _, m := range members {
		if m.Name == name {
			value = m.Value
		}
	}
	return value
}

// token reports whether s is a token of HTTP (RFC 9110 section 5.6.2).
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// mirror makes the headers for args.
func mirror(all []mirrored, args []byte) map[string]string {
	headers := map[string]string{}
	for _, m := range all {
		v := args
		for _, name := range m.path {
			v = member(v, name)
		}
		if len(v) == 0 {
			continue
		}
		switch v[0] {
		case '"':
			headers["Mcp-Param-"+m.header] = headerValue(text(v))
		case 't', 'f':
			headers["Mcp-Param-"+m.header] = string(v)
		case 'n', '{', '[':
		default:
			if n, ok := integer(v); ok {
				headers["Mcp-Param-"+m.header] = n
			}
		}
	}
	return headers
}

// integer is a whole number that a double holds exactly, in decimal digits.
func integer(v []byte) (string, bool) {
	f, err := json.Number(v).Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53-1 {
		return "", false
	}
	return strconv.FormatInt(int64(f), 10), true
}

// headerValue is s as a header may carry it: as it is, or wrapped in base64.
func headerValue(s string) string {
	plain := s == strings.Trim(s, " \t") && !strings.HasPrefix(s, "=?base64?") &&
		!strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7E })
	if plain {
		return s
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(s)) + "?="
}
