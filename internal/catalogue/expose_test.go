package catalogue

import (
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func scopeOf(t *testing.T, server string, allowed func(string) bool, names ...string) *Scope {
	t.Helper()
	var tools []call.Tool
	for _, n := range names {
		tools = append(tools, tool(n))
	}
	c, err := New(tools...)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Scope(server, allowed)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestField40_LongNamesDoNotMerge(t *testing.T) {
	const tail = "RemotePageWithAttachmentsAndOwnerPermissionsOfTheWholeTeam"
	create, remove := "create"+tail, "delete"+tail
	s := scopeOf(t, "workspace-index-server-internal", func(n string) bool { return n == create }, create, remove)
	if len(s.Names()) != 1 {
		t.Fatalf("%q", s.Names())
	}
	exposed := s.Names()[0]
	if x, ok := s.Lookup(exposed); !ok || x.Name != create {
		t.Errorf("%q is not the tool that was allowed", exposed)
	}
	for _, name := range []string{remove, Expose("workspace-index-server-internal", []string{create, remove})[remove], exposed[:len(exposed)-1]} {
		if _, ok := s.Lookup(name); ok {
			t.Errorf("%q is in scope", name)
		}
	}
	for _, n := range []int{56, 57, 64, 65, 128} {
		s := scopeOf(t, "s", all, strings.Repeat("a", n))
		got := s.Names()[0]
		if full := "mcp__s__" + got; len(full) > MaxName || (n <= 56) != (len(got) == n && !strings.Contains(got, "_")) {
			t.Errorf("%d: exposed as %s", n, got)
		}
	}
}

func TestField44_OddNames(t *testing.T) {
	names := []string{"catalog.get-item", "Create Share", "größe", "catalog_get-item", "ok"}
	s := scopeOf(t, "drawbridge", all, names...)
	valid := regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	found := map[string]bool{}
	for _, exposed := range s.Names() {
		x, ok := s.Lookup(exposed)
		if !ok || !valid.MatchString("mcp__drawbridge__"+exposed) {
			t.Fatalf("%q", exposed)
		}
		found[x.Name] = true
	}
	if len(found) != len(names) || !slices.Contains(s.Names(), "ok") || !slices.Contains(s.Names(), "catalog_get-item") {
		t.Errorf("%q stand for %v", s.Names(), found)
	}
	// An alias is part of what users write down: it stays what it is.
	if got := Expose("drawbridge", []string{"Create Share"})["Create Share"]; got != "Create_Share_d2cb45268eeb" {
		t.Errorf("the alias is %s", got)
	}
}

// Who registers a tool that is called like another's alias gets no call of it.
func TestField41_AliasIsTaken(t *testing.T) {
	const odd = "Create Share"
	taken := Expose("s", []string{odd})[odd]
	s := scopeOf(t, "s", all, odd, taken)
	if x, _ := s.Lookup(taken); x.Name != taken {
		t.Errorf("%s is %s", taken, x.Name)
	}
	if x, ok := s.Lookup(odd); !ok || x.Name != odd || len(s.Names()) != 2 {
		t.Errorf("%q", s.Names())
	}
}

func TestExposedNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		server := rapid.StringMatching(`[a-z]{1,32}`).Draw(t, "server")
		names := rapid.SliceOfNDistinct(rapid.OneOf(rapid.StringMatching(`[ab._ ]{1,4}`), rapid.StringMatching(`a{20,60}b?`), rapid.String()), 0, 12, rapid.ID).Draw(t, "names")
		if len(names) > 0 { // what would collide
			if a := alias(names[0], Room(server), 0); !slices.Contains(names, a) {
				names = append(names, a)
			}
		}
		got := Expose(server, names)
		seen := map[string]bool{}
		for _, name := range names {
			e := got[name]
			if !toolName().MatchString(e) || len(e) > Room(server) || seen[e] || fits(name, Room(server)) && e != name {
				t.Fatalf("%q is %q among %q", name, e, names)
			}
			seen[e] = true
		}
		rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		if again := Expose(server, names); !maps.Equal(again, got) {
			t.Fatalf("another order: %v, was %v", again, got)
		}
	})
}
