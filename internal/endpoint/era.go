package endpoint

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

const (
	modern = "2026-07-28"
	// newestLegacy answers an initialize that asks for what is not served.
	newestLegacy = "2025-11-25"

	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaServer       = "io.modelcontextprotocol/serverInfo"
	metaFlags        = "drawbridge/flags" // call.Flags of a result that is not as the tool made it
)

// Codes that 2026-07-28 adds.
const (
	codeHeader  = -32020 // HeaderMismatch
	codeVersion = -32022 // UnsupportedProtocolVersion
)

var (
	legacyVersions = []string{newestLegacy, "2025-06-18", "2025-03-26", "2024-11-05"}
	// versionsJSON lists what is served, newest first.
	versionsJSON = `["` + modern + `","` + strings.Join(legacyVersions, `","`) + `"]`
)

// era finds out which rules a request is served by: the modern ones where its
// _meta names a version that is not a legacy one, else the legacy ones.
// An initialize without such _meta is legacy whatever its headers say, because
// it is what settles the version.
func era(m message, p params, h http.Header) (isModern bool, ref *refusal) {
	if p.metaVersion == nil && m.method == "initialize" {
		return false, nil
	}
	header, ref := versionHeader(m.id, h)
	if ref != nil {
		return false, ref
	}
	if p.metaVersion == nil {
		switch {
		case header == modern:
			return true, missingMeta(m.id, metaVersion)
		case header == "", slices.Contains(legacyVersions, header):
			// Absent means 2025-03-26 (2025-11-25 basic/transports), which is
			// served like the others.
			return false, nil
		}
		return false, unsupported(m.id, header)
	}
	if p.metaVersion[0] != '"' {
		return true, missingMeta(m.id, metaVersion)
	}
	version := unquote(p.metaVersion)
	isModern = !slices.Contains(legacyVersions, version)
	if header == "" && isModern {
		return true, mismatch(m.id, "the MCP-Protocol-Version header is missing")
	}
	if header != "" && header != version {
		return isModern, mismatch(m.id, "the MCP-Protocol-Version header and _meta name different versions")
	}
	if !isModern {
		return false, nil
	}
	if version != modern {
		return true, unsupported(m.id, version)
	}
	if p.capabilities == nil || p.capabilities[0] != '{' {
		return true, missingMeta(m.id, metaCapabilities)
	}
	if p.clientInfo != nil && p.clientInfo[0] != '{' {
		return true, missingMeta(m.id, metaClient)
	}
	return true, mirrored(m, p, h)
}

// mirrored holds the headers that repeat the body to it (2026-07-28
// basic/transports, "Server Validation").
func mirrored(m message, p params, h http.Header) *refusal {
	if v := h["Mcp-Method"]; len(v) != 1 || v[0] != m.method {
		return mismatch(m.id, "the Mcp-Method header must be given once and equal the method")
	}
	if m.method != "tools/call" || m.kind != request || p.name == nil || p.name[0] != '"' {
		return nil
	}
	if v := h["Mcp-Name"]; len(v) != 1 || !headerIs(v[0], unquote(p.name)) {
		return mismatch(m.id, "the Mcp-Name header must be given once and equal the name")
	}
	return nil
}

// headerIs reports whether a header value that may be wrapped as
// =?base64?...?= stands for want.
func headerIs(v, want string) bool {
	if enc, ok := strings.CutPrefix(v, "=?base64?"); ok {
		if enc, ok = strings.CutSuffix(enc, "?="); ok {
			dec, err := base64.StdEncoding.DecodeString(enc)
			return err == nil && string(dec) == want
		}
	}
	return v == want
}

// oneWay judges the headers of a message that gets no answer. It names its
// version in the header alone.
func oneWay(m message, h http.Header) *refusal {
	header, ref := versionHeader(nil, h)
	switch {
	case ref != nil:
		return ref
	case header == "", slices.Contains(legacyVersions, header):
		return nil
	case header != modern:
		return unsupported(nil, header)
	case m.kind == response:
		return nil
	}
	return mirrored(message{kind: m.kind, method: m.method}, params{}, h)
}

func versionHeader(id []byte, h http.Header) (string, *refusal) {
	switch v := h["Mcp-Protocol-Version"]; len(v) {
	case 0:
		return "", nil
	case 1:
		if v[0] == "" {
			return "", unsupported(id, "")
		}
		return v[0], nil
	}
	return "", mismatch(id, "the MCP-Protocol-Version header is given twice")
}

func mismatch(id []byte, text string) *refusal {
	return malformed(KindHeader, id, codeHeader, text)
}

func missingMeta(id []byte, key string) *refusal {
	return malformed(KindHeader, id, codeParams, "_meta is missing "+key+", or it has the wrong type")
}

func unsupported(id []byte, version string) *refusal {
	version = call.Clip(version)
	data := append([]byte(`{"supported":`), versionsJSON...)
	data = append(data, `,"requested":`...)
	data = append(appendString(data, version), '}')
	return &refusal{
		status: http.StatusBadRequest, kind: KindVersion, detail: version,
		body: appendError(nil, id, codeVersion, "unsupported protocol version", data),
	}
}
