package catalogue

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func validate(t *testing.T, schema, args string) error {
	t.Helper()
	v, err := newValidator([]byte(schema))
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	m, err := call.DecodeObject([]byte(args))
	if err != nil {
		t.Fatalf("%s: %v", args, err)
	}
	return v(m)
}

func TestValidateNamesTheField(t *testing.T) {
	const schema = `{"type":"object","required":["query"],"properties":{
		"query":{"type":"string","minLength":1},"limit":{"type":"integer","minimum":1,"maximum":100},
		"mode":{"enum":["a","b"]},"deep":{"type":"object","properties":{"list":{"type":"array","items":{"type":"string"}}}}}}`
	for _, c := range []struct{ args, says string }{
		{`{"query":"x"}`, ""},
		{`{"query":"x","limit":100,"mode":"b","deep":{"list":["y"]}}`, ""},
		{`{"query":"x","workspace_id":"ws-B","allowed_tools":["*"]}`, ""},
		{`{"query":"x","limit":1.0}`, ""},
		{`{}`, "query"},
		{`{"Query":"x"}`, "query"},
		{`{"query":1}`, "arguments.query: "},
		{`{"query":""}`, "arguments.query: "},
		{`{"query":null}`, "arguments.query: "},
		{`{"query":"x","limit":"5"}`, "arguments.limit: "},
		{`{"query":"x","limit":0}`, "arguments.limit: "},
		{`{"query":"x","limit":9007199254740993}`, "arguments.limit: "},
		{`{"query":"x","limit":1.5}`, "arguments.limit: "},
		{`{"query":"x","mode":"c"}`, "arguments.mode: "},
		{`{"query":"x","deep":{"list":["y",2]}}`, "arguments.deep.list.1: "},
		{`{"query":"x","deep":[]}`, "arguments.deep: "},
	} {
		err := validate(t, schema, c.args)
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", c.args, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "drawbridge:///") {
			t.Errorf("%s: %v, want one line that names %s", c.args, err, c.says)
		}
	}
}

func TestValidateSaysAtMostFiveThings(t *testing.T) {
	var args []string
	for i := range 50 {
		args = append(args, fmt.Sprintf(`"k%d":1`, i))
	}
	err := validate(t, `{"type":"object","additionalProperties":{"type":"string"}}`, "{"+strings.Join(args, ",")+"}")
	if err == nil || strings.Count(err.Error(), "; ") != 4 {
		t.Errorf("%v", err)
	}
}

// 2^53+1 is told apart from 2^53, which a float64 can't.
func TestValidateRoundsNoNumber(t *testing.T) {
	const schema = `{"type":"object","properties":{"n":{"maximum":9007199254740992}}}`
	if err := validate(t, schema, `{"n":9007199254740992}`); err != nil {
		t.Error(err)
	}
	if err := validate(t, schema, `{"n":9007199254740993}`); err == nil {
		t.Error("accepted")
	}
}

func TestValidateRefusesNumbersThatCostOrPanic(t *testing.T) {
	for _, schema := range []string{
		`{"type":"object","properties":{"n":{"type":"number","minimum":1,"maximum":5}}}`,
		`{"type":"object","properties":{"n":{"type":"integer","multipleOf":3}}}`,
		`{"type":"object","properties":{"n":{"const":1}}}`,
		`{"type":"object"}`,
	} {
		for _, n := range []string{
			"1e1000000", "1E+99999999", "-1e-99999999", "1e99999999999999999999999", "1e-1101", strings.Repeat("9", 4000), "0." + strings.Repeat("0", 4000) + "1",
		} {
			for _, args := range []string{`{"n":` + n + `}`, `{"x":[{"y":` + n + `}]}`} {
				err := validate(t, schema, args)
				if err == nil || !strings.HasPrefix(err.Error(), "arguments: the number ") || len(err.Error()) > 2*call.MaxEcho {
					t.Errorf("%.40s: %.200v", args, err)
				}
			}
		}
	}
	for _, n := range []string{"1.7976931348623157e308", "5e-324", "1E3", "123456789012345678901234567890", "-0.0"} {
		if err := validate(t, `{"type":"object","properties":{"n":{"type":"number"}}}`, `{"n":`+n+`}`); err != nil {
			t.Errorf("%s: %v", n, err)
		}
	}
}

func TestExternalReferencesAreNeverFetched(t *testing.T) {
	var hits atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		hits.Add(1)
		fmt.Fprint(w, `{"type":"string"}`)
	}))
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := filepath.Join(t.TempDir(), "s.json")
	if err := os.WriteFile(file, []byte(`{"type":"string"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"file://" + filepath.ToSlash(file), srv.URL + "/s.json", "https://" + l.Addr().String() + "/x", "other", "drawbridge:///other", filepath.ToSlash(file)} {
		for _, schema := range []string{
			`{"type":"object","properties":{"a":{"$ref":"` + at + `"}}}`,
			`{"type":"object","properties":{"a":{"$ref":"` + at + `#/x"}}}`,
			`{"type":"object","$schema":"` + at + `"}`,
			`{"type":"object","$id":"` + at + `","properties":{"a":{"$ref":"elsewhere"}}}`,
			`{"type":"object","properties":{"a":{"$dynamicRef":"` + at + `"}}}`,
		} {
			if _, err := newValidator([]byte(schema)); err == nil {
				t.Errorf("%s: accepted", schema)
			}
		}
	}
	if hits.Load() != 0 {
		t.Errorf("%d requests", hits.Load())
	}
	// The drafts themselves are built in.
	for _, draft := range []string{"https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"} {
		if _, err := newValidator([]byte(`{"$schema":"` + draft + `","type":"object"}`)); err != nil {
			t.Errorf("%s: %v", draft, err)
		}
	}
}

// A schema that refers to itself is either refused or ends: what it must not do
// is run on, or overflow the stack, which takes the process down.
func TestRecursiveSchemas(t *testing.T) {
	deep := strings.Repeat(`{"a":`, call.MaxDepth-1) + `{}` + strings.Repeat("}", call.MaxDepth-1)
	for _, schema := range []string{
		`{"type":"object","$ref":"#"}`,
		`{"type":"object","allOf":[{"$ref":"#"}]}`,
		`{"type":"object","anyOf":[{"$ref":"#"},{"$ref":"#"}]}`,
		`{"type":"object","not":{"$ref":"#"}}`,
		`{"type":"object","$dynamicAnchor":"x","$dynamicRef":"#x"}`,
		`{"type":"object","$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`,
	} {
		if v, err := newValidator([]byte(schema)); err == nil {
			m, _ := call.DecodeObject([]byte(deep))
			t.Logf("%s: compiles, %v", schema, v(m))
		}
	}
	const tree = `{"type":"object","properties":{"a":{"$ref":"#"}},"additionalProperties":false}`
	if err := validate(t, tree, deep); err != nil {
		t.Error(err)
	}
	if err := validate(t, tree, `{"a":{"a":{"b":1}}}`); err == nil || !strings.Contains(err.Error(), "arguments.a.a") {
		t.Errorf("%v", err)
	}
}

func TestSchemaCache(t *testing.T) {
	schema := func(i int) []byte { return fmt.Appendf(nil, `{"type":"object","maxProperties":%d}`, i) }
	for i := range maxCompiled + 100 {
		if _, err := compile(schema(i)); err != nil {
			t.Fatal(err)
		}
		if n := len(compiled.m); n > maxCompiled {
			t.Fatalf("%d kept", n)
		}
	}
	n := len(compiled.m)
	large := fmt.Appendf(nil, `{"type":"object","description":%q}`, strings.Repeat("x", maxKept))
	if _, err := compile(large); err != nil || len(compiled.m) != n {
		t.Errorf("a schema of %d bytes is kept: %v", len(large), err)
	}
	// One that is refused is refused again.
	for range 2 {
		if _, err := compile([]byte(`{"type":"int"}`)); err == nil {
			t.Error("accepted")
		}
	}
}

func TestCompiledSchemasAreSharedSafely(t *testing.T) {
	schema := []byte(`{"type":"object","required":["q"],"properties":{"n":{"type":"number","maximum":5},"s":{"pattern":"^a+$"}}}`)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			v, err := compile(schema)
			if err != nil {
				t.Error(err)
				return
			}
			for range 50 {
				m, _ := call.DecodeObject(fmt.Appendf(nil, `{"n":%d,"s":"b"}`, 1000+i))
				if err := v(m); err == nil {
					t.Error("accepted")
				}
			}
		})
	}
	wg.Wait()
}

func FuzzSchema(f *testing.F) {
	for _, s := range []string{
		`{"type":"object"}`, `{"type":"object","$ref":"#"}`, `{"type":"object","properties":{"a":{"$ref":"#"}}}`, `{"type":"object","anyOf":[{"$ref":"#"}]}`,
		`{"type":"object","properties":{"a":{"minimum":1e99999999}}}`, `{"type":"object","patternProperties":{"(":{}}}`,
		`{"type":"object","$id":"::","$anchor":"a"}`, `{"type":"object","required":["a"],"dependentSchemas":{"a":{"not":{}}}}`,
		`{"type":"object","properties":{"a":{"multipleOf":0}}}`, `{"type":"object","propertyNames":{"format":"regex"},"unevaluatedProperties":false}`,
	} {
		f.Add([]byte(s), []byte(`{"a":1,"b":[{"a":"x"}]}`))
	}
	f.Fuzz(func(t *testing.T, schema, args []byte) {
		v, err := newValidator(schema)
		if err != nil {
			return
		}
		if m, err := call.DecodeObject(args); err == nil {
			_ = v(m)
		}
	})
}
