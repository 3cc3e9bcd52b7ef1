package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"
)

// Addresses at which machines of a cloud find credentials. Those of them that are
// link-local need no mention.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // Amazon, IPv6
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("192.0.0.192"),     // Oracle
	netip.MustParseAddr("168.63.129.16"),   // Azure, WireServer
}

// Prefixes in which IPv4 addresses stand in IPv6 ones: NAT64 (RFC 6052) and 6to4.
var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
	sixTo4 = netip.MustParsePrefix("2002::/16")
)

// forbidden says why no server is reached at addr, "" where it may be. Whatever a
// name resolves to, credentials of the machine are not behind it.
func forbidden(addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	if b := addr.As16(); nat64.Contains(addr) {
		addr = netip.AddrFrom4([4]byte(b[12:16]))
	} else if sixTo4.Contains(addr) {
		addr = netip.AddrFrom4([4]byte(b[2:6]))
	}
	switch {
	case addr.IsLinkLocalUnicast(), addr.IsLinkLocalMulticast(), addr.IsInterfaceLocalMulticast():
		return "a link-local address"
	case addr.IsMulticast(), addr.IsUnspecified(), addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "not the address of one machine"
	}
	for _, m := range metadata {
		if addr == m {
			return "where a cloud keeps its machines' credentials"
		}
	}
	return ""
}

var errForbidden = errors.New("refused address")

// dialer connects to what the host of a URL resolves to, and judges the address
// when it connects: an earlier look-up may have said something else. An address
// that the URL itself names is what a person wants.
func dialer(u *url.URL) func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := &net.Dialer{Timeout: 10 * time.Second}
	named, err := netip.ParseAddr(u.Hostname())
	d.Control = func(_, address string, _ syscall.RawConn) error {
		to, perr := netip.ParseAddrPort(address)
		if perr != nil {
			return fmt.Errorf("%w: %s", errForbidden, address)
		}
		if err == nil && to.Addr().Unmap() == named.Unmap() {
			return nil
		}
		if why := forbidden(to.Addr()); why != "" {
			return fmt.Errorf("%w: its name resolves to %s, %s; write the address into the url to reach it", errForbidden, to.Addr(), why)
		}
		return nil
	}
	return d.DialContext
}

// client speaks HTTP to one server: through no proxy, without following anybody
// anywhere, and taking nothing that is compressed, which could unpack to any size.
func client(u *url.URL) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dialer(u),
			ForceAttemptHTTP2:      true,
			DisableCompression:     true,
			MaxIdleConnsPerHost:    64,
			IdleConnTimeout:        90 * time.Second,
			TLSHandshakeTimeout:    10 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			WriteBufferSize:        32 << 10,
			ReadBufferSize:         32 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// origin is scheme, host and port.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(u.Hostname(), port)
}
