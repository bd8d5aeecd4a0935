package transfer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
)

// Limits of the URL at which a decode node says that its KV stream lives.
const (
	kvHostMax = 253 // bytes: the longest name of DNS
	// KVURLMax is the longest URL that is taken: "nats://", a host, ":" and a port.
	KVURLMax = len(kvScheme) + kvHostMax + len(":65535")

	kvScheme = "nats://"
)

// ErrKVURL is an announced KV server's URL that is not nats://host:port, or an address that is not dialled.
var ErrKVURL = errors.New("transfer: bad KV server URL")

// CheckKVURL returns the host and port of a KV server's URL, or ErrKVURL unless
// it is exactly nats://host:port: no user, path, query, list or other scheme. The
// host is a name of [A-Za-z0-9.-], an IPv4 address, or an IPv6 address in brackets; an address that nobody
// should be sent to ([checkKVAddr]) is refused here already.
func CheckKVURL(url string) (host string, port int, err error) {
	bad := func(format string, a ...any) (string, int, error) {
		return "", 0, fmt.Errorf("%w: %s", ErrKVURL, fmt.Sprintf(format, a...))
	}
	if len(url) > KVURLMax {
		return bad("%d bytes, limit %d", len(url), KVURLMax)
	}
	rest, ok := strings.CutPrefix(url, kvScheme)
	if !ok {
		return bad("scheme of %.12q, want %s", url, kvScheme)
	}
	host, digits, err := net.SplitHostPort(rest)
	if err != nil || host == "" {
		return bad("no host and port in %.64q", rest)
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != digits {
		return bad("port %.12q is not a plain number from 1 to 65535", digits)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" {
			return bad("address with a zone")
		}
		return host, int(n), checkKVAddr(addr, true)
	}
	if strings.HasPrefix(rest, "[") {
		return bad("%.64q in brackets is no address", host)
	}
	for i := range len(host) {
		switch c := host[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '-':
		default:
			return bad("host has byte %#02x, want only A-Z a-z 0-9 . -", c)
		}
	}
	return host, int(n), nil
}

// checkKVAddr refuses addresses at which no node's KV server can be: none at all, groups, and
// link-local ones, where clouds answer questions about their machines. Loopback is this
// machine, and no other node's unless the cluster is on one.
func checkKVAddr(a netip.Addr, loopback bool) error {
	a = a.Unmap()
	switch {
	case !a.IsValid(), a.IsUnspecified(), a.IsMulticast(), a.IsLinkLocalUnicast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%w: %s is no address of a node", ErrKVURL, a)
	case a.IsLoopback() && !loopback:
		return fmt.Errorf("%w: %s is this machine itself, and the cluster's bus is on another", ErrKVURL, a)
	}
	return nil
}

// controlKV looks at an address after its name was resolved: a name says nothing of where it leads.
func controlKV(loopback bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrKVURL, err)
		}
		return checkKVAddr(at.Addr(), loopback)
	}
}
