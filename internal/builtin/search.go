package builtin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

const (
	maxPattern = 1000     // bytes of a pattern
	maxMatches = 200      // lines of a result
	maxSearch  = 4 << 20  // bytes looked at in one file
	maxLine    = 16 << 10 // bytes of one line that are matched
	maxShown   = 300      // bytes of a matching line that are shown
)

type searchArgs struct {
	Pattern    string `json:"pattern"`
	Path       string `json:"path"`
	Regex      bool   `json:"regex"`
	IgnoreCase bool   `json:"ignore_case"`
	Glob       string `json:"glob"`
}

func (f *FileSet) searchTool() call.Tool {
	return tool("search_files",
		"Find lines in the text files of the run's folder. Answers lines \"path:line number:text\". "+
			"pattern is literal text, with regex a regular expression (RE2 syntax, within one line). Not searched are .git, protected and binary files and links.",
		`{"type":"object","properties":{"pattern":{"type":"string","minLength":1,"maxLength":1000},
"path":{"type":"string","description":"file or folder to search in; without it the run's folder"},
"regex":{"type":"boolean","description":"pattern is a regular expression"},
"ignore_case":{"type":"boolean"},
"glob":{"type":"string","description":"only files like this, e.g. *.go (name) or src/**/*.ts (path in the run's folder)"}},"required":["pattern"]}`,
		call.Read, f.search)
}

func (f *FileSet) search(ctx context.Context, a searchArgs) (call.Result, error) {
	if a.Pattern == "" || len(a.Pattern) > maxPattern {
		return call.Errorf("pattern must have 1 to %d bytes", maxPattern), nil
	}
	expr := a.Pattern
	if !a.Regex {
		expr = regexp.QuoteMeta(expr)
	}
	if a.IgnoreCase {
		expr = "(?i:" + expr + ")"
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return call.Errorf("pattern is not a regular expression of RE2 syntax: %v; leave out regex to search for it as text", err), nil
	}
	if _, err := path.Match(a.Glob, ""); err != nil {
		return call.Errorf("glob %q: %v", call.Clip(a.Glob), err), nil
	}
	segs, err := f.segments(a.Path)
	if err != nil {
		return call.Result{}, explain(a.Path, err)
	}

	o := f.op()
	s := searcher{re: re, room: f.max - noteRoom, bytes: f.searchBytes, until: time.Now().Add(f.searchTime)}
	complete, err := o.visit(ctx, segs, true, func(dir *os.Root, way []string, t fs.FileMode) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// Every entry is a chance to stop: a tree of folders has no line to stop at.
		if s.over() {
			return errEnough
		}
		if !t.IsRegular() || o.guardAt(way) == private || a.Glob != "" && !globMatch(a.Glob, way) {
			return nil
		}
		file, info, err := open(dir, way[len(way)-1])
		if err != nil {
			return nil // gone, or not readable: it is as if it were not there
		}
		defer file.Close()
		if o.protects(info) {
			return nil
		}
		return s.file(ctx, shown(path.Join(way...)), file)
	})
	if err != nil {
		return call.Result{}, explain(a.Path, err)
	}
	r := call.Text(s.out.String())
	if s.matches == 0 {
		r = call.Text(fmt.Sprintf("no line matches (%d files searched)", s.files))
	}
	switch {
	case s.stop != "":
		r.Content = append(r.Content, call.Block{Text: "[" + s.stop + ": there may be more; search in a narrower path or glob]"})
	case !complete:
		r.Content = append(r.Content, call.Block{Text: "[the folder has too many files for one search: search in a narrower path]"})
	case s.cut > 0:
		r.Content = append(r.Content, call.Block{Text: fmt.Sprintf("[of %d large files only the first %d MiB were searched]", s.cut, maxSearch>>20)})
	}
	return r, nil
}

type searcher struct {
	re      *regexp.Regexp
	out     strings.Builder
	room    int   // bytes of out
	bytes   int64 // left to look at
	until   time.Time
	matches int
	files   int
	cut     int    // files not searched to their end
	stop    string // why the search ended early
}

func (s *searcher) over() bool {
	switch {
	case s.stop != "":
	case s.bytes <= 0:
		s.stop = "the search ended after reading its limit of bytes"
	case time.Now().After(s.until):
		s.stop = "the search ended at its time limit"
	}
	return s.stop != ""
}

func (s *searcher) file(ctx context.Context, name string, file io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(file, maxSearch+1))
	if err != nil {
		return nil
	}
	s.bytes -= int64(len(data))
	if bytes.IndexByte(data[:min(len(data), sniff)], 0) >= 0 {
		return nil
	}
	s.files++
	if len(data) > maxSearch {
		data = data[:maxSearch]
		s.cut++
	}
	for n := 1; len(data) > 0; n++ {
		if n%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if n%256 == 0 && s.over() {
			return errEnough
		}
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		line = bytes.TrimSuffix(line, []byte("\r"))
		at := s.re.FindIndex(line[:min(len(line), maxLine)])
		if at == nil {
			continue
		}
		text := fmt.Sprintf("%s:%d:%s\n", name, n, excerpt(line, at[0]))
		if s.matches == maxMatches || s.out.Len()+len(text) > s.room {
			s.stop = fmt.Sprintf("%d matches are shown", s.matches)
			return errEnough
		}
		s.matches++
		s.out.WriteString(text)
	}
	return nil
}

// excerpt is at most about maxShown bytes of line around the byte at.
func excerpt(line []byte, at int) string {
	from, to := 0, len(line)
	if len(line) > maxShown {
		from = max(0, min(at-maxShown/4, len(line)-maxShown))
		to = from + maxShown
		for range utf8.UTFMax {
			if from > 0 && !utf8.RuneStart(line[from]) {
				from--
			}
			if to < len(line) && !utf8.RuneStart(line[to]) {
				to++
			}
		}
	}
	text := strings.ToValidUTF8(string(line[from:to]), "\uFFFD")
	if from > 0 {
		text = "..." + text
	}
	if to < len(line) {
		text += "..."
	}
	return text
}

// globMatch reports whether the path matches. A glob without a slash is
// compared with the last name; "**" stands for any number of folders.
func globMatch(glob string, way []string) bool {
	if !strings.Contains(glob, "/") {
		way = way[len(way)-1:]
	}
	return globNames(strings.Split(strings.TrimPrefix(glob, "/"), "/"), way)
}

// globNames keeps, name by name, which parts of the glob may come next: time is
// the product of both lengths, where backtracking over several "**" would be
// exponential.
func globNames(glob, way []string) bool {
	next := make([]bool, len(glob)+1)
	skip := func(at []bool) {
		for i, g := range glob {
			if at[i] && g == "**" {
				at[i+1] = true
			}
		}
	}
	next[0] = true
	skip(next)
	for _, name := range way {
		now := next
		next = make([]bool, len(glob)+1)
		for i, g := range glob {
			if !now[i] {
				continue
			}
			if g == "**" {
				next[i] = true
			} else if ok, err := path.Match(g, name); ok && err == nil {
				next[i+1] = true
			}
		}
		skip(next)
	}
	return next[len(glob)]
}
