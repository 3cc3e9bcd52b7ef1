package celrule

import (
	"net/netip"
	"net/url"
	"path"
	"strings"
)

// PathIn reports whether p is dir or lies in it, by their spelling alone: no
// link is followed, which is what the file tools do. Both are relative to the
// run's folder or both absolute; a mix, a blank one, one that leads out of the
// run's folder by .., a backslash and a NUL can't be known and are errors.
func PathIn(p, dir string) (bool, error) {
	for _, s := range []string{p, dir} {
		if strings.TrimSpace(s) == "" || strings.ContainsAny(s, "\\\x00") || strings.HasPrefix(s, "~") {
			return false, &unknowable{"path_in: a path that is blank, begins with ~, or has a backslash or NUL can't be judged"}
		}
	}
	if path.IsAbs(p) != path.IsAbs(dir) {
		return false, &unknowable{"path_in: give the path relative to the run's folder, as the policy does (or absolute, where the policy does)"}
	}
	p, dir = path.Clean(p), path.Clean(dir)
	if p == ".." || strings.HasPrefix(p, "../") || dir == ".." || strings.HasPrefix(dir, "../") {
		return false, &unknowable{"path_in: the path leads out of the run's folder"}
	}
	return p == dir || dir == "." || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/"), nil
}

// Host is the host of an absolute URL, in lower case, without port and final
// dot; an IPv6 address without brackets. What two programs could read as two
// hosts is an error: a userinfo, a backslash, blanks, percent signs or bytes
// that are not ASCII in the host, and numbers that are an IPv4 address in
// disguise (WHATWG URL, section 3.5).
func Host(raw string) (string, error) {
	bad := func(why string) (string, error) { return "", &unknowable{"host: " + why} }
	if strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r == '\\' || r == 0x7f }) {
		return bad("a URL with blanks, control characters or backslashes can't be judged")
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "" || u.Host == "" {
		return bad("not an absolute URL with a host")
	}
	if u.User != nil {
		return bad("a URL with a user name can't be judged")
	}
	h := strings.ToLower(u.Hostname())
	if strings.HasPrefix(u.Host, "[") {
		a, err := netip.ParseAddr(h)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return bad("an IPv6 address with a zone, or one that holds an IPv4 address, can't be judged")
		}
		return a.String(), nil
	}
	h = strings.TrimSuffix(h, ".")
	if strings.ContainsFunc(h, func(r rune) bool {
		return r > 0x7e || r == '%' || !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_')
	}) {
		return bad("a host name with other characters than letters, digits, - . and _ can't be judged")
	}
	labels := strings.Split(h, ".")
	for _, l := range labels {
		if l == "" {
			return bad("a host name with an empty part can't be judged")
		}
	}
	last := labels[len(labels)-1]
	numeric := strings.Trim(last, "0123456789") == "" ||
		strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == ""
	if numeric {
		a, err := netip.ParseAddr(h)
		if err != nil || !a.Is4() {
			return bad("an IPv4 address in an unusual spelling can't be judged")
		}
		return a.String(), nil
	}
	return h, nil
}
