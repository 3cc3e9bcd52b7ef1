package redact

import (
	"bytes"
	"slices"
	"strings"
)

// How a key's value is treated.
type keyClass int

const (
	plain    keyClass = iota
	secret            // masked, whatever it is
	notCount          // masked unless it is a number: tokens may be counted or listed
)

// secretWords make a key secret wherever they stand in it.
var secretWords = map[string]bool{
	"authorization": true, "password": true, "passwords": true, "passwd": true, "passphrase": true, "passcode": true,
	"passwort": true, "pwd": true, "secret": true, "secrets": true, "cookie": true, "cookies": true,
	"credential": true, "credentials": true, "jwt": true, "apikey": true, "apikeys": true, "privatekey": true,
	"secretkey": true, "accesskey": true, "signingkey": true, "encryptionkey": true, "authkey": true, "sshkey": true,
}

// keyWords make a key secret where the word "key" follows.
var keyWords = map[string]bool{
	"api": true, "private": true, "secret": true, "access": true, "signing": true, "encryption": true, "auth": true,
	"ssh": true, "account": true, "subscription": true, "master": true, "deploy": true, "service": true,
}

// secretEnds make a word secret that was written without a gap: PGPASSWORD.
var secretEnds = []string{"password", "passwd", "apikey", "secret", "secretkey", "token"}

// countWords before "token" tell of a count, a place in a list or a part of
// a text; none of these is a secret.
var countWords = map[string]bool{
	"max": true, "min": true, "num": true, "number": true, "total": true, "count": true, "per": true, "page": true,
	"next": true, "prev": true, "previous": true, "continuation": true, "continue": true, "sync": true, "cursor": true, "pagination": true,
	"stop": true, "eos": true, "bos": true, "pad": true, "unk": true, "sep": true, "cls": true, "special": true,
	"input": true, "output": true, "prompt": true, "completion": true, "reasoning": true, "cached": true, "budget": true, "used": true,
	"first": true, "last": true, "logit": true, "progress": true,
}

// aboutWords at the end tell of a key that describes the secret and does not
// hold it.
var aboutWords = map[string]bool{
	"length": true, "policy": true, "required": true, "url": true, "uri": true, "endpoint": true, "file": true, "path": true,
	"name": true, "names": true, "type": true, "count": true, "limit": true, "size": true, "expires": true, "expiry": true,
	"expiration": true, "enabled": true, "ttl": true, "version": true, "label": true, "field": true, "at": true, "in": true,
	"budget": true, "used": true, "usage": true,
}

// classify says what a key is by its words: camelCase, snake_case, kebab-case
// and dots part words, and case does not matter.
func classify(key []byte) keyClass {
	if len(key) < 3 || len(key) > maxKey || !hinted(key) {
		return plain
	}
	var arr [16]string
	words := splitWords(arr[:0], string(key))
	if len(words) == 0 || aboutWords[words[len(words)-1]] {
		return plain
	}
	if slices.ContainsFunc(words, func(w string) bool { return secretWords[w] }) {
		return secret
	}
	for i, w := range words {
		switch {
		case w == "key" && i > 0 && keyWords[words[i-1]], w == "keys" && i > 0 && keyWords[words[i-1]]:
			return secret
		case w == "token" || w == "tokens":
			if slices.ContainsFunc(words[:i], func(w string) bool { return countWords[w] }) {
				return plain
			}
			switch {
			case i < len(words)-1 && words[i+1] != "value" && words[i+1] != "hash":
				return plain
			case w == "tokens":
				return notCount
			}
			return secret
		case slices.ContainsFunc(secretEnds, func(end string) bool { return strings.HasSuffix(w, end) }):
			if head, ok := strings.CutSuffix(w, "token"); ok && countWords[head] {
				return plain
			}
			return secret
		}
	}
	if len(words) == 1 && (words[0] == "auth" || words[0] == "bearer") {
		return secret
	}
	return plain
}

const maxKey = 128

// hints are parts of which every secret key has one. Most keys have none, and
// need no splitting.
var hints = []string{"key", "pass", "pwd", "secret", "token", "cookie", "cred", "auth", "jwt", "bearer"}

func hinted(key []byte) bool {
	var buf [maxKey]byte
	low := buf[:copy(buf[:], key)]
	for i, c := range low {
		if c >= 'A' && c <= 'Z' {
			low[i] = c + 'a' - 'A'
		}
	}
	for _, h := range hints {
		if bytes.Contains(low, []byte(h)) {
			return true
		}
	}
	return false
}

// splitWords appends the words of a key in lower case, without its digits.
func splitWords(words []string, key string) []string {
	start := -1
	flush := func(end int) {
		if start >= 0 && end > start {
			words = append(words, strings.ToLower(key[start:end]))
		}
		start = -1
	}
	upper := func(i int) bool { return i < len(key) && key[i] >= 'A' && key[i] <= 'Z' }
	lower := func(i int) bool { return i < len(key) && key[i] >= 'a' && key[i] <= 'z' }
	for i := range len(key) {
		if !upper(i) && !lower(i) {
			flush(i)
			continue
		}
		// A capital begins a word after a small letter, and before one: the
		// last of APIKey's capitals does.
		if start >= 0 && upper(i) && (lower(i-1) || lower(i+1)) {
			flush(i)
		}
		if start < 0 {
			start = i
		}
	}
	flush(len(key))
	return words
}
