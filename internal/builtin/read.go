package builtin

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

const (
	maxEntries = 1000    // lines of a listing
	maxVisit   = 100_000 // entries looked at in one listing or search
	noteRoom   = 256     // bytes of a result kept for the note after the text
	maxSkip    = 1 << 30 // bytes passed over to get to a line
	sniff      = 8 << 10 // bytes in which a NUL makes a file binary, as git does it
)

// pathProperty is the schema of a path that must be given.
const pathProperty = `"path":{"type":"string","minLength":1,"description":"path in the run's folder, e.g. src/main.go"}`

type readArgs struct {
	Path   string   `json:"path"`
	Offset *float64 `json:"offset"`
	Limit  *float64 `json:"limit"`
}

func (f *FileSet) readTool() call.Tool {
	return tool("read_file",
		"Read a text file of the run's folder. The text comes exactly as it is in the file, without line numbers. "+
			"A long file comes in parts: offset is the first line (from 1), limit the number of lines; a note after the text says where to read on.",
		`{"type":"object","properties":{`+pathProperty+`,
"offset":{"type":"integer","minimum":1,"description":"first line, from 1"},
"limit":{"type":"integer","minimum":1,"description":"number of lines; without it as many as fit"}},"required":["path"]}`,
		call.Read, f.read)
}

func (f *FileSet) read(ctx context.Context, a readArgs) (call.Result, error) {
	segs, err := f.segments(a.Path)
	if err != nil {
		return call.Result{}, explain(a.Path, err)
	}
	file, info, _, err := f.op().openFile(ctx, segs)
	if errors.Is(err, errIsDir) {
		return call.Result{}, fmt.Errorf("%q is a folder: use list_files", call.Clip(a.Path))
	}
	if err != nil {
		return call.Result{}, explain(a.Path, err)
	}
	defer file.Close()
	part, err := readLines(ctx, file, count(a.Offset, 1), count(a.Limit, 1<<62), f.max-noteRoom)
	switch {
	case errors.Is(err, errBinary):
		return call.Errorf("%q is a binary file of %d bytes: not shown", call.Clip(a.Path), info.Size()), nil
	case err != nil:
		return call.Result{}, explain(a.Path, err)
	case len(part.text) == 0 && part.from > 1:
		return call.Errorf("%q has %d lines: there is no line %d", call.Clip(a.Path), part.lines, part.from), nil
	case len(part.text) == 0:
		return call.Text("[the file is empty]"), nil
	}
	text := strings.ToValidUTF8(string(part.text), "\uFFFD")
	r := call.Text(text)
	r.Flags.Repaired = !utf8.Valid(part.text)
	rest := info.Size() - part.end
	switch {
	case part.long:
		r.Flags.Cut = rest
		r.Content = append(r.Content, call.Block{Text: fmt.Sprintf("%sline %d goes on; the next line is offset %d]",
			note(rest), part.from, part.from+1)})
	case rest > 0:
		if a.Limit == nil {
			r.Flags.Cut = rest
		}
		r.Content = append(r.Content, call.Block{Text: fmt.Sprintf("%slines %d to %d are shown; read on with offset %d]",
			note(rest), part.from, part.from+part.lines-1, part.from+part.lines)})
	}
	return r, nil
}

// note opens a note that ends in "]": n bytes are not shown.
func note(n int64) string { return strings.TrimSpace(call.CutMarker(n)) + " [" }

var errBinary = errors.New("binary")

// part is a piece of a file.
type part struct {
	text  []byte
	from  int64 // first line, from 1
	lines int64 // lines in text; where text is empty, lines of the file
	end   int64 // offset in the file after text
	long  bool  // text is the beginning of one line that is longer than room
}

// readLines reads whole lines, at most limit of them and room bytes, starting
// at line from. Memory is bounded by room. Where even the first line is longer,
// its beginning is what comes back.
func readLines(ctx context.Context, r io.Reader, from, limit int64, room int) (part, error) {
	p := part{from: from}
	br := bufio.NewReaderSize(r, 64<<10)
	if head, _ := br.Peek(sniff); bytes.IndexByte(head, 0) >= 0 {
		return p, errBinary
	}
	var at int64 // offset in the file
	line := int64(1)
	start := 0 // of the unfinished line in p.text
	for {
		chunk, err := br.ReadSlice('\n')
		at += int64(len(chunk))
		switch {
		case line < from:
			if at > maxSkip {
				return p, fmt.Errorf("line %d lies too far into the file: use search_files, or execute_command", from)
			}
		case len(p.text)+len(chunk) <= room:
			p.text = append(p.text, chunk...)
			if bytes.IndexByte(chunk, 0) >= 0 {
				return p, errBinary
			}
		case start > 0: // this line belongs to the next part
			p.text = p.text[:start]
			return p, nil
		default:
			take := room - len(p.text)
			for cut := take; cut > 0 && take-cut < utf8.UTFMax; cut-- {
				if utf8.RuneStart(chunk[cut]) {
					take = cut
					break
				}
			}
			p.text = append(p.text, chunk[:take]...)
			p.lines, p.long, p.end = 1, true, at-int64(len(chunk)-take)
			return p, nil
		}
		whole := len(chunk) > 0 && (err == nil || err == io.EOF)
		if whole && line >= from {
			p.lines++
			p.end, start = at, len(p.text)
			if p.lines == limit {
				return p, nil
			}
		}
		if whole {
			line++
		}
		if err == io.EOF {
			if p.lines == 0 {
				p.lines = line - 1
			}
			return p, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return p, err
		}
		if ctx.Err() != nil {
			return p, ctx.Err()
		}
	}
}

// count is an optional whole number from a request; JSON writes 2 as 2.0 too.
func count(n *float64, absent int64) int64 {
	if n == nil {
		return absent
	}
	return int64(min(max(*n, 1), 1<<53))
}

type listArgs struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
}

func (f *FileSet) listTool() call.Tool {
	return tool("list_files",
		"List a folder of the run's folder, one path a line, each usable as path of the other tools. Folders end in \"/\". "+
			"With recursive also what is in the folders below, nearest first; not inside .git and links.",
		`{"type":"object","properties":{"path":{"type":"string","description":"folder to list; without it the run's folder"},
"recursive":{"type":"boolean"}}}`,
		call.Read, f.list)
}

func (f *FileSet) list(ctx context.Context, a listArgs) (call.Result, error) {
	segs, err := f.segments(a.Path)
	if err != nil {
		return call.Result{}, explain(a.Path, err)
	}
	o := f.op()
	var b strings.Builder
	lines, more := 0, false
	complete, err := o.visit(ctx, segs, a.Recursive, func(_ *os.Root, way []string, t fs.FileMode) error {
		line := shown(path.Join(way...))
		switch {
		case t.IsDir():
			line += "/"
		case t&fs.ModeSymlink != 0:
			line += " (link)"
		case !t.IsRegular():
			line += " (special file)"
		}
		if o.guardAt(way) == private {
			line += " (protected)"
		}
		if lines == maxEntries || b.Len()+len(line)+1 > f.max-noteRoom {
			more = true
			return errEnough
		}
		lines++
		b.WriteString(line + "\n")
		return nil
	})
	if err != nil {
		return call.Result{}, explain(a.Path, err)
	}
	if lines == 0 && complete && !more {
		return call.Text("[the folder is empty]"), nil
	}
	r := call.Text(b.String())
	if more || !complete {
		r.Content = append(r.Content, call.Block{Text: fmt.Sprintf("[%d entries are shown, there are more: list a folder further down]", lines)})
	}
	return r, nil
}

// shown is a path as a line of a result. What could be taken for two lines, or
// can't be seen, is quoted; such a file can't be named in a request anyway.
func shown(p string) string {
	odd := func(r rune) bool {
		return unicode.IsControl(r) || r == '\\' || r == utf8.RuneError || r == '\u2028' || r == '\u2029'
	}
	if !utf8.ValidString(p) || strings.ContainsFunc(p, odd) || call.Invisible(p) {
		return strconv.QuoteToASCII(p)
	}
	return p
}

var errEnough = errors.New("enough")

// visit calls each for the entries of the folder that segs lead to, or for the
// file they lead to, sorted and with recursive level by level. dir is the open
// folder the entry is in and way its real path. Protected folders and .git are
// named and not entered, links named and not followed. complete is false where
// a limit ended it early; errEnough from each ends it without an error.
func (o *op) visit(ctx context.Context, segs []string, recursive bool,
	each func(dir *os.Root, way []string, t fs.FileMode) error,
) (complete bool, err error) {
	p, err := o.walk(ctx, segs, mode{})
	if err != nil {
		return false, err
	}
	defer p.close()
	if p.isDir() {
		left := maxVisit
		todo := [][]string{slices.Clone(p.segs)}
		p.close()
		complete = true
		for first := true; len(todo) > 0; first = false {
			way := todo[0]
			todo = todo[1:]
			folders, whole, err := o.visitOne(ctx, way, &left, each)
			switch {
			case errors.Is(err, errEnough):
				return complete, nil
			case ctx.Err() != nil:
				return false, ctx.Err()
			case err != nil && first:
				return false, err
			}
			complete = complete && whole
			if !recursive || left <= 0 {
				return complete, nil
			}
			todo = append(todo, folders...)
		}
		return complete, nil
	}
	if p.info == nil {
		return false, errMissing
	}
	if err := each(p.top(), p.path(), p.info.Mode().Type()); err != nil && !errors.Is(err, errEnough) {
		return false, err
	}
	return true, nil
}

// visitOne visits one folder and returns those in it that may be entered.
func (o *op) visitOne(ctx context.Context, way []string, left *int,
	each func(dir *os.Root, way []string, t fs.FileMode) error,
) (folders [][]string, whole bool, err error) {
	p, err := o.walk(ctx, way, mode{entry: true})
	if err != nil {
		return nil, false, err
	}
	defer p.close()
	if !p.isDir() || !slices.Equal(p.segs, way) {
		return nil, false, errNotDir
	}
	entries, err := entriesOf(ctx, p.top(), *left)
	if err != nil {
		return nil, false, err
	}
	whole = len(entries) < *left
	*left -= len(entries)
	for _, e := range entries {
		child := append(slices.Clone(way), e.Name())
		if err := each(p.top(), child, e.Type()); err != nil {
			return nil, whole, err
		}
		if name, _ := guardOf(key(e.Name())); e.IsDir() && name != ".git" && o.guardAt(child) != private {
			folders = append(folders, child)
		}
	}
	return folders, whole, nil
}

// entriesOf reads at most n entries of dir, sorted by name.
func entriesOf(ctx context.Context, dir *os.Root, n int) ([]fs.DirEntry, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []fs.DirEntry
	for len(all) < n && ctx.Err() == nil {
		some, err := f.ReadDir(min(1024, n-len(all)))
		all = append(all, some...)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return all, ctx.Err()
}
