package celrule

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// maxCommand is how many bytes a shell command may have that Programs reads.
const maxCommand = 16 << 10

var (
	plainName = lazy(`^[A-Za-z0-9_./+-]+$`)
	// Variables in lower case mean nothing to a shell. (zsh has path.)
	plainVariable = lazy(`^[a-z][a-z0-9]*$`)
	setFlags      = lazy(`^-[efux]+$`)
	version       = lazy(`-?[0-9][0-9.]*$`)
)

// harmless are the builtins that start nothing and change nothing that decides
// what a later command starts. They are in the result like any program.
var harmless = words(`: true false echo pwd cd exit return break continue shift umask ulimit times kill wait type test [ printf set`)

// forbidden are builtins, of any common shell, that run what they are given,
// change what a name means, or evaluate their operands.
var forbidden = words(`. source eval exec command builtin trap alias unalias hash enable shopt bind complete compgen compopt mapfile readarray
	fc jobs fg bg disown suspend history read getopts local export readonly declare typeset let unset coproc time function select noglob nocorrect
	autoload zmodload emulate functions integer float setopt unsetopt whence print vared sched zle zparseopts zstyle caller dirs pushd popd logout
	nameref stop try rehash`)

// wrappers are programs whose work is to start another program.
var wrappers = words(`sh bash dash ash zsh ksh mksh pdksh oksh yash posh fish csh tcsh rbash rksh busybox toybox env xargs sudo sudoedit doas su runuser
	pkexec run0 nice ionice chrt taskset nohup timeout setsid setarch linux32 linux64 stdbuf unbuffer script chroot fakechroot fakeroot unshare nsenter
	bwrap firejail proot prlimit setpriv capsh flock watch parallel strace ltrace gdb lldb valgrind perf ssh mosh rsh tmux screen at batch crontab
	systemd-run systemd-nspawn start-stop-daemon dbus-run-session daemonize entr expect socat xvfb-run chpst softlimit setlock envdir sg newgrp
	docker podman kubectl flatpak snap ld.so ld-linux.so ld-linux-x86-64.so.2 ld-linux-aarch64.so.1 catchsegv chronic ifne exec-once uidgid
	run-parts which-exec choom cpulimit trickle torsocks proxychains proxychains4 tsocks i386 x86_64 uname26 pipexec`)

// words and lazy make what they are given when it is first used: every start of
// the program, and of each helper, would pay for it otherwise.
func words(s string) func() map[string]bool {
	return sync.OnceValue(func() map[string]bool {
		m := map[string]bool{}
		for _, w := range strings.Fields(s) {
			m[w] = true
		}
		return m
	})
}

func lazy(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// Programs lists every program a shell command would start, once each, in the
// order they first stand, by the names they are called by, builtins included.
// It goes through lists, pipes, loops, subshells and command substitutions.
//
// What can't be known before the command runs is an error: a name that is made
// when it runs (variables, substitutions, globs, braces, tildes, escapes), a
// program or builtin whose work is to run another or that changes what a name
// means, functions, arithmetic, an assignment to anything but a plain lower-case
// variable, and whatever sh and bash read differently.
//
// It says nothing of what the programs do: those that can be told to start
// others (git, find, tar, sed, awk, make, editors, interpreters, ...) are only
// names in the list. Nor does it see which files are written.
func Programs(cmd string) ([]string, error) {
	switch {
	case len(cmd) > maxCommand:
		return nil, &unknowable{"programs: the command is longer than 16 KiB"}
	case !utf8.ValidString(cmd) || strings.ContainsRune(cmd, 0):
		return nil, &unknowable{"programs: the command has a NUL or bytes that are no UTF-8"}
	case strings.Contains(cmd, "\\\n"), strings.Contains(cmd, "\r"):
		// The parser joins lines in a comment, where shells don't, and not between
		// $ and (, where they do; a carriage return is nothing to it, and a
		// character like any other to them.
		return nil, &unknowable{"programs: a line ends with a backslash or a carriage return; write the command without"}
	case strings.Contains(cmd, "`") && strings.Contains(cmd, "\\"):
		return nil, &unknowable{"programs: it has backquotes and backslashes, which shells read in several ways; write $(...)"}
	}
	// /bin/sh is dash on some systems and bash on others.
	posix, err := programs(cmd, syntax.LangPOSIX)
	if err != nil {
		return nil, err
	}
	bash, err := programs(cmd, syntax.LangBash)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(posix, bash) {
		return nil, &unknowable{"programs: sh and bash would read the command differently"}
	}
	return posix, nil
}

var (
	posixParsers = sync.Pool{New: func() any { return syntax.NewParser(syntax.Variant(syntax.LangPOSIX), syntax.KeepComments(true)) }}
	bashParsers  = sync.Pool{New: func() any { return syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)) }}
)

func programs(cmd string, lang syntax.LangVariant) (list []string, err error) {
	defer func() {
		// A parser that gives up by a panic has read nothing we can use.
		if recover() != nil {
			list, err = nil, &unknowable{"programs: the command can't be parsed"}
		}
	}()
	pool := &posixParsers
	if lang == syntax.LangBash {
		pool = &bashParsers
	}
	p := pool.Get().(*syntax.Parser)
	file, perr := p.Parse(strings.NewReader(cmd), "")
	pool.Put(p) // not after a panic
	if perr != nil {
		return nil, &unknowable{"programs: the command can't be parsed as POSIX shell"}
	}
	w := walker{cmd: cmd, list: []string{}}
	syntax.Walk(file, w.node)
	if w.err == "" && w.moved && w.relative {
		w.err = "a program is named by a relative path after the directory was changed"
	}
	if w.err != "" {
		return nil, &unknowable{"programs: " + w.err}
	}
	return w.list, nil
}

type walker struct {
	cmd             string
	list            []string
	moved, relative bool
	err             string // why it can't be known; the first reason
}

func (w *walker) fail(why string) bool {
	if w.err == "" {
		w.err = why
	}
	return false
}

func (w *walker) node(n syntax.Node) bool {
	if w.err != "" {
		return false
	}
	switch n := n.(type) {
	case *syntax.CallExpr:
		return w.call(n)
	case *syntax.ForClause:
		if it, ok := n.Loop.(*syntax.WordIter); !ok || n.Select || !plainVariable().MatchString(it.Name.Value) || it.Name.Value == "path" {
			return w.fail("a loop sets a variable that may decide what is started")
		}
	case *syntax.Comment:
		// The parser also sees one in the middle of a word: $x#$(program).
		if at := n.Pos().Offset(); at > 0 && (at > uint(len(w.cmd)) || !strings.ContainsRune(" \t\n", rune(w.cmd[at-1]))) {
			return w.fail("a comment begins in the middle of a word")
		}
	case *syntax.ParamExp:
		// ${x=y} and ${x:=y} assign; indirection and transformations evaluate.
		if n.Excl || n.Length && n.Index != nil || n.Index != nil || n.Slice != nil || n.Repl != nil || n.Names != 0 || n.Flags != nil || n.NestedParam != nil {
			return w.fail("a variable is expanded in a way that may run something")
		}
		if n.Exp != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull || n.Exp.Op == syntax.OtherParamOps) {
			return w.fail("an expansion assigns a variable, or evaluates one")
		}
		if n.Exp != nil && !unquoted(n.Exp.Word) {
			return w.fail("an expansion has quotes in it, which shells read in several ways")
		}
	case *syntax.ArithmExp, *syntax.ArithmCmd, *syntax.LetClause:
		return w.fail("arithmetic may run what a variable holds")
	case *syntax.FuncDecl:
		return w.fail("it defines a function")
	case *syntax.DeclClause, *syntax.CoprocClause, *syntax.TestClause, *syntax.TimeClause, *syntax.ProcSubst, *syntax.ExtGlob, *syntax.TestDecl, *syntax.ArrayExpr:
		return w.fail("it uses what only some shells have")
	}
	return true
}

func (w *walker) call(c *syntax.CallExpr) bool {
	for _, a := range c.Assigns {
		switch {
		case len(c.Args) > 0:
			return w.fail("a variable is set for a program, which may change what it starts")
		case a.Append || a.Naked || a.Array != nil || a.Index != nil || !plainVariable().MatchString(a.Name.Value) || a.Name.Value == "path":
			return w.fail("it sets a variable that may decide what is started")
		}
	}
	if len(c.Args) == 0 {
		return true
	}
	name, ok := literal(c.Args[0])
	if !ok || !plainName().MatchString(name) && name != "[" && name != ":" {
		return w.fail("the name of a program is only known when the command runs")
	}
	base := strings.ToLower(path.Base(name))
	switch {
	case forbidden()[base]:
		return w.fail("it uses a builtin that runs what it is given, or changes what a name means")
	case wrappers()[base] || wrappers()[version().ReplaceAllString(base, "")] || strings.HasPrefix(base, "ld-linux") || strings.HasPrefix(base, "qemu-"):
		return w.fail("it uses a program that runs another program")
	case strings.HasSuffix(name, "/"):
		return w.fail("the name of a program is a folder")
	}
	if harmless()[name] && !w.builtin(name, c.Args[1:]) {
		return false
	}
	if strings.Contains(name, "/") && !path.IsAbs(name) {
		w.relative = true
	}
	if !slices.Contains(w.list, name) {
		w.list = append(w.list, name)
	}
	return true
}

// builtin looks at the operands of those that can be made to evaluate one.
func (w *walker) builtin(name string, args []*syntax.Word) bool {
	var values []string
	known := true
	for _, a := range args {
		v, ok := literal(a)
		known = known && ok
		values = append(values, v)
	}
	switch name {
	case "cd":
		w.moved = true
	case "test", "[":
		// bash evaluates the subscript in [ -v 'a[$(program)]' ].
		if !known || slices.Contains(values, "-v") || slices.Contains(values, "-R") {
			return w.fail("a test has operands that are only known when the command runs")
		}
	case "printf":
		// bash's printf -v evaluates a subscript, and assigns.
		if len(args) > 0 {
			if v, ok := literal(args[0]); !ok || strings.HasPrefix(v, "-") {
				return w.fail("printf may assign a variable")
			}
		}
	case "set", "wait", "type":
		for _, v := range values {
			if !known || name != "set" || !setFlags().MatchString(v) {
				return w.fail("a builtin has operands that may change what is started")
			}
		}
	}
	return true
}

// unquoted reports whether a word in an expansion has no quotes of its own. What
// they mean depends on the quotes, or the here-document, around the expansion:
// in "${x-'$(program)'}" the substitution runs.
func unquoted(word *syntax.Word) bool {
	if word == nil {
		return true
	}
	for _, p := range word.Parts {
		switch p := p.(type) {
		case *syntax.Lit:
			if strings.ContainsAny(p.Value, "\\'\"`") {
				return false
			}
		case *syntax.ParamExp, *syntax.CmdSubst:
		default:
			return false
		}
	}
	return true
}

// literal is the text of a word that is the same whenever it is expanded.
func literal(word *syntax.Word) (string, bool) {
	var b strings.Builder
	for _, p := range word.Parts {
		switch p := p.(type) {
		case *syntax.Lit:
			if strings.ContainsAny(p.Value, "\\*?[{~") && p.Value != "[" {
				return "", false
			}
			b.WriteString(p.Value)
		case *syntax.SglQuoted:
			if p.Dollar {
				return "", false
			}
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			if p.Dollar {
				return "", false
			}
			for _, q := range p.Parts {
				l, ok := q.(*syntax.Lit)
				if !ok || strings.Contains(l.Value, "\\") {
					return "", false
				}
				b.WriteString(l.Value)
			}
		default:
			return "", false
		}
	}
	return b.String(), true
}
