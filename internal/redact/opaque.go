package redact

import "bytes"

// opaqueShapes is shapes without what is not opaque; of that it has the tokens
// that stand in it.
func opaqueShapes(b []byte, spans []span) []span {
	for _, sp := range shapes(b, nil, false) {
		if opaque(b[sp.start:sp.end]) {
			spans = append(spans, sp)
			continue
		}
		n := len(spans)
		spans = shapes(b[sp.start:sp.end], spans, true)
		for i := range spans[n:] {
			spans[n+i].start += sp.start
			spans[n+i].end += sp.start
		}
	}
	return spans
}

// opaque reports whether a secret-looking value can do nothing but be one: it is
// one word, no path and no option, and has no character that a shell or another
// interpreter obeys, or such a word after the name of its scheme; or it is a
// private key, line by line.
func opaque(b []byte) bool {
	if name, rest, ok := bytes.Cut(b, []byte(" ")); ok {
		switch string(bytes.ToLower(name)) {
		case "bearer", "basic", "token":
			return word(rest)
		}
	}
	return word(b) || key(b)
}

func word(b []byte) bool {
	if len(b) == 0 || !isAlnum(b[0]) {
		return false
	}
	slash := false
	for _, c := range b {
		switch {
		case isAlnum(c):
		case c == '/':
			slash = true
		case bytes.IndexByte([]byte("+=_-.:,@!%^"), c) < 0:
			return false
		}
	}
	return !slash || isBase64(b) && len(b) >= 20 && bytes.ContainsAny(b, "0123456789")
}

// key reports whether b is a private key in PEM and nothing else: base64 in
// lines of one length, but the last (RFC 7468 section 2). No line may be what a
// shell would take for a command, which has few capitals and digits.
func key(b []byte) bool {
	lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	mark := func(line []byte, begin string) bool {
		label, ok := bytes.CutPrefix(line, []byte(begin))
		label, end := bytes.CutSuffix(label, []byte("PRIVATE KEY-----"))
		return ok && end && len(label) < 40 && !bytes.ContainsFunc(label, func(r rune) bool { return r != ' ' && (r < 'A' || r > 'Z') })
	}
	if !mark(lines[0], "-----BEGIN ") {
		return false
	}
	lines = lines[1:]
	if n := len(lines) - 1; n >= 0 && mark(lines[n], "-----END ") {
		lines = lines[:n]
	}
	for i, line := range lines {
		last := i == len(lines)-1
		if !isBase64(line) || len(line) > 76 || !last && (len(line) < 64 || len(line) != len(lines[0])) {
			return false
		}
		if !mixed(line) && !(last && bytes.HasSuffix(line, []byte("="))) {
			return false
		}
	}
	return len(lines) > 1
}

func isBase64(b []byte) bool {
	return !bytes.ContainsFunc(b, func(r rune) bool { return r > 0x7e || !isAlnum(byte(r)) && r != '+' && r != '/' && r != '=' })
}

func mixed(line []byte) bool {
	has := func(from, to byte) bool {
		return bytes.ContainsFunc(line, func(r rune) bool { return r >= rune(from) && r <= rune(to) })
	}
	return len(line) > 0 && line[0] != '/' && has('a', 'z') && has('A', 'Z') && has('0', '9')
}
