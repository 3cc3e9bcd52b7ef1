package redact

import (
	"bytes"
	"encoding/base64"
	"slices"
)

// triggers are the bytes at which shapes looks around. They are rare in prose
// or their first check is cheap.
var triggers = func() (t [256]bool) {
	for _, c := range []byte(" -_:=KSzJ.") {
		t[c] = true
	}
	return t
}()

type prefix struct {
	text  string
	min   int
	digit bool
}

// prefixes of tokens that their makers gave a shape, by the byte that ends the
// prefix. min is how many bytes must follow; digit asks for one among them.
var prefixes = [256][]prefix{
	'-': {
		{"sk-", 16, true}, {"glpat-", 16, false}, {"xapp-", 10, false}, {"pypi-", 16, true},
		{"xoxa-", 8, false}, {"xoxb-", 8, false}, {"xoxe-", 8, false}, {"xoxo-", 8, false}, {"xoxp-", 8, false}, {"xoxr-", 8, false}, {"xoxs-", 8, false},
		{"AGE-SECRET-KEY-", 16, false},
	},
	'_': {
		{"github_pat_", 16, false}, {"ghp_", 16, false}, {"gho_", 16, false}, {"ghu_", 16, false}, {"ghs_", 16, false}, {"ghr_", 16, false},
		{"sk_live_", 8, false}, {"sk_test_", 8, false}, {"rk_live_", 8, false}, {"rk_test_", 8, false}, {"npm_", 20, true}, {"hf_", 20, false},
		{"dop_v1_", 20, false},
	},
	'K': {{"AK", 18, false}},
	'S': {{"AS", 18, false}},
	'z': {{"AIz", 30, false}},
	'.': {{"ya29.", 16, false}, {"SG.", 20, true}},
}

// shapes appends the parts of a text that look like a secret, in any order; with
// bare only those that look so by themselves, whatever stands before them.
func shapes(b []byte, spans []span, bare bool) []span {
	var r run
	for i := 0; i < len(b); i++ {
		c := b[i]
		if !triggers[c] {
			continue
		}
		var sp span
		if bare && c != ' ' && c != 'J' {
			c = 0
		}
		switch c {
		case ' ':
			if i < 5 || b[i-1]|0x20 != 'c' && b[i-1]|0x20 != 'r' {
				continue
			}
			sp = scheme(b, i)
		case ':':
			if sp = userinfo(b, i); sp.end == 0 {
				sp = field(b, i)
			}
		case '=':
			sp = assignment(b, i)
		case 'J':
			sp = jwt(b, i)
		case '-':
			if bytes.HasPrefix(b[i:], []byte("-----BEGIN ")) {
				sp = pem(b, i)
			} else if bytes.HasPrefix(b[i:], []byte("--")) {
				sp = option(b, i)
			}
		}
		if sp.end == 0 {
			sp = token(b, i, &r)
		}
		if sp.end > sp.start {
			spans = append(spans, sp)
			// What is inside is gone; what overlaps its end is still looked at.
			i = max(i, sp.end-1)
		}
	}
	return spans
}

// run is the stretch of token bytes last looked at. It is kept so that a text
// full of prefixes is not read anew from each of them.
type run struct{ end, lastDigit int }

func (r *run) at(b []byte, i int) {
	if i < r.end {
		return
	}
	r.lastDigit = -1
	for r.end = i; r.end < len(b) && isTokenByte(b[r.end]); r.end++ {
		if c := b[r.end]; c >= '0' && c <= '9' {
			r.lastDigit = r.end
		}
	}
}

func token(b []byte, i int, r *run) span {
	for _, p := range prefixes[b[i]] {
		start := i + 1 - len(p.text)
		if start < 0 || b[start] != p.text[0] || string(b[start:i+1]) != p.text || start > 0 && isAlnum(b[start-1]) {
			continue
		}
		r.at(b, i+1)
		if r.end-(i+1) < p.min || p.digit && r.lastDigit <= i {
			continue
		}
		if (b[i] == 'K' || b[i] == 'S') && !awsKey(b[start:r.end]) {
			continue
		}
		return span{start, r.end}
	}
	return span{}
}

// awsKey reports whether b is an AWS access key id: AKIA or ASIA and 16
// capitals and digits.
func awsKey(b []byte) bool {
	return len(b) == 20 && string(b[2:4]) == "IA" && !slices.ContainsFunc(b, func(c byte) bool {
		return (c < 'A' || c > 'Z') && (c < '0' || c > '9')
	})
}

// jwt finds a JSON Web Token: base64url of `{"`, and two more parts (RFC 7519
// section 3; the last is empty where it is not signed).
func jwt(b []byte, i int) span {
	start := i - 2
	if start < 0 || b[start] != 'e' || b[start+1] != 'y' || start > 0 && isTokenByte(b[start-1]) {
		return span{}
	}
	dots, end := 0, start
	for ; end < len(b) && (isTokenByte(b[end]) || b[end] == '.'); end++ {
		if b[end] == '.' {
			if dots == 0 && end-start < 10 {
				return span{}
			}
			dots++
		}
	}
	if dots < 2 {
		return span{}
	}
	return span{start, end}
}

// pem finds a private key from its BEGIN line to its END line, or to the end
// of the text where that is missing (RFC 7468).
func pem(b []byte, i int) span {
	head := b[i+len("-----BEGIN "):]
	n := bytes.Index(head[:min(len(head), 64)], []byte("-----"))
	label := head[:max(n, 0)]
	if n < 0 {
		label = head[:min(len(head), 64)]
	}
	if !bytes.Contains(label, []byte("PRIVATE KEY")) {
		return span{}
	}
	end := bytes.Index(head, []byte("-----END "))
	if end < 0 {
		return span{i, len(b)}
	}
	end += len("-----END ")
	if n := bytes.Index(head[end:], []byte("-----")); n >= 0 {
		return span{i, i + len("-----BEGIN ") + end + n + len("-----")}
	}
	return span{i, len(b)}
}

// scheme finds the credentials after "Bearer" and "Basic" (RFC 9110 section
// 11.4). Both are words of prose as well, so what follows must look like more
// than a word.
func scheme(b []byte, i int) span {
	basic := i >= 5 && bytes.EqualFold(b[i-5:i], []byte("basic")) && (i == 5 || !isAlnum(b[i-6]))
	bearer := i >= 6 && bytes.EqualFold(b[i-6:i], []byte("bearer")) && (i == 6 || !isAlnum(b[i-7]))
	if !basic && !bearer {
		return span{}
	}
	start := i
	for start < len(b) && b[start] == ' ' {
		start++
	}
	end := start
	for end < len(b) && (isTokenByte(b[end]) || bytes.IndexByte([]byte("._~+/="), b[end]) >= 0) {
		end++
	}
	value := bytes.TrimRight(b[start:end], ".")
	end = start + len(value)
	switch {
	case len(value) < 6:
		return span{}
	case basic:
		plain, err := base64.RawStdEncoding.DecodeString(string(bytes.TrimRight(value, "=")))
		if err != nil || bytes.IndexByte(plain, ':') < 0 {
			return span{}
		}
	case len(value) < 20 && !bytes.ContainsAny(value, "0123456789"):
		return span{}
	}
	return span{start, end}
}

// userinfo finds what stands before the @ of a URL's authority (RFC 3986
// section 3.2.1). i is at the colon after the scheme. A name alone is masked
// only in http and https, where it is a token; ssh://git@host gives nothing
// away.
func userinfo(b []byte, i int) span {
	if !bytes.HasPrefix(b[i:], []byte("://")) {
		return span{}
	}
	start := i + 3
	at, colon := -1, false
	for j := start; j < len(b) && !bytes.ContainsAny(b[j:j+1], "/?# \t\r\n\"'<>`\\"); j++ {
		switch b[j] {
		case '@':
			at = j
		case ':':
			colon = colon || at < 0
		}
	}
	if at <= start {
		return span{}
	}
	web := i >= 4 && bytes.EqualFold(b[i-4:i], []byte("http")) || i >= 5 && bytes.EqualFold(b[i-5:i], []byte("https"))
	if !colon && !web {
		return span{}
	}
	return span{start, at}
}

// name is the identifier that ends before i, and where it starts.
func name(b []byte, i int) (start int, word []byte) {
	start = i
	for start > 0 && i-start < 128 && (isTokenByte(b[start-1]) || b[start-1] == '.') {
		start--
	}
	return start, b[start:i]
}

// assignment finds the value in name=value: a query parameter, a form, a shell
// variable, an option.
func assignment(b []byte, i int) span {
	if i+1 >= len(b) || b[i+1] == '=' || b[i+1] == ' ' {
		return span{}
	}
	start, word := name(b, i)
	if len(word) == 0 {
		return span{}
	}
	word = bytes.TrimLeft(word, "-")
	class, least := classify(word), 0
	if class == plain && start > 0 && (b[start-1] == '?' || b[start-1] == '&') {
		least = secretParameter(word)
	}
	if class == plain && least == 0 {
		return span{}
	}
	value := operand(b, i+1, "&;")
	number := !bytes.ContainsFunc(b[value.start:value.end], func(r rune) bool { return r < '0' || r > '9' })
	if class == notCount && number || value.end-value.start < least {
		return span{}
	}
	return value
}

// secretParameter knows names that give a secret away only in a URL, and says
// how long the value of one is at least; 0 for any other name.
func secretParameter(word []byte) int {
	switch string(bytes.ToLower(word)) {
	case "sig", "signature", "x-amz-signature", "x-goog-signature", "x-amz-credential", "pass", "sid", "sessionid", "session_id", "assertion":
		return 1
	case "key", "code":
		return 16
	}
	return 0
}

// option finds the value of --name value. (--name=value is an assignment.)
func option(b []byte, i int) span {
	if i > 0 && !bytes.ContainsAny(b[i-1:i], " \t\r\n\"'") {
		return span{}
	}
	end := i + 2
	for end < len(b) && isTokenByte(b[end]) {
		end++
	}
	if end == len(b) || b[end] != ' ' || classify(b[i+2:end]) != secret {
		return span{}
	}
	if value := operand(b, end+1, ";"); value.start < value.end && b[value.start] != '-' {
		return value
	}
	return span{}
}

// field finds the value after a colon: the rest of the line of a header that
// carries credentials, and one word or quoted string after a quoted key, or
// after a bare one that is not a word of prose.
func field(b []byte, i int) span {
	end := i
	var quote byte
	escaped := 0 // a quote inside a quoted text
	if end > 0 && (b[end-1] == '"' || b[end-1] == '\'') {
		quote = b[end-1]
		end--
		if end > 0 && b[end-1] == '\\' {
			escaped = 1
			end--
		}
	}
	nameStart, word := name(b, end)
	if len(word) == 0 || classify(word) != secret {
		return span{}
	}
	start := i + 1
	for start < len(b) && (b[start] == ' ' || b[start] == '\t') {
		start++
	}
	if quote != 0 {
		if escaped > 0 && start+1 < len(b) && b[start] == '\\' && b[start+1] == quote {
			start += 2
			if n := bytes.Index(b[start:], []byte{'\\', quote}); n >= 0 {
				return span{start, start + n}
			}
			return span{start, len(b)}
		}
		return operand(b, start, ",}])")
	}
	switch w := string(bytes.ToLower(word)); w {
	case "authorization", "proxy-authorization", "cookie", "set-cookie":
		// A header in quotes ends with them; one may have quotes in it.
		var around byte
		if nameStart > 0 && (b[nameStart-1] == '"' || b[nameStart-1] == '\'') {
			around = b[nameStart-1]
		}
		end := start
		for end < len(b) && b[end] != '\r' && b[end] != '\n' && (around == 0 || b[end] != around) {
			end++
		}
		return span{start, end}
	case "token", "secret", "secrets", "credential", "credentials", "cookies", "auth", "bearer":
		return span{}
	}
	if start < len(b) && (b[start] == '\r' || b[start] == '\n') {
		return span{}
	}
	return operand(b, start, ",}])")
}

// operand is the value that starts at i: a quoted string without its quotes, or
// everything up to white space, a quote or one of stop.
func operand(b []byte, i int, stop string) span {
	if i < len(b) && (b[i] == '"' || b[i] == '\'') {
		for end := i + 1; end < len(b); end++ {
			switch b[end] {
			case '\\':
				end++
			case b[i]:
				return span{i + 1, end}
			}
		}
		return span{i + 1, len(b)}
	}
	end := i
	for end < len(b) && !bytes.ContainsAny(b[end:end+1], " \t\r\n\"'`<>\\") && bytes.IndexByte([]byte(stop), b[end]) < 0 {
		end++
	}
	return span{i, end}
}

func isTokenByte(c byte) bool { return isAlnum(c) || c == '-' || c == '_' }
