package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// info is one line of the process table, /proc/PID/stat of proc(5).
type info struct {
	pid, ppid, sid int
	name           string
	state          byte
	threads        int
	start          uint64 // ticks since boot; with the pid it names a process for good
}

// dead reports whether nothing of the process runs any more. One whose first
// thread has ended shows as a zombie while the others run.
func (p info) dead() bool {
	return p.state == 'X' || p.state == 'x' || p.state == 'Z' && p.threads <= 1
}

// victim is a process that was sent KILL.
type victim struct {
	pid  int
	name string
}

// readProc reads a file of /proc into buf, growing it. The result is valid
// until the next call with the same buffer.
func readProc(path string, buf []byte) ([]byte, error) {
	var fd int
	var err error
	for {
		if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return buf[:0], err
	}
	defer unix.Close(fd)
	buf = buf[:0]
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, max(cap(buf), 4096))
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		switch {
		case err == unix.EINTR:
		case err != nil || n == 0:
			return buf, err
		default:
			buf = buf[:len(buf)+n]
		}
	}
}

// parseStat reads the fields of /proc/PID/stat that are needed. The name may
// hold anything, blanks and parentheses too, so the fields are counted from
// the last one.
func parseStat(b []byte) (p info, ok bool) {
	open, shut := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || shut < open {
		return p, false
	}
	f := bytes.Fields(b[shut+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return p, false
	}
	var err error
	num := func(s []byte) int {
		n, e := strconv.Atoi(string(s))
		err = errors.Join(err, e)
		return n
	}
	p = info{pid: num(bytes.TrimSpace(b[:open])), name: string(b[open+1 : shut]), state: f[0][0],
		ppid: num(f[1]), sid: num(f[3]), threads: num(f[17])}
	start, e := strconv.ParseUint(string(f[19]), 10, 64)
	p.start = start
	return p, err == nil && e == nil
}

func lookup(pid int) (info, bool) {
	b, err := readProc("/proc/"+strconv.Itoa(pid)+"/stat", make([]byte, 0, 512))
	if err != nil {
		return info{}, false
	}
	return parseStat(b)
}

// pids are the process ids in the table.
func pids() ([]string, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	return slices.DeleteFunc(names, func(n string) bool { return n[0] < '1' || n[0] > '9' }), err
}

// snapshot is the process table. It is not atomic: a process that is born or
// ends meanwhile may be missing, so whoever kills repeats until none is left.
func snapshot() ([]info, error) {
	names, err := pids()
	if err != nil {
		return nil, err
	}
	all := make([]info, 0, len(names))
	buf := make([]byte, 0, 1024)
	for _, n := range names {
		if buf, err = readProc("/proc/"+n+"/stat", buf); err != nil {
			continue
		}
		if p, ok := parseStat(buf); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// below adds to set everything in all whose ancestor is in set. It does not
// look below, or add, the process except.
func below(all []info, set map[int]bool, except int) {
	children := make(map[int][]int, len(all))
	for _, p := range all {
		children[p.ppid] = append(children[p.ppid], p.pid)
	}
	todo := make([]int, 0, len(set))
	for pid := range set {
		todo = append(todo, pid)
	}
	for len(todo) > 0 {
		pid := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, c := range children[pid] {
			if c != except && !set[c] {
				set[c] = true
				todo = append(todo, c)
			}
		}
	}
}

// descendants are the living processes below root, root left out.
func descendants(root int) ([]info, map[int]bool, error) {
	all, err := snapshot()
	if err != nil {
		return nil, nil, err
	}
	set := map[int]bool{root: true}
	below(all, set, 0)
	return slices.DeleteFunc(all, func(p info) bool {
		return p.pid == root || !set[p.pid] || p.dead()
	}), set, nil
}

// signal sends sig to the process p was read from, and to no other. The pid may
// have been given to another process since, so a descriptor of it is opened
// first and the table read again after: while the descriptor's process is
// there, what stands under its pid is its own. ours has the last word on it. A
// process that is gone, or not ours, is ESRCH.
func (p info) signal(sig unix.Signal, ours func(now info) bool) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, ok := lookup(p.pid)
	if !ok || now.start != p.start || !ours(now) {
		return unix.ESRCH
	}
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		return err
	}
	// A stopped process acts on a signal other than KILL when it goes on.
	if now.state == 'T' && sig != unix.SIGKILL {
		return unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
	}
	return nil
}

// marked reports whether the process was started with marker in its
// environment. It can't see into other users' processes unless run by root.
func (p info) marked(marker string, buf *[]byte) bool {
	return p.carries(buf, func(environ []byte) bool { return hasVariable(environ, MarkerEnv+"="+marker) })
}

// markedUnder is marked also for the markers below marker: "run/1" is below
// "run".
func (p info) markedUnder(marker string, buf *[]byte) bool {
	return p.carries(buf, func(environ []byte) bool {
		return hasVariable(environ, MarkerEnv+"="+marker) || hasPrefix(environ, MarkerEnv+"="+marker+"/")
	})
}

func (p info) carries(buf *[]byte, match func(environ []byte) bool) bool {
	dir := "/proc/" + strconv.Itoa(p.pid)
	files := []string{dir + "/environ"}
	if p.state == 'Z' && p.threads > 1 {
		// The first thread has ended, and the environment shows at the others.
		files, _ = filepath.Glob(dir + "/task/*/environ")
	}
	for _, f := range files {
		var err error
		if *buf, err = readProc(f, *buf); err == nil && match(*buf) {
			return true
		}
	}
	return false
}

// anyMarked reports whether there may be a process with the marker besides this
// one. It reads half of what a sweep does, as nearly always there is none.
func anyMarked(marker string) bool {
	names, err := pids()
	if err != nil {
		return true
	}
	self := strconv.Itoa(os.Getpid())
	var buf []byte
	for _, n := range names {
		if n == self {
			continue
		}
		if buf, err = readProc("/proc/"+n+"/environ", buf); err == nil && hasVariable(buf, MarkerEnv+"="+marker) {
			return true
		}
	}
	return false
}

// hasVariable reports whether variable is one of the NUL-ended strings in environ.
func hasVariable(environ []byte, variable string) bool {
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if string(v) == variable {
			return true
		}
	}
	return false
}

// hasPrefix reports whether one of the NUL-ended strings in environ begins with
// prefix.
func hasPrefix(environ []byte, prefix string) bool {
	return bytes.HasPrefix(environ, []byte(prefix)) || bytes.Contains(environ, append([]byte{0}, prefix...))
}

// sweepLimit is how long a sweep waits for what it has killed to be gone.
const sweepLimit = 10 * time.Second

// sweep kills every process match says yes to, everything below those and
// everything in a session one of them leads, until none is left. It leaves
// out the calling process, and what is below it unless match says yes: where
// the caller is a subreaper, orphans of the tree are its children.
func sweep(match func(info) bool) (killed []victim, err error) {
	self := os.Getpid()
	hit := map[int]uint64{} // start times: what is dying shows no environment
	deadline := time.Now().Add(sweepLimit)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		all, err := snapshot()
		if err != nil {
			return killed, err
		}
		mine := map[int]bool{self: true}
		below(all, mine, 0)
		set := map[int]bool{}
		for _, p := range all {
			if p.pid != self && !p.dead() && (p.start == hit[p.pid] || match(p)) {
				set[p.pid] = true
			}
		}
		if len(set) == 0 {
			return killed, nil
		}
		below(all, set, self)
		for n := 0; n != len(set); {
			n = len(set)
			for _, p := range all {
				// A member of a session descends from its leader.
				if set[p.sid] && !mine[p.pid] {
					set[p.pid] = true
				}
			}
			below(all, set, self)
		}
		ours := func(now info) bool { return set[now.ppid] || set[now.sid] || hit[now.pid] == now.start || match(now) }
		var left []string
		denied := true // to all that is left
		for _, p := range all {
			if !set[p.pid] || p.dead() {
				continue
			}
			err := p.signal(unix.SIGKILL, ours)
			if err == nil && hit[p.pid] != p.start {
				hit[p.pid] = p.start
				killed = append(killed, victim{p.pid, printable(p.name)})
			}
			denied = denied && err == unix.EPERM
			if len(left) < maxNames {
				left = append(left, fmt.Sprintf("%s (pid %d)", printable(p.name), p.pid))
			}
		}
		if len(left) > 0 && (denied || time.Now().After(deadline)) {
			return killed, fmt.Errorf("can't end %s", strings.Join(left, ", "))
		}
		time.Sleep(pause)
	}
}

// Sweep kills every process whose environment has in MarkerEnv the marker, or
// one that begins with it and a slash, with everything below it, until none is left or 10 s are over, and returns the
// process ids it killed. It is for a tree whose helper is gone: TERM is not
// tried. The environment counts as it was when the process last executed a program; a
// process of another user is found only by root. The calling process is never
// hit, nor a child of it that does not carry the marker. The error names what could not be killed.
func Sweep(marker string) (killed []int, err error) {
	if marker == "" {
		return nil, errors.New("can't sweep for an empty marker")
	}
	var buf []byte
	victims, err := sweep(func(p info) bool { return p.markedUnder(marker, &buf) })
	for _, v := range victims {
		killed = append(killed, v.pid)
	}
	return killed, err
}

// Alive returns the living processes that Sweep would end, a tree's helper
// among them.
func Alive(marker string) []int {
	all, err := snapshot()
	if err != nil || marker == "" {
		return nil
	}
	var buf []byte
	var alive []int
	for _, p := range all {
		if !p.dead() && p.markedUnder(marker, &buf) {
			alive = append(alive, p.pid)
		}
	}
	return alive
}

// maxNames is how many processes a message or a list names.
const maxNames = 16

// printable makes a name that a process chose fit for a message.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(name, "?"))
}
