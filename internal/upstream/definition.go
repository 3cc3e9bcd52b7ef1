package upstream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// maxDefinition is how many bytes the definition of one tool may have. A model
// reads all of it with every request.
const maxDefinition = 256 << 10

// Definition is one tool as its server lists it.
type Definition struct {
	Name string // the server's own
	Raw  []byte // the definition exactly as it came
	// Digest is "sha256:" and the hexadecimal hash of Raw.
	Digest string
	// Hidden says why the tool is not to be listed or called, "" where nothing
	// speaks against it. Whether its input schema is a good one is not looked at.
	Hidden string

	// Description and InputSchema are read out of Raw. InputSchema is nil where
	// it is absent.
	Description string
	InputSchema []byte

	mirrored []mirrored // of the arguments, in headers
}

// define reads one entry of a listing. why is not "" where it is no definition at
// all.
func (u *Upstream) define(raw []byte) (d Definition, why string) {
	members, ok := call.Members(raw)
	if !ok {
		return d, "the entry is no object"
	}
	d.Raw = raw
	sum := sha256.Sum256(raw)
	d.Digest = "sha256:" + hex.EncodeToString(sum[:])
	var output []byte
	variant := false
	for _, m := range members {
		switch m.Name {
		case "name":
			d.Name = text(m.Value)
		case "description":
			d.Description = text(m.Value)
		case "inputSchema":
			d.InputSchema = m.Value
		case "outputSchema":
			output = m.Value
		default:
			variant = variant || strings.EqualFold(m.Name, "name") || strings.EqualFold(m.Name, "inputSchema")
		}
	}
	if d.Name == "" {
		return d, "it has no name"
	}
	d.Hidden = func() string {
		switch {
		case len(raw) > maxDefinition:
			return "its definition has more than 256 KiB"
		case call.CheckJSON(raw) != nil || variant:
			return "its definition can be read in two ways"
		case len(d.Name) > 128:
			return "its name has more than 128 bytes"
		case strings.ContainsAny(d.Name, "/*"):
			return "its name has a / or a *, which no pattern of a policy can tell apart"
		case d.Name != strings.TrimSpace(d.Name) || strings.ContainsFunc(d.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
			return "its name has characters that can't be seen"
		case unseen(raw):
			return "its definition has characters that can't be seen, or that control a terminal"
		case output != nil && !typedObject(output):
			return `its output schema has no "type": "object", for which clients drop the whole server`
		}
		return ""
	}()
	if d.Hidden == "" {
		d.mirrored, d.Hidden = readMirrored(d.InputSchema)
	}
	return d, ""
}

func typedObject(schema []byte) bool {
	members, _ := call.Members(schema)
	for _, m := range members {
		if m.Name == "type" {
			return text(m.Value) == "object"
		}
	}
	return false
}

// unseen reports whether a string or key of the JSON value holds a character that
// a person who reads it does not see, or a control character but line breaks and
// tabs.
func unseen(raw []byte) bool {
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw))
	for {
		t, err := dec.ReadToken()
		if err != nil {
			return false
		}
		if t.Kind() != '"' {
			continue
		}
		if s := t.String(); call.Invisible(s) || strings.ContainsFunc(s, func(r rune) bool {
			return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t'
		}) {
			return true
		}
	}
}
