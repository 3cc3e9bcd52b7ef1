package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

func TestError(t *testing.T) {
	e := Wrap(fs.ErrNotExist, Usage, "make it", "folder %s", "x")
	if e.Error() != "folder x: file does not exist" || !errors.Is(e, fs.ErrNotExist) {
		t.Errorf("%v", e)
	}
	if e := New(Wall, "", "over %d", 5); e.Error() != "over 5" || e.Unwrap() != nil {
		t.Errorf("%v", e)
	}
}

func TestKindOf(t *testing.T) {
	inner := New(Record, "", "inner")
	for _, c := range []struct {
		err  error
		want Kind
	}{
		{errors.New("nobody classified it"), Agent},
		{inner, Record},
		{fmt.Errorf("around: %w", inner), Record},
		{Wrap(inner, Usage, "", "outer"), Usage},
		{errors.Join(errors.New("a"), inner), Record},
		{nil, Agent}, // never a success by accident
	} {
		if got := KindOf(c.err); got != c.want {
			t.Errorf("%v: kind %d, want %d", c.err, got, c.want)
		}
	}
}

func TestExitCodesAreTheContract(t *testing.T) {
	got := []Kind{Agent, Usage, NotReady, Budget, Record, Wall, Sandbox, Interrupted}
	for i, want := range []int{1, 2, 3, 4, 5, 124, 126, 130} {
		if int(got[i]) != want {
			t.Errorf("kind %d is %d, want %d", i, got[i], want)
		}
	}
}

func TestHintOf(t *testing.T) {
	hint := New(Usage, "do this", "inner")
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("plain"), ""},
		{hint, "do this"},
		{fmt.Errorf("around: %w", hint), "do this"},
		{Wrap(hint, Usage, "", "no hint of its own"), "do this"},
		{Wrap(fmt.Errorf("between: %w", hint), Usage, "", "no hint of its own"), "do this"},
		{Wrap(hint, Usage, "the outer one", "outer"), "the outer one"},
		{errors.Join(New(Record, "", "without"), hint), "do this"},
		{fmt.Errorf("%w and %w", errors.New("x"), hint), "do this"},
	} {
		if got := HintOf(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

func TestSuggest(t *testing.T) {
	tools := []string{"execute_command", "memory_add", "memory_search", "read_file"}
	var many []string
	for i := range 21 {
		many = append(many, fmt.Sprintf("tool_number_%02d", i))
	}
	for _, c := range []struct {
		written    string
		candidates []string
		want       string
	}{
		{"memory_serach", tools, "did you mean memory_search?"},
		{"Memory_Search", tools, "did you mean memory_search?"},
		{"read_fil", tools, "did you mean read_file?"},
		{"xyz", tools, "there are: execute_command, memory_add, memory_search, read_file"},
		{"xyz", nil, ""},
		{"xyz", many, ""},
		{strings.Repeat("x", 600), tools, "there are: execute_command, memory_add, memory_search, read_file"},
		{"", tools, "there are: execute_command, memory_add, memory_search, read_file"},
	} {
		if got := Suggest(c.written, c.candidates); got != c.want {
			t.Errorf("Suggest(%.20q): %q, want %q", c.written, got, c.want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "ab", 1},
		{"ab", "ba", 1}, {"abcd", "acbd", 1}, {"kitten", "sitting", 3}, {"claude", "cluade", 1},
	} {
		if got, back := distance(c.a, c.b), distance(c.b, c.a); got != c.want || back != got {
			t.Errorf("%q %q: %d and %d, want %d", c.a, c.b, got, back, c.want)
		}
	}
}
