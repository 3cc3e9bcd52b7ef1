package builtin

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

const maxEdit = 16 << 20 // bytes of a file that edit_file changes, before and after

type writeArgs struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

func (f *FileSet) writeTool() call.Tool {
	return tool("write_file",
		"Create a text file in the run's folder, or replace all of it. Missing folders are made. To change a part of a file use edit_file.",
		`{"type":"object","properties":{`+pathProperty+`,
"content":{"type":"string","description":"the whole new content"}},"required":["path","content"]}`,
		call.Write, f.write)
}

func (f *FileSet) write(ctx context.Context, a writeArgs) (call.Result, error) {
	f.writing.Lock()
	defer f.writing.Unlock()
	verb := "wrote"
	err := f.change(ctx, a.Path, mode{write: true, create: true}, func(_ *op, p *place) error {
		if p.isDir() {
			return errIsDir
		}
		if p.info == nil {
			verb = "created"
		}
		return replace(ctx, p, []byte(a.Content))
	})
	if err != nil {
		return call.Result{}, err
	}
	return call.Text(fmt.Sprintf("%s %s (%d bytes)", verb, a.Path, len(a.Content))), nil
}

type editArgs struct {
	Path string `json:"path"`
	Old  string `json:"old"`
	New  string `json:"new"`
	All  bool   `json:"all"`
}

func (f *FileSet) editTool() call.Tool {
	return tool("edit_file",
		"Replace text in a file of the run's folder. old must be exactly the text in the file, with its whitespace, and occur in it once; with all every occurrence is replaced.",
		`{"type":"object","properties":{`+pathProperty+`,
"old":{"type":"string","minLength":1,"description":"text to replace, exactly as in the file"},
"new":{"type":"string","description":"text to put in its place; empty removes it"},
"all":{"type":"boolean","description":"replace every occurrence"}},"required":["path","old","new"]}`,
		call.Write, f.edit)
}

func (f *FileSet) edit(ctx context.Context, a editArgs) (call.Result, error) {
	if a.Old == "" {
		return call.Errorf("old is empty: give the text to replace, or use write_file"), nil
	}
	if a.Old == a.New {
		return call.Errorf("old and new are the same: nothing to change"), nil
	}
	f.writing.Lock()
	defer f.writing.Unlock()
	found := 0
	err := f.change(ctx, a.Path, mode{write: true}, func(o *op, p *place) error {
		file, info, err := o.openAt(p)
		if err != nil {
			return err
		}
		defer file.Close()
		text, err := io.ReadAll(io.LimitReader(file, maxEdit+1))
		if err != nil {
			return err
		}
		found = bytes.Count(text, []byte(a.Old))
		size := len(text) + found*(len(a.New)-len(a.Old))
		switch {
		case len(text) > maxEdit:
			return fmt.Errorf("has %d bytes, too many to edit (limit %d)", info.Size(), maxEdit)
		case bytes.IndexByte(text[:min(len(text), sniff)], 0) >= 0:
			return errors.New("is a binary file and can't be edited")
		case found == 0 && bytes.Contains(text, []byte("\r\n")) && bytes.Contains(text, bytes.ReplaceAll([]byte(a.Old), []byte("\n"), []byte("\r\n"))):
			return errors.New("the text to replace is there with \\r\\n line ends: give old and new with \\r\\n")
		case found == 0:
			return errors.New("the text to replace was not found: old must be exactly the text in the file, with its whitespace; read_file shows it")
		case found > 1 && !a.All:
			return fmt.Errorf("the text to replace was found %d times: give more of the text around the one you mean, or set all", found)
		case size > maxEdit:
			return fmt.Errorf("would have %d bytes afterwards, more than the limit of %d", size, maxEdit)
		}
		p.info = info
		return replace(ctx, p, bytes.ReplaceAll(text, []byte(a.Old), []byte(a.New)))
	})
	if err != nil {
		return call.Result{}, err
	}
	if found == 1 {
		return call.Text("replaced 1 occurrence in " + a.Path), nil
	}
	return call.Text(fmt.Sprintf("replaced %d occurrences in %s", found, a.Path)), nil
}

type deleteArgs struct {
	Path string `json:"path"`
}

func (f *FileSet) deleteTool() call.Tool {
	return tool("delete_file",
		"Delete a file or an empty folder of the run's folder. Of a link the link itself is deleted.",
		`{"type":"object","properties":{`+pathProperty+`},"required":["path"]}`,
		call.Destructive, f.remove)
}

func (f *FileSet) remove(ctx context.Context, a deleteArgs) (call.Result, error) {
	f.writing.Lock()
	defer f.writing.Unlock()
	// Where a link leads decides as well: one that leads outside, or to what is
	// protected, is not for this run to remove.
	err := f.change(ctx, a.Path, mode{write: true}, func(*op, *place) error { return nil })
	if err == nil {
		err = f.change(ctx, a.Path, mode{write: true, entry: true}, removeEntry)
	}
	if err != nil {
		return call.Result{}, err
	}
	return call.Text("deleted " + a.Path), nil
}

func removeEntry(_ *op, p *place) error {
	dir, name := p.top(), p.name
	if p.isDir() {
		if entries, err := entriesOf(context.Background(), dir, 1); err == nil && len(entries) > 0 {
			return errors.New("is a folder and not empty: delete what is in it first")
		}
		dir, name = p.dirs[len(p.dirs)-2], p.segs[len(p.segs)-1]
	} else if p.info == nil {
		return errMissing
	}
	return dir.Remove(name)
}

// change walks to path and does act there, again where the place moved
// meanwhile. Its error is in words.
func (f *FileSet) change(ctx context.Context, path string, m mode, act func(*op, *place) error) error {
	segs, err := f.segments(path)
	if err == nil && len(segs) == 0 {
		err = errRefused
	}
	if err != nil {
		return explain(path, err)
	}
	o := f.op()
	for range maxTries {
		var p *place
		if p, err = o.walk(ctx, segs, m); err != nil {
			break
		}
		if len(p.path()) == 0 { // through a link
			err = errRefused
		} else {
			err = act(o, p)
		}
		p.close()
		if !errors.Is(err, errMoved) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return explain(path, err)
	}
	return nil
}

// replace gives the file at p, which may be missing, this content. The content
// goes to a new file in the same folder which then takes the place of the old
// one: after a crash there is the old content or the new, and beside it perhaps
// a file .drawbridge-*.tmp. A hard link elsewhere keeps the old content. A link
// that comes to lie at p meanwhile is not followed. The permissions stay; a file
// its owner may not write is left alone.
func replace(ctx context.Context, p *place, content []byte) error {
	return replaceBy(ctx, p, content, tempName())
}

// tempName can't be foreseen, so nothing can be put in its place.
func tempName() string {
	random := make([]byte, 8)
	rand.Read(random)
	return ".drawbridge-" + hex.EncodeToString(random) + ".tmp"
}

// replaceBy replaces through the file temp, which it creates.
func replaceBy(ctx context.Context, p *place, content []byte, temp string) (err error) {
	perm := fs.FileMode(0o666)
	if p.info != nil {
		perm = p.info.Mode().Perm()
		if perm&0o200 == 0 {
			return errors.New("is read-only")
		}
	}
	dir := p.top()
	// Exclusive creation follows no link and takes over no file that someone
	// put there.
	file, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			file.Close()
			dir.Remove(temp)
		}
	}()
	if _, err := file.Write(content); err != nil {
		return err
	}
	if p.info != nil {
		if err := file.Chmod(perm); err != nil { // the umask took some away
			return err
		}
	}
	// Without it a power cut can leave the new name with no content.
	if err := file.Sync(); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if now, err := dir.Lstat(p.name); !unchanged(p.info, now, err) {
		return errMoved
	}
	return dir.Rename(temp, p.name)
}

// unchanged reports whether what Lstat said (now, err) is still the file, or
// the lack of one, that was seen before.
func unchanged(before, now fs.FileInfo, err error) bool {
	if before == nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return err == nil && os.SameFile(before, now) && now.Mode().IsRegular() &&
		before.Size() == now.Size() && before.ModTime().Equal(now.ModTime())
}
