package redact

import (
	"encoding/json"
	"strings"
	"testing"
)

// What stands where a secret would is hidden from a person only where it can be
// nothing else.
func TestShownHidesNothingThatDoesSomething(t *testing.T) {
	for _, cmd := range []string{
		`echo password="$(rm -rf ~)"`,
		"true --token '; rm -rf ~; echo '",
		"echo token=a|rm${IFS}-rf${IFS}~",
		"echo token=`id`",
		"echo authorization: ; rm -rf ~",
		"echo authorization: bearer x;id",
		"echo cookie: $(rm -rf ~) && rm -rf /",
		"curl http://$(rm${IFS}-rf${IFS}~)@h/",
		"echo -----BEGIN PRIVATE KEY-----; rm -rf ~",
		"x -----BEGIN PRIVATE KEY-----\nrm\n-----END PRIVATE KEY-----",
		"x -----BEGIN PRIVATE KEY-----\n" + strings.Repeat("Ab1/", 16) + "\nrm -rf home\n-----END PRIVATE KEY-----",
		"x -----BEGIN PRIVATE KEY-----\n" + strings.Repeat("Ab1/", 16) + "\nreboot\n" + strings.Repeat("Ab1/", 16) + "\n-----END PRIVATE KEY-----",
		"x -----BEGIN PRIVATE KEY-----\n" + strings.Repeat("Ab1/", 16) + "\nreboot\n-----END PRIVATE KEY-----",
		"x -----BEGIN PRIVATE KEY-----\n/bin" + strings.Repeat("/", 54) + "reboot\nAb==\n-----END PRIVATE KEY-----",
		"rm -- --token ../x", "rm -- --token /etc", "rm -- --token a/b", "rm token=-rf", "cat --password ~", "ls password=*",
	} {
		q := quote([]byte(cmd))
		if out := Shown(q, nil, big); string(out) != string(q) {
			t.Errorf("%s\nis shown as %s", q, out)
		}
	}
	for in, want := range map[string]string{
		`{"password":{"path":"/etc","user":"x"}}`:                    `{"password":{"path":"/etc","user":"[redacted]"}}`,
		`{"token":["rm -rf",["a"],1,true]}`:                          `{"token":["rm -rf",["[redacted]"],"[redacted]","[redacted]"]}`,
		`{"name":"password","value":"rm -rf ~"}`:                     `{"name":"password","value":"rm -rf ~"}`,
		`{"name":"password","value":"hunter2"}`:                      `{"name":"password","value":"[redacted]"}`,
		`{"args":["--token","$(id)","--token","abc"]}`:               `{"args":["--token","$(id)","--token","[redacted]"]}`,
		`{"token":"","authorization":"a\u0020b"}`:                    `{"token":"","authorization":"a\u0020b"}`,
		`{"a":"{\"password\":\"$(id)\"}"}`:                           `{"a":"{\"password\":\"$(id)\"}"}`,
		`{"a":"{\"password\":\"abc\"}"}`:                             `{"a":"{\"password\":\"[redacted]\"}"}`,
		`{"max_tokens":5,"tokens":5,"tokens_used":1,"password":5}`:   `{"max_tokens":5,"tokens":5,"tokens_used":1,"password":"[redacted]"}`,
		`{"password":"s3cr3t-known; rm","x":"sk-0123456789abcdefg"}`: `{"password":"[redacted]; rm","x":"[redacted]"}`,
	} {
		if out := Shown([]byte(in), New("s3cr3t-known"), big); string(out) != want {
			t.Errorf("%s\n got %s\nwant %s", in, out, want)
		}
	}
}

func TestShownHidesSecrets(t *testing.T) {
	pem := "-----BEGIN RSA PRIVATE KEY-----\n" + strings.Repeat(strings.Repeat("Ab1/", 16)+"\n", 3) + "Ab==\n-----END RSA PRIVATE KEY-----"
	for in, want := range map[string]string{
		"echo token=a>f":                                                         "echo token=[redacted]>f",
		"echo token=a\\;id":                                                      "echo token=[redacted]\\;id",
		"cat <<E\n" + pem + "E":                                                  "cat <<E\n[redacted]E",
		"curl -H 'Authorization: Bearer abc' https://h":                          "curl -H 'Authorization: [redacted]' https://h",
		"echo Authorization: Bearer sk-0123456789abcdefg; id":                    "echo Authorization: Bearer [redacted]; id",
		"mysql --password=hunter2! --user=y":                                     "mysql --password=[redacted] --user=y",
		"x --api-key Zm9v+YmFy/MTIzNDU2Nzg5MA==":                                 "x --api-key [redacted]",
		"git clone https://app:p%40ss@h/x":                                       "git clone https://[redacted]@h/x",
		"cat <<E\n" + pem + "\nE":                                                "cat <<E\n[redacted]\nE",
		strings.ReplaceAll(pem, "\n-----END RSA PRIVATE KEY-----", ""):           "[redacted]",
		`export PGPASSWORD="$(id) ghp_0123456789abcdefghijABCDEFGHIJ012345" X=1`: `export PGPASSWORD="$(id) [redacted]" X=1`,
	} {
		var got string
		out := Shown(quote([]byte(in)), nil, big)
		if json.Unmarshal(out, &got) != nil || got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}
