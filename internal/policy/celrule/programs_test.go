package celrule

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPrograms(t *testing.T) {
	for cmd, want := range map[string]string{
		"ls":                                  "ls",
		"  ls -la 'a b' \"$x\" $y `":          "!",
		"ls -la 'a b' \"$x\" $y":              "ls",
		"ls | wc -l; date && true || false &": "ls wc date true false",
		"ls; ls; wc":                          "ls wc",
		"":                                    "",
		"# rm x":                              "",
		"ls # ; rm x":                         "ls",
		"(ls; { wc; })":                       "ls wc",
		"if a; then b; else c; fi":            "a b c",
		"while a; do b; done; until c; do d; done": "a b c d",
		"for f in *.txt; do wc -l \"$f\"; done":    "wc",
		"case $x in a) b;; *) $(c);; esac":         "!",
		"case $x in a) b;; *) c;; esac":            "b c",
		"ls $(cat x)":                              "ls cat",
		"ls `cat x`":                               "ls cat",
		"ls \"`cat x`\" \"$(head y)\"":             "ls cat head",
		"ls ${x:-$(cat y)}":                        "ls cat",
		"x=$(date)":                                "date",
		"x=1; echo $x":                             "echo",
		"cat <<E\n$(rm x)\nE":                      "cat rm",
		"cat <<'E'\n$(rm x)\nE":                    "cat",
		"ls > \"$(date)\"":                         "ls date",
		"! ls":                                     "ls",
		"/bin/ls":                                  "/bin/ls",
		"./ls; bin/x":                              "./ls bin/x",
		"l''s":                                     "ls",
		"\"ls\"":                                   "ls",
		"'l'\"s\"":                                 "ls",
		"[ a = b ] && test -f x":                   "[ test",
		": ; set -eu; cd x; pwd":                   ": set cd pwd",
		"git log; find . -delete":                  "git find",
		"printf '%s\\n' \"$x\"":                    "printf",
		"> x":                                      "",
		"python3 -c 'import os'":                   "python3",
	} {
		list, err := Programs(cmd)
		got := strings.Join(list, " ")
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("%q: %q (%v), want %q", cmd, got, err, want)
		}
	}
}

// tricks are ways to start a program that is not named, or to make a name mean
// another one. docs/policy.md lists them.
var tricks = map[string][]string{
	"the name is made when the command runs": {
		"$x", "${x}", "$(echo rm) y", "`echo rm` y", "r$x", "\"$x\"", "r\\m y", "\\rm y", "$'rm' y", "$'\\x72m' y", "$\"rm\" y", "/bin/r? y", "/bin/r* y",
		"/bin/[r]m y", "{rm,y}", "r{m,n} y", "~/rm", "${x:-rm} y", "$@", "$1", "r$(:)m y", "rm\u200b y", "ｒm y",
	},
	"a program or builtin that runs another": {
		"env rm y", "/usr/bin/env rm", "ENV rm", "zsh-5.9 -c x", "bash5 x", "xargs rm < x", "sudo rm", "doas rm", "nice rm", "nohup rm", "timeout 1 rm", "time rm y", "setsid rm",
		"stdbuf -o0 rm", "sh -c 'rm y'", "bash -c 'rm y'", "dash x", "busybox rm y", "eval rm y", "eval 'r''m'", ". ./x", "source x", "exec rm y", "command rm y",
		"builtin eval rm", "trap 'rm y' EXIT", "coproc rm y", "watch rm", "flock x rm", "parallel rm", "ssh h rm", "chroot / rm", "unshare rm", "strace rm",
		"/lib64/ld-linux-x86-64.so.2 /bin/rm y", "jobs -x rm y", "mapfile -C rm x", "compgen -C rm", "fc -s", "select x in a; do rm; done",
	},
	"a name is made to mean another": {
		"alias ls=rm; ls y", "ls() { rm y; }; ls", "function ls { rm y; }; ls", "hash -p /bin/rm ls; ls y", "PATH=/tmp/x ls", "PATH=/tmp/x; ls", "export PATH=/tmp/x; ls",
		"for PATH in /tmp/x; do ls; done", "read PATH < x; ls", "readonly PATH=x", "declare PATH=x", "typeset PATH=x", "local PATH=x", "unset PATH", ": ${PATH:=x}", "${X=y}",
		"printf -v PATH x; ls", "printf $x y", "getopts a PATH", "LD_PRELOAD=x ls", "IFS=x; ls", "BASH_ENV=x ls", "ENV=x ls", "PS4='$(rm y)'; set -x; ls", "GIT_PAGER=rm git log",
		"enable -f ./x.so ls", "shopt -s expand_aliases", "set -k", "set -o posix", "path=x; ls", "cd x; ./ls", "x=1 ls", "a[0]=1", "a=(1)", "x+=y",
	},
	"an operand is evaluated": {
		"echo $((a))", "echo $((x[$(rm y)]))", "((x))", "let x=1", "[ -v 'a[$(rm y)]' ]", "test -v 'a[$(rm y)]'", "[ \"$op\" 'a[$(rm y)]' ]", "[[ a -eq 'b[$(rm y)]' ]]", "echo ${!x}",
		"echo ${x@P}", "echo ${x[$(rm)]}", "echo ${x:1:y}", "unset 'a[$(rm y)]'", "wait -p 'a[$(rm y)]'", "read 'a[$(rm y)]'",
	},
	"sh and bash differ, or neither can read it": {
		"echo $'a\\'; rm #'", "ls <(rm y)", "ls >(rm y)", "ls <<< x", "ls |& rm", "ls &>> x;(", "if ls", "'", "\"", "ls)", "$(", "for ((;;)); do ls; done", "\x00", "ls\xff", "ls; }",
	},
	"the parser reads it otherwise than shells do": {
		"echo \"${x-'$(rm y)'}\"", "echo \"${x-'`rm y`'}\"", "cat <<E\n${x-'$(rm y)'}\nE", "echo ${x-\"'$(rm y)'\"}", "echo \"${x%'$(rm y)'}\"", "echo \"${x-\\'$(rm y)\\'}\"",
		"echo `echo $x#$(rm y)z`", "ls #\\\nrm y", "echo \"$\\\n(rm y)\"", "cat <<E\n$\\\n(rm y)\nE", "ls \\\r\nrm y", "ls #\\\r\nrm y", "echo `echo \\`rm y\\``", "echo `echo \"\\$(rm y)\"`",
	},
	"too long": {strings.Repeat("ls;", 6000), strings.Repeat("(", 16000), strings.Repeat("$(", 8000)},
}

func TestTricks(t *testing.T) {
	for kind, list := range tricks {
		for _, cmd := range list {
			if got, err := Programs(cmd); err == nil {
				t.Errorf("%s: %.60q is read as %q", kind, cmd, got)
			} else if u, ok := errors.AsType[*unknowable](err); !ok || strings.Contains(u.Public(), cmd) && cmd != "" && len(cmd) > 3 {
				t.Errorf("%.60q: %v", cmd, err)
			}
		}
	}
}

// What a shell really starts is in the list: the commands are run with a PATH on
// which every program only notes its own name.
func TestProgramsAgainstShells(t *testing.T) {
	dir := t.TempDir()
	names := []string{"aa", "bb", "cc"}
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(dir, n), []byte("#!/bin/sh\necho "+n+" >> "+dir+"/log\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var shells []string
	for _, s := range []string{"sh", "dash", "bash", "busybox"} {
		if p, err := exec.LookPath(s); err == nil {
			shells = append(shells, p)
		}
	}
	if len(shells) == 0 {
		t.Skip("no shell on this system")
	}
	piece := rapid.SampledFrom([]string{"aa", "bb", "cc", "$(", ")", "`", "'", "\"", ";", "|", "&&", "||", " ", " ", "\n", "{ ", "; }", "(", "x=", "$x", "${x:-", "}", "\\", "<<E\n", "\nE\n",
		"if ", "; then ", "; fi", "for x in ", "; do ", "; done", "#", "!", "$", ">f", "a", "case x in x) ", ";; esac", "eval ", "\\\n", "*", "[ x ]", ": ", "=", "$'", "{aa,bb}"})
	place := rapid.SampledFrom([]string{"aa \"${x-@}\"", "aa ${x-@}", "aa \"${x%@}\"", "aa `aa @`", "aa \"`aa @`\"", "aa $(aa @)", "aa \"$(aa @)\"", "aa <<E\n@\nE\ncc",
		"aa <<E\n${x-@}\nE", "aa <<-E\n\t@\n\tE\ncc", "aa <<'@'\nbb\nE\ncc", "aa <<@\nbb\nE\ncc", "case x in @) aa;; esac", "aa `aa <<E\n@\nE\n`", "aa @\ncc", "x=@\ncc", "aa >@"})
	odd := rapid.SampledFrom([]string{"$(bb)", "`bb`", "'$(bb)'", "\"$(bb)\"", "'`bb`'", "'", "\"", "\\", "\\`", "\\$", "\\\n", "\\\r\n", "\r", "$", "$x", "#", "\n", " ", "}", ")", "(", "{", "E", "${x-", "$(aa ", "`aa ", "$'", "bb"})
	rapid.Check(t, func(t *rapid.T) {
		cmd := strings.Join(rapid.SliceOfN(piece, 1, 9).Draw(t, "cmd"), "")
		if rapid.Bool().Draw(t, "inside") { // where shells have rules of their own
			cmd = strings.ReplaceAll(place.Draw(t, "place"), "@", strings.Join(rapid.SliceOfN(odd, 1, 5).Draw(t, "odd"), ""))
		}
		list, err := Programs(cmd)
		if err != nil {
			return
		}
		for _, sh := range shells {
			_ = os.Remove(filepath.Join(dir, "log"))
			args := []string{"-c", cmd}
			if filepath.Base(sh) == "busybox" {
				args = []string{"sh", "-c", cmd}
			}
			c := exec.Command(sh, args...)
			c.Dir, c.Env = dir, []string{"PATH=" + dir}
			_ = c.Run()
			b, _ := os.ReadFile(filepath.Join(dir, "log"))
			for _, ran := range strings.Fields(string(b)) {
				if !slices.Contains(list, ran) {
					t.Fatalf("%s started %s by %q, and the list is %q", sh, ran, cmd, list)
				}
			}
		}
	})
}

func FuzzPrograms(f *testing.F) {
	for _, list := range tricks {
		for _, cmd := range list {
			if len(cmd) < 200 {
				f.Add(cmd)
			}
		}
	}
	f.Add("ls | wc")
	f.Fuzz(func(t *testing.T, cmd string) {
		list, err := Programs(cmd)
		if err != nil {
			return
		}
		for i, p := range list {
			if !plainName().MatchString(p) && p != "[" && p != ":" || slices.Contains(list[:i], p) {
				t.Fatalf("%q: %q", cmd, list)
			}
		}
	})
}

func TestPathIn(t *testing.T) {
	for _, c := range []struct{ p, dir, want string }{
		{"docs/a", "docs", "true"}, {"docs", "docs", "true"}, {"docs/", "docs", "true"}, {"./docs/a", "docs/", "true"}, {"docs/x/../a", "docs", "true"},
		{"docs-evil/a", "docs", "false"}, {"docs/../x", "docs", "false"}, {"a", ".", "true"}, {"Docs/a", "docs", "false"}, {"/w/a/x", "/w/a", "true"},
		{"/w/a-evil/x", "/w/a", "false"}, {"/w/a/../a-evil/x", "/w/a", "false"}, {"/x", "/", "true"}, {"/", "/", "true"}, {"%2e%2e/x", "docs", "false"},
		{"../docs/a", "docs", "!"}, {"docs/../../x", "docs", "!"}, {"/docs/a", "docs", "!"}, {"docs/a", "/docs", "!"}, {"", "docs", "!"}, {" ", "docs", "!"},
		{"docs\\a", "docs", "!"}, {"docs/\x00", "docs", "!"}, {"~/docs", "docs", "!"},
	} {
		in, err := PathIn(c.p, c.dir)
		got := fmt.Sprint(in)
		if err != nil {
			got = "!"
		}
		if got != c.want {
			t.Errorf("path_in(%q, %q): %s (%v), want %s", c.p, c.dir, got, err, c.want)
		}
	}
}

func TestHost(t *testing.T) {
	for raw, want := range map[string]string{
		"https://Example.COM/x": "example.com", "http://example.com:8080": "example.com", "https://example.com./": "example.com", "ws://a_b.c/": "a_b.c",
		"http://127.0.0.1/": "127.0.0.1", "http://[::1]:80/": "::1", "http://[2001:DB8::1]/": "2001:db8::1", "https://a.b?x=@y": "a.b",
		"https://u@example.com/": "!", "https://example.com@evil.com/": "!", "https://u:p@e/": "!", "example.com": "!", "//example.com": "!", "https:///x": "!", "": "!", "mailto:a@b": "!",
		"https://evil.com\\@example.com/": "!", "https://ex ample.com": "!", " https://example.com": "!", "https://example.com\n": "!", "https://ex%61mple.com/": "!", "https://exämple.com/": "!",
		"http://2130706433/": "!", "http://0x7f.1/": "!", "http://127.1/": "!", "http://0177.0.0.1/": "!", "http://[::ffff:127.0.0.1]/": "!", "http://[fe80::1%25eth0]/": "!", "http://a..b/": "!",
		"http://1.2.3.4.5/": "!", "http://example.com:x/": "!", "http://./": "!", "http://0xffffffff/": "!",
	} {
		h, err := Host(raw)
		if err != nil {
			h = "!"
		}
		if h != want {
			t.Errorf("host(%q): %q (%v), want %q", raw, h, err, want)
		}
	}
}

func FuzzHost(f *testing.F) {
	for _, s := range []string{"https://a.b/c", "http://[::1]/", "http://0x7f.1", "https://u@h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		h, err := Host(raw)
		if err == nil && (h == "" || h != strings.ToLower(h) || strings.ContainsAny(h, "/@\\ %[]")) {
			t.Fatalf("%q: %q", raw, h)
		}
	})
}
