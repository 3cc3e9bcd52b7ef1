package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"
)

// chain makes a valid record of the given lines after an Open.
func chain(records ...Record) []byte {
	run := testRun
	run.Version = Version
	all := append([]Record{{Kind: Open, Run: &run}}, records...)
	var out []byte
	prev, count := zeroHash, map[string]int64{}
	for i, r := range all {
		r.Seq, r.Prev, r.Time = int64(i+1), prev, time.Unix(int64(1000+i), 0).UTC()
		if r.Kind == Close && r.Totals == nil {
			r.Totals = count
		}
		line := appendLine(nil, &r)
		count[string(r.Kind)]++
		prev = hashLine(line)
		out = append(append(out, line...), '\n')
	}
	return out
}

func headOf(b []byte) string {
	ls := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	return hashLine(ls[len(ls)-1])
}

var sample = []Record{
	{Kind: Begin, Tool: "a", Decision: "allow", Arguments: json.RawMessage(`{"x":1}`)},
	{Kind: End, Call: 2, Outcome: OK},
	{Kind: Refused, Tool: "b", Decision: "deny"},
	{Kind: Begin, Tool: "c", Decision: "allow"},
	{Kind: Note, What: "ready"},
	{Kind: End, Call: 5, Outcome: Error},
	{Kind: Close},
}

func TestVerifyNamesTheLine(t *testing.T) {
	good := chain(sample...)
	head := headOf(good)
	sub := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte {
			if !bytes.Contains(b, []byte(old)) {
				panic(old)
			}
			return bytes.Replace(b, []byte(old), []byte(new), 1)
		}
	}
	lines := func(f func(ls [][]byte) [][]byte) func([]byte) []byte {
		return func(b []byte) []byte {
			return bytes.Join(f(slices.Clone(bytes.SplitAfter(b, []byte("\n")))), nil)
		}
	}
	forged := func(seq int64, prev string, r Record) []byte {
		r.Seq, r.Prev, r.Time = seq, prev, time.Unix(0, 0).UTC()
		return append(appendLine(nil, &r), '\n')
	}
	prevOf := func(ls [][]byte, n int) string { return hashLine(bytes.TrimSuffix(ls[n-2], []byte("\n"))) }
	for name, c := range map[string]struct {
		mutate   func([]byte) []byte
		bad      int64
		headOnly bool // not visible without the head
	}{
		"changed":       {sub(`"tool":"b"`, `"tool":"B"`), 4, false},
		"changed first": {sub(`"user":"u1"`, `"user":"u2"`), 1, false},
		"changed last":  {sub(`:47Z`, `:48Z`), 8, true},
		"changed prev": {lines(func(ls [][]byte) [][]byte {
			ls[3] = sub(`"prev":"`+prevOf(ls, 4), `"prev":"`+zeroHash)(ls[3])
			return ls
		}), 4, false},
		"changed seq":          {sub(`{"seq":4`, `{"seq":9`), 4, false},
		"duplicate key":        {sub(`"tool":"b"`, `"tool":"b","tool":"x"`), 4, false},
		"duplicate key before": {sub(`"tool":"b"`, `"tool":"x","tool":"b"`), 4, false},
		"unknown member":       {sub(`"tool":"b"`, `"tool":"b","note":"x"`), 4, false},
		"case variant":         {sub(`"tool":"b"`, `"Tool":"b"`), 4, false},
		"escaped key":          {sub(`"tool":"b"`, `"\u0074ool":"b"`), 4, false},
		"escaped value":        {sub(`"tool":"b"`, `"tool":"\u0062"`), 4, false},
		"white space":          {sub(`"tool":"b"`, `"tool": "b"`), 4, false},
		"trailing space":       {lines(func(ls [][]byte) [][]byte { ls[3] = sub("}\n", "} \n")(ls[3]); return ls }), 4, false},
		"CRLF":                 {lines(func(ls [][]byte) [][]byte { ls[3] = sub("\n", "\r\n")(ls[3]); return ls }), 4, false},
		"blank line":           {lines(func(ls [][]byte) [][]byte { return slices.Insert(ls, 3, []byte("\n")) }), 4, false},
		"byte order mark":      {func(b []byte) []byte { return append([]byte("\xEF\xBB\xBF"), b...) }, 1, false},
		"null member":          {sub(`"tool":"b"`, `"tool":"b","layer":null`), 4, false},
		"duplicate argument":   {sub(`{"x":1}`, `{"x":1,"x":2}`), 2, false},
		"second value":         {sub(`"tool":"b"`, `"tool":"b"} {"x":1`), 4, false},
		"unknown kind":         {sub(`"kind":"note"`, `"kind":"nota"`), 6, false},
		"removed":              {lines(func(ls [][]byte) [][]byte { return slices.Delete(ls, 3, 4) }), 4, false},
		"removed first":        {lines(func(ls [][]byte) [][]byte { return slices.Delete(ls, 0, 1) }), 1, false},
		"removed last":         {lines(func(ls [][]byte) [][]byte { return slices.Delete(ls, 7, 8) }), 8, true},
		"removed end":          {lines(func(ls [][]byte) [][]byte { return slices.Delete(ls, 4, 8) }), 5, true},
		"doubled":              {lines(func(ls [][]byte) [][]byte { return slices.Insert(ls, 3, ls[3]) }), 5, false},
		"doubled first":        {lines(func(ls [][]byte) [][]byte { return slices.Insert(ls, 0, ls[0]) }), 2, false},
		"doubled last":         {lines(func(ls [][]byte) [][]byte { return slices.Insert(ls, 7, ls[7]) }), 9, false},
		"swapped":              {lines(func(ls [][]byte) [][]byte { ls[2], ls[3] = ls[3], ls[2]; return ls }), 3, false},
		"moved to the end":     {lines(func(ls [][]byte) [][]byte { x := ls[2]; return slices.Insert(slices.Delete(ls, 2, 3), 6, x) }), 3, false},
		"added": {lines(func(ls [][]byte) [][]byte {
			return slices.Insert(ls, 3, forged(4, prevOf(ls, 4), Record{Kind: Note, What: "x"}))
		}), 4, false},
		"added unchained": {lines(func(ls [][]byte) [][]byte {
			return slices.Insert(ls, 3, forged(4, zeroHash, Record{Kind: Note, What: "x"}))
		}), 4, false},
		"added close": {lines(func(ls [][]byte) [][]byte {
			return slices.Insert(ls, 3, forged(4, prevOf(ls, 4), Record{Kind: Close, Totals: map[string]int64{"open": 1, "begin": 1, "end": 1}}))
		}), 4, false},
		"added open": {lines(func(ls [][]byte) [][]byte {
			return slices.Insert(ls, 3, forged(4, prevOf(ls, 4), Record{Kind: Open, Run: &Run{Version: 1, Scope: []string{}}}))
		}), 4, false},
		"added before the last": {lines(func(ls [][]byte) [][]byte {
			return slices.Insert(ls, 7, forged(8, prevOf(ls, 8), Record{Kind: Note, What: "x"}))
		}), 8, true},
		"after the close":      {func(b []byte) []byte { return append(b, forged(9, headOf(b), Record{Kind: Note})...) }, 9, false},
		"torn after the close": {func(b []byte) []byte { return append(b, '{') }, 9, false},
		"emptied":              {func([]byte) []byte { return nil }, 1, false},
		"written anew":         {func([]byte) []byte { return chain(sample[0], sample[1], Record{Kind: Close}) }, 4, true},
		"too long":             {lines(func(ls [][]byte) [][]byte { ls[3] = append(bytes.Repeat([]byte(" "), MaxLine+1), ls[3]...); return ls }), 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := c.mutate(bytes.Clone(good))
			rep := verify(t, b, head)
			if rep.FirstBad != c.bad || !strings.Contains(rep.Problem, fmt.Sprintf("line %d ", c.bad)) {
				t.Errorf("with the head: first bad %d (%s), want %d", rep.FirstBad, rep.Problem, c.bad)
			}
			rep = verify(t, b, "")
			if !c.headOnly && (rep.FirstBad != c.bad || rep.Problem == "") {
				t.Errorf("without it: first bad %d (%s), want %d", rep.FirstBad, rep.Problem, c.bad)
			}
		})
	}
}

// What only its own content gives away: every chain here is sound.
func TestVerifyJudgesARechainedRecord(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		bad  int64
		want string
	}{
		"second open":      {chain(Record{Kind: Open, Run: &Run{Version: 1, Scope: []string{}}}), 2, "second time"},
		"end without call": {chain(Record{Kind: End, Call: 7, Outcome: OK}), 2, "not open"},
		"end twice":        {chain(sample[0], sample[1], sample[1]), 4, "not open"},
		"answer to none":   {chain(Record{Kind: Answer, Call: 1}), 2, "not open"},
		"wrong totals":     {chain(sample[0], Record{Kind: Close, Totals: map[string]int64{"open": 1}}), 3, "counts 0"},
		"totals too early": {chain(Record{Kind: Note, Totals: map[string]int64{"open": 1}}), 2, "members"},
		"run too late":     {chain(Record{Kind: Note, Run: &Run{Scope: []string{}}}), 2, "members"},
		"unknown kind":     {chain(Record{Kind: "allowed"}), 2, "no known kind"},
		"after close":      {chain(Record{Kind: Close}, Record{Kind: Note}), 3, "after the close"},
		"two closes":       {chain(Record{Kind: Close}, Record{Kind: Close}), 3, "after the close"},
	} {
		rep := verify(t, c.b, headOf(c.b))
		if rep.FirstBad != c.bad || !strings.Contains(rep.Problem, c.want) {
			t.Errorf("%s: %d, %q", name, rep.FirstBad, rep.Problem)
		}
	}
	// A line that says more than a record can, or says it twice: whoever
	// chained it anew could show one reader this and another one that.
	for _, more := range []string{`,"tool":"y"`, `,"note":"y"`, `,"Tool":"y"`, `,"layer":""`, ` `} {
		r := Record{Seq: 2, Prev: headOf(chain()), Time: time.Unix(0, 0).UTC(), Kind: Refused, Tool: "x"}
		line := bytes.TrimSuffix(appendLine(nil, &r), []byte("}"))
		line = append(append(line, more...), '}')
		b := append(append(chain(), line...), '\n')
		if rep := verify(t, b, hashLine(line)); rep.FirstBad != 2 || !strings.Contains(rep.Problem, "another reader") {
			t.Errorf("%s: %d, %q", more, rep.FirstBad, rep.Problem)
		}
	}
	newer := bytes.Replace(chain(), []byte(`"run":{"version":1`), []byte(`"run":{"version":2`), 1)
	if rep := verify(t, newer, ""); !strings.Contains(rep.Problem, "format 2") {
		t.Errorf("newer format: %q", rep.Problem)
	}
	if rep := verify(t, chain(Record{Kind: End, Outcome: Unrecorded}), ""); rep.Problem != "" {
		t.Errorf("a call whose beginning could not be written: %q", rep.Problem)
	}
}

func TestVerifyHead(t *testing.T) {
	b := chain(sample...)
	head := headOf(b)
	if rep := verify(t, b, strings.ToUpper(head)); rep.Problem != "" || rep.Head != head {
		t.Errorf("%+v", rep)
	}
	for _, h := range []string{"x", head[:63], head + "0", " " + head, strings.Repeat("g", 64)} {
		if rep := verify(t, b, h); !strings.Contains(rep.Problem, "hex digits") {
			t.Errorf("head %q: %+v", h, rep)
		}
	}
	if rep := verify(t, b, zeroHash); rep.FirstBad != 8 {
		t.Errorf("another head: %+v", rep)
	}
	early := hashLine(bytes.Split(b, []byte("\n"))[2])
	if rep := verify(t, b, early); rep.FirstBad != 4 || !strings.Contains(rep.Problem, "that of line 3") {
		t.Errorf("an early head: %+v", rep)
	}
}

func TestVerifyUnfinished(t *testing.T) {
	ask := Record{Kind: Begin, Decision: "ask"}
	rep := verify(t, chain(ask, Record{Kind: Answer, Call: 2, Decision: "allow"}, ask, Record{Kind: Answer, Call: 4, Decision: "deny"},
		ask, Record{Kind: Refused, Call: 6}, ask), "")
	if !slices.Equal(rep.Unfinished, []int64{2, 8}) || rep.Closed || rep.Problem != "" {
		t.Errorf("%+v", rep)
	}
}

// A kill leaves a record cut at any byte: that is recognised, is no problem
// by itself, and does not pass for the whole where the head is known.
func TestTornAtEveryByte(t *testing.T) {
	b := chain(sample...)
	head := headOf(b)
	for n := range len(b) {
		whole := int64(bytes.Count(b[:n], []byte("\n")))
		rep := verify(t, b[:n], "")
		torn := n > 0 && b[n-1] != '\n'
		if n == 0 {
			if rep.FirstBad != 1 {
				t.Errorf("empty: %+v", rep)
			}
			continue
		}
		if rep.Torn != torn || rep.Closed || rep.Problem != "" || rep.Lines != whole {
			t.Fatalf("cut at %d: %+v", n, rep)
		}
		if rep := verify(t, b[:n], head); rep.FirstBad != whole+1 {
			t.Fatalf("cut at %d, head known: %+v", n, rep)
		}
		count := int64(0)
		if err := Read(bytes.NewReader(b[:n]), func(Record) error { count++; return nil }); err != nil || count != whole {
			t.Fatalf("cut at %d: read %d lines, %v", n, count, err)
		}
	}
	lost := append(chain(sample[:6]...), "\x00\x00\x00\x00}\n"...)
	if rep := verify(t, lost, ""); !rep.Torn || rep.Problem != "" || rep.Lines != 7 {
		t.Errorf("lost blocks: %+v", rep)
	}
}

func TestVerifyErrorIsTheReaders(t *testing.T) {
	boom := errors.New("boom")
	for _, n := range []int{0, 10, 700} {
		r := io.MultiReader(bytes.NewReader(chain(sample...)[:n]), iotest.ErrReader(boom))
		if _, err := Verify(r, ""); !errors.Is(err, boom) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	if _, err := Verify(iotest.OneByteReader(bytes.NewReader(chain(sample...))), ""); err != nil {
		t.Error(err)
	}
}

func TestReadStops(t *testing.T) {
	stop := errors.New("enough")
	n := 0
	err := Read(bytes.NewReader(chain(sample...)), func(r Record) error {
		if n++; r.Seq == 3 {
			return stop
		}
		return nil
	})
	if err != stop || n != 3 {
		t.Errorf("%v after %d", err, n)
	}
	err = Read(strings.NewReader("{}\n"), func(Record) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("%v", err)
	}
}

// Any one mutation of any valid record is found, at the right line.
func TestAnyMutationIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var records []Record
		var open []int64
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			r := anyRecord().Draw(t, "record")
			r.Call = 0
			if r.Kind == End || r.Kind == Answer {
				if len(open) == 0 {
					continue
				}
				r.Call = open[len(open)-1]
				if r.Kind == End {
					open = open[:len(open)-1]
				}
			}
			if r.Kind == Begin {
				open = append(open, int64(len(records)+2))
			}
			records = append(records, r)
		}
		records = append(records, Record{Kind: Close})
		good := chain(records...)
		head := headOf(good)
		if rep, err := Verify(bytes.NewReader(good), head); err != nil || rep.Problem != "" || !rep.Closed {
			t.Fatalf("the original: %+v", rep)
		}
		ls := bytes.SplitAfter(good, []byte("\n"))
		ls = ls[:len(ls)-1]
		i := rapid.IntRange(0, len(ls)-1).Draw(t, "line")
		j := rapid.IntRange(0, len(ls)-1).Draw(t, "other")
		want := int64(i + 1)
		switch rapid.IntRange(0, 5).Draw(t, "mutation") {
		case 0:
			ls[i] = bytes.Clone(ls[i])
			k := rapid.IntRange(0, len(ls[i])-1).Draw(t, "byte")
			ls[i][k] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		case 1:
			ls = slices.Delete(ls, i, i+1)
		case 2:
			ls = slices.Insert(ls, i, ls[i])
			want++
		case 3:
			if i == j {
				return
			}
			ls[i], ls[j] = ls[j], ls[i]
			want = int64(min(i, j) + 1)
		case 4:
			r := anyRecord().Draw(t, "added")
			r.Seq, r.Prev, r.Time = rapid.Int64Range(0, 15).Draw(t, "seq"), zeroHash, time.Unix(0, 0).UTC()
			ls = slices.Insert(ls, i, append(appendLine(nil, &r), '\n'))
		case 5:
			r := Record{Kind: Note, Seq: want, Prev: zeroHash, Time: time.Unix(0, 0).UTC()}
			if i > 0 {
				r.Prev = hashLine(bytes.TrimSuffix(ls[i-1], []byte("\n")))
			}
			ls = slices.Insert(ls, i, append(appendLine(nil, &r), '\n'))
		}
		rep, err := Verify(bytes.NewReader(bytes.Join(ls, nil)), head)
		if err != nil || rep.FirstBad != want || rep.Problem == "" {
			t.Fatalf("found at %d (%s), want %d\n%s", rep.FirstBad, rep.Problem, want, bytes.Join(ls, nil))
		}
	})
}

func TestVerifyStaysSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 30); err != nil {
		t.Skipf("no sparse file here: %v", err)
	}
	rep, err := Verify(f, "")
	if err != nil || !strings.Contains(rep.Problem, "longer than") {
		t.Errorf("%+v, %v", rep, err)
	}
	if pos, _ := f.Seek(0, io.SeekCurrent); pos > 2*MaxLine {
		t.Errorf("read %d bytes of a line that is too long", pos)
	}
}

func FuzzVerify(f *testing.F) {
	good := chain(sample...)
	f.Add(good, headOf(good))
	f.Add(good[:len(good)-1], "")
	f.Add([]byte("{}\n"), "")
	f.Add([]byte("\x00\n"), zeroHash)
	f.Add(chain(Record{Kind: Note, Detail: "\u0085<&>\u2028"}), "")
	f.Add([]byte(`{"seq":1,"prev":"","time":"2026-12-01T00:00:00Z","kind":"open","arguments":[[{}]]}`+"\n"), "")
	f.Fuzz(func(t *testing.T, b []byte, head string) {
		rep, err := Verify(bytes.NewReader(b), head)
		if err != nil {
			t.Fatal(err)
		}
		if (rep.FirstBad != 0) && rep.Problem == "" || rep.Lines < 0 {
			t.Fatalf("%+v", rep)
		}
		n := int64(0)
		rerr := Read(bytes.NewReader(b), func(r Record) error {
			n++
			if line := appendLine(nil, &r); !json.Valid(line) || !bytes.Contains(b, line) {
				t.Fatalf("%s is not in the input", line)
			}
			return nil
		})
		if rep.Problem == "" && (rerr != nil || n != rep.Lines) {
			t.Fatalf("verified %d lines, read %d: %v", rep.Lines, n, rerr)
		}
		if rep.Problem == "" && len(b) > 0 {
			if again := verify(t, b, rep.Head); again.Problem != "" {
				t.Fatalf("with its own head: %+v", again)
			}
		}
	})
}

func FuzzCheckValue(f *testing.F) {
	for _, s := range []string{`{"a":1,"a":2}`, `{"a":{"b":[1,-0.5e+3,true,null,"\ud83d\ude00"]}}`, `1 2`, `[1,]`, `"\x"`, `-`, `01`, `{"a"1}`, "\"\x01\"", `"\`, `{"\u0061":1,"a":2}`, `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"i":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := checkValue(b)
		valid := json.Valid(b)
		if err == nil && !valid {
			t.Fatalf("took %q", b)
		}
		if errors.Is(err, errSyntax) && valid && len(bytes.TrimSpace(b)) == len(b) {
			t.Fatalf("refused %q", b)
		}
		if err == errDuplicate && !bytes.Contains(b, []byte("{")) {
			t.Fatalf("found a duplicate in %q", b)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	var rs []Record
	for i := range 500 {
		r := benchRecord
		rs = append(rs, r, Record{Kind: End, Call: int64(2*i + 2), Outcome: OK, Micros: 10, ResultSize: 100})
	}
	data := chain(rs...)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		rep, err := Verify(bytes.NewReader(data), "")
		if err != nil || rep.Problem != "" {
			b.Fatal(rep.Problem, err)
		}
	}
}
