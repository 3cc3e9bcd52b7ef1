package builtin

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	maxLinks = 40   // Linux follows as many
	maxSteps = 1024 // names looked at in one walk
	maxTries = 16   // walks, when what is walked on keeps changing
)

// mode says what a walk is for.
type mode struct {
	write  bool // the file will be changed
	create bool // missing folders on the way are made
	entry  bool // a link as the last name is meant itself
}

// place is where a walk ended.
type place struct {
	dirs []*os.Root // from the run's folder (not ours to close) down, one for each of segs and one more
	segs []string   // the real names of dirs[1:], links resolved
	name string     // in the last of dirs; "" where the path is that folder itself
	info fs.FileInfo
}

func (p *place) top() *os.Root { return p.dirs[len(p.dirs)-1] }

func (p *place) isDir() bool { return p.name == "" }

// path is the real path below the folder.
func (p *place) path() []string {
	if p.isDir() {
		return p.segs
	}
	return append(slices.Clone(p.segs), p.name)
}

func (p *place) close() {
	for _, d := range p.dirs[1:] {
		d.Close()
	}
	p.dirs = p.dirs[:1]
}

func (p *place) pop() {
	p.top().Close()
	p.dirs = p.dirs[:len(p.dirs)-1]
	p.segs = p.segs[:len(p.segs)-1]
}

// op is one tool call's work on the folder.
type op struct {
	*FileSet
	same []fs.FileInfo // what the protected paths are at the moment
}

func (f *FileSet) op() *op {
	o := &op{FileSet: f}
	for _, p := range f.protected {
		if info, err := os.Stat(p); err == nil {
			o.same = append(o.same, info)
		}
	}
	return o
}

func (o *op) refuses(segs []string, m mode) bool {
	g := o.guardAt(segs)
	return g == private || g == readOnly && m.write
}

func (o *op) protects(info fs.FileInfo) bool {
	return slices.ContainsFunc(o.same, func(p fs.FileInfo) bool { return os.SameFile(p, info) })
}

// walk leads to where segs lead. The caller closes the place.
func (o *op) walk(ctx context.Context, segs []string, m mode) (*place, error) {
	for range maxTries {
		p, err := o.walkOnce(segs, m)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, errMoved) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, errMoved
}

func (o *op) walkOnce(segs []string, m mode) (_ *place, err error) {
	if o.refuses(segs, m) {
		return nil, errRefused
	}
	p := &place{dirs: []*os.Root{o.root}}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	todo, links := segs, 0
	for range maxSteps {
		if len(todo) == 0 {
			return p, o.admit(p, nil, m)
		}
		seg := todo[0]
		if seg == ".." { // only ever out of a link
			if len(p.segs) == 0 {
				return nil, errRefused
			}
			p.pop()
			todo = todo[1:]
			continue
		}
		if err := o.admit(p, todo[:1], m); err != nil {
			return nil, err
		}
		last := len(todo) == 1
		info, err := p.top().Lstat(seg)
		switch {
		case errors.Is(err, fs.ErrNotExist) && last:
			p.name = seg
			return p, nil
		case errors.Is(err, fs.ErrNotExist) && m.create && !slices.Contains(todo, ".."):
			if err := o.admit(p, todo, m); err != nil {
				return nil, err
			}
			if err := p.top().Mkdir(seg, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
		case err != nil:
			return nil, err
		case info.IsDir():
			if len(p.segs) >= maxDepth {
				return nil, errRefused
			}
			sub, info, err := enter(p.top(), seg)
			if err != nil {
				return nil, err
			}
			p.dirs, p.segs, todo = append(p.dirs, sub), append(p.segs, seg), todo[1:]
			if o.protects(info) {
				return nil, errRefused
			}
		case info.Mode()&fs.ModeSymlink != 0 && (!last || !m.entry):
			if links++; links > maxLinks {
				return nil, errRefused
			}
			target, err := p.top().Readlink(seg)
			if err != nil {
				return nil, errMoved
			}
			names, absolute, err := o.linkNames(target)
			if err != nil {
				return nil, err
			}
			for absolute && len(p.segs) > 0 {
				p.pop()
			}
			todo = append(names, todo[1:]...)
		case !last:
			return nil, errNotDir
		default:
			if special := !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0; special || o.protects(info) {
				return nil, errRefused
			}
			p.name, p.info = seg, info
			return p, nil
		}
	}
	return nil, errRefused
}

// admit refuses the names todo below p where they are protected or where
// creating them would make a repository.
func (o *op) admit(p *place, todo []string, m mode) error {
	way := append(slices.Clone(p.segs), todo...)
	if o.refuses(way, m) {
		return errRefused
	}
	if !m.write {
		return nil
	}
	for i, dir := range p.dirs {
		next := ""
		if i < len(way) {
			next = key(way[i])
		}
		if repository(dir, next) {
			return errRefused
		}
	}
	return nil
}

// repository reports whether git would take dir for a repository without a
// working tree once it has an entry called next: it then obeys the
// configuration and the hooks that lie in it (gitrepository-layout(5)).
func repository(dir *os.Root, next string) bool {
	has := func(name string) bool {
		if next == key(name) {
			return true
		}
		_, err := dir.Lstat(name)
		return err == nil
	}
	return has("HEAD") && (has("commondir") || has("objects") && has("refs"))
}

// linkNames splits a link's target. absolute says that it starts at the run's
// folder instead of at the link.
func (f *FileSet) linkNames(target string) (names []string, absolute bool, err error) {
	target = filepath.ToSlash(target)
	if strings.HasPrefix(target, "/") {
		if target, absolute = f.inside(target); !absolute {
			return nil, false, errRefused
		}
	} else if filepath.VolumeName(target) != "" {
		return nil, false, errRefused
	}
	for _, n := range strings.Split(target, "/") {
		if n != "" && n != "." {
			names = append(names, n)
		}
	}
	return names, absolute, nil
}

// enter opens the folder name in dir, which must be one and not a link to one:
// os.Root would follow a link that took its place, past the guard. The entry is
// looked at after it was opened and must be what was opened.
func enter(dir *os.Root, name string) (*os.Root, fs.FileInfo, error) {
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, nil, moved(dir, name, err)
	}
	got, err := sub.Stat(".")
	if err != nil {
		sub.Close()
		return nil, nil, err
	}
	if now, err := dir.Lstat(name); err != nil || !now.IsDir() || !os.SameFile(got, now) {
		sub.Close()
		return nil, nil, errMoved
	}
	return sub, got, nil
}

// open opens the regular file name in dir, likewise. Without O_NONBLOCK a FIFO
// that took the file's place would keep the call waiting for a writer.
func open(dir *os.Root, name string) (*os.File, fs.FileInfo, error) {
	file, err := dir.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, nil, moved(dir, name, err)
	}
	got, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	if now, err := dir.Lstat(name); err != nil || !now.Mode().IsRegular() || !os.SameFile(got, now) {
		file.Close()
		return nil, nil, errMoved
	}
	return file, got, nil
}

// moved is errMoved where opening failed because the entry became another kind
// of thing, or went, after it was seen.
func moved(dir *os.Root, name string, err error) error {
	if info, lerr := dir.Lstat(name); lerr != nil || info.Mode()&fs.ModeSymlink != 0 {
		return errMoved
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrClosed) {
		return err
	}
	return bare(err)
}

// openFile walks to a regular file and opens it.
func (o *op) openFile(ctx context.Context, segs []string) (*os.File, fs.FileInfo, *place, error) {
	for range maxTries {
		p, err := o.walk(ctx, segs, mode{})
		if err != nil {
			return nil, nil, nil, err
		}
		file, info, err := o.openAt(p)
		p.close()
		if !errors.Is(err, errMoved) {
			return file, info, p, err
		}
	}
	return nil, nil, nil, errMoved
}

// openAt opens the regular file a walk led to.
func (o *op) openAt(p *place) (*os.File, fs.FileInfo, error) {
	if p.isDir() {
		return nil, nil, errIsDir
	}
	if p.info == nil {
		return nil, nil, errMissing
	}
	file, info, err := open(p.top(), p.name)
	if err == nil && o.protects(info) {
		file.Close()
		return nil, nil, errRefused
	}
	return file, info, err
}
