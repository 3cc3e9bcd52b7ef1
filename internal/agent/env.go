package agent

import (
	"slices"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// base is what every agent CLI gets of the caller's environment. A name that
// ends in * stands for all names that start so.
//
// It is an allowlist because the caller's environment holds the secrets of
// everything else the caller does, and the agent's own code can read its own.
var base = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL",
	"LANG", "LANGUAGE", "LC_*", "TZ",
	"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
	"http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
	// Without these nothing starts on Windows.
	"SystemRoot", "ComSpec", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA",
}

// loopbacks are the hosts that no proxy may get to see: the endpoint is there,
// and the token would go through the proxy in the clear.
var loopbacks = []string{"127.0.0.1", "localhost", "::1"}

// environment is a list of NAME=VALUE in which a later name replaces an
// earlier one.
type environment []string

func (e *environment) set(name, value string) {
	e.unset(name)
	*e = append(*e, name+"="+value)
}

func (e *environment) unset(name string) {
	*e = slices.DeleteFunc(*e, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}

// take copies from environ what allowed names.
func (e *environment) take(environ []string, allowed []string) {
	for _, kv := range environ {
		name, value, ok := strings.Cut(kv, "=")
		if ok && matches(name, allowed) && !strings.Contains(kv, "\x00") {
			e.set(name, value)
		}
	}
}

// exempt sees to it that a proxy of the caller's is not asked for loopback.
func (e *environment) exempt() {
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		list := envValue(*e, name)
		if strings.TrimSpace(list) == "*" {
			continue
		}
		hosts := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
		for _, h := range loopbacks {
			if !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
		e.set(name, strings.Join(hosts, ","))
	}
}

// add takes the user's own variables. Those in reserved belong to the run.
func (e *environment) add(extra, reserved []string) error {
	for _, kv := range extra {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" || strings.Contains(kv, "\x00") {
			return fault.New(fault.Usage, "give a variable as NAME=VALUE", "agent variable %q", clip(name, 64))
		}
		if name == proc.MarkerEnv || matches(name, reserved) {
			return fault.New(fault.Usage, "leave it out; the run sets or removes it itself", "agent variable %s is not the user's to set", clip(name, 64))
		}
		e.set(name, value)
	}
	return nil
}

func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if start, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(name, start)
		}
		return name == p
	})
}

// envValue is the value of name in environ; the last one counts, as it does
// for os/exec.
func envValue(environ []string, name string) string {
	for _, kv := range slices.Backward(environ) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}
