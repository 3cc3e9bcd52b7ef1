package policyfile

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

var update = flag.Bool("update", false, "write policy.schema.json anew")

func generate(t *testing.T) []byte {
	t.Helper()
	text := &jsonschema.Schema{Type: "string", MinLength: jsonschema.Ptr(1)}
	s, err := jsonschema.For[File](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[Text]():   text,
		reflect.TypeFor[Secret](): {Type: "string"},
		reflect.TypeFor[Count]():  {Type: "integer", Minimum: jsonschema.Ptr(1.0)},
		reflect.TypeFor[Size](): {AnyOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: jsonschema.Ptr(1.0)}, {Type: "string", Pattern: size().String()},
		}},
		reflect.TypeFor[Dollars]():  {Type: "number", ExclusiveMinimum: jsonschema.Ptr(0.0), Maximum: jsonschema.Ptr(999_999.999999)},
		reflect.TypeFor[Duration](): {Type: "string", Pattern: `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`},
		reflect.TypeFor[Patterns](): {Type: "array", Items: &jsonschema.Schema{Type: "string", Pattern: `^[A-Za-z0-9_.*-]+(/[A-Za-z0-9_.*-]+)?$`}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	noNull(s)
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = "Drawbridge policy"
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// noNull takes out what encoding/json would accept and the language does not.
func noNull(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if len(s.Types) == 2 && s.Types[0] == "null" {
		s.Type, s.Types = s.Types[1], nil
	}
	for _, p := range s.Properties {
		noNull(p)
	}
	noNull(s.AdditionalProperties)
	noNull(s.Items)
}

func TestSchemaIsOfTheTypes(t *testing.T) {
	want := generate(t)
	if *update {
		if err := os.WriteFile("policy.schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(Schema(), want) {
		t.Error("policy.schema.json is not what the types say: go test ./internal/policy/policyfile -run TestSchemaIsOfTheTypes -update")
	}
}
