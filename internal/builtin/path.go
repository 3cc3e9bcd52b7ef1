package builtin

import (
	"net/url"
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

const (
	maxPath  = 4096 // bytes of a path in a request (Linux PATH_MAX)
	maxDepth = 128  // folders below the run's folder
)

// segments splits the path of a request into names below the folder; none for
// the folder itself. Everything with two readings is refused instead of being
// cleaned, so that a policy rule on the path and the tool see the same file:
// "..", empty and "." names, backslashes, drive letters, percent-encoded
// separators, control characters, and a shell's "~".
func (f *FileSet) segments(path string) ([]string, error) {
	if len(path) > maxPath || strings.ContainsFunc(path, func(r rune) bool { return r == '\\' || unicode.IsControl(r) }) ||
		len(path) > 1 && path[1] == ':' && unicode.IsLetter(rune(path[0])) {
		return nil, errRefused
	}
	rel := path
	if strings.HasPrefix(path, "/") {
		inside := false
		if rel, inside = f.inside(path); !inside {
			return nil, errRefused
		}
	}
	rel = strings.TrimPrefix(rel, "./")
	rel = strings.TrimSuffix(rel, "/")
	if rel == "" || rel == "." {
		return nil, nil
	}
	segs := strings.Split(rel, "/")
	if len(segs) > maxDepth || segs[0] == "~" {
		return nil, errRefused
	}
	for _, s := range segs {
		if !plain(s) {
			return nil, errRefused
		}
	}
	return segs, nil
}

// inside returns what of an absolute path is below the folder. It compares
// whole names: /ws-evil is not inside /ws.
func (f *FileSet) inside(path string) (rel string, ok bool) {
	for _, p := range f.prefixes {
		if path == p {
			return "", true
		}
		if rest, ok := strings.CutPrefix(path, p+"/"); ok {
			return rest, true
		}
	}
	return "", false
}

// plain reports whether a name is nothing but a name, on every file system:
// Windows drops trailing dots and spaces, which makes "..." and ".. " special.
func plain(s string) bool {
	if strings.TrimRight(s, ". ") == "" {
		return false
	}
	if d, err := url.PathUnescape(s); err == nil && d != s {
		return !strings.ContainsAny(d, "/\\\x00") && strings.TrimRight(d, ". ") != ""
	}
	return true
}

// key is what a name is compared by: two names that some file system takes for
// the same one have the same key. It covers letter case with full folding and
// ignorable characters (ext4 and HFS+), composed forms (APFS), trailing dots
// and spaces and ":stream" suffixes (NTFS).
func key(s string) string {
	ascii := true
	for i := range len(s) {
		ascii = ascii && s[i] < 0x80
	}
	if ascii {
		s = strings.ToLower(s)
	} else {
		s = strings.Map(func(r rune) rune {
			if unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) {
				return -1
			}
			return r
		}, s)
		s = norm.NFKC.String(cases.Fold().String(norm.NFKC.String(s)))
	}
	if i := strings.IndexByte(s, ':'); i >= 0 {
		s = s[:i]
	}
	return strings.TrimRight(s, ". ")
}

func keys(segs []string) []string {
	ks := make([]string, len(segs))
	for i, s := range segs {
		ks[i] = key(s)
	}
	return ks
}

// guard is how far a name is protected.
type guard int

const (
	free guard = iota
	readOnly
	private
)

var guarded = map[string]guard{
	".git": readOnly, ".vscode": readOnly, ".husky": readOnly, ".envrc": readOnly,
	".cursor": readOnly, ".opencode": readOnly, "opencode.json": readOnly,
	".mcp.json": private, ".claude": private, ".claude.json": private, ".codex": private, ".gemini": private, ".qwen": private,
}

// guardOf is the guard of one key. NTFS knows .git as git~1 as well.
func guardOf(k string) (name string, g guard) {
	if g, ok := guarded[k]; ok {
		return k, g
	}
	if i := strings.IndexByte(k, '~'); i > 0 && i+1 < len(k) && k[i+1] >= '0' && k[i+1] <= '9' {
		name = "." + k[:i]
		if name == ".mcp" {
			name = ".mcp.json"
		}
		return name, guarded[name]
	}
	return k, free
}

// guardAt is the strictest guard on the file that segs, names below the folder,
// lead to.
func (f *FileSet) guardAt(segs []string) guard {
	ks := keys(segs)
	strictest := free
	git := false
	for _, k := range ks {
		name, g := guardOf(k)
		strictest = max(strictest, g)
		git = git || name == ".git"
		if git && (k == "config" || k == "config.worktree") {
			return private
		}
	}
	for _, p := range f.closed {
		if len(ks) >= len(p) && equal(ks[:len(p)], p) {
			return private
		}
	}
	return strictest
}

func equal(a, b []string) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}
