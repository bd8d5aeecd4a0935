package transfer

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// goal: an announced URL is nats://host:port of a place where a node may be, or ErrKVURL. method: a table.
func TestCheckKVURL(t *testing.T) {
	for _, url := range []string{
		"nats://127.0.0.1:4333", "nats://10.1.2.3:1", "nats://decode-0.pool.svc.cluster.local:65535", "nats://[2001:db8::1]:4333", "nats://[::1]:4333",
		"nats://" + strings.Repeat("a", kvHostMax) + ":65535",
	} {
		if _, _, err := CheckKVURL(url); err != nil {
			t.Errorf("%q: %v", url, err)
		}
	}
	if host, port, err := CheckKVURL("nats://decode-0:4333"); host != "decode-0" || port != 4333 || err != nil {
		t.Error(host, port, err)
	}
	for _, url := range []string{
		"", "nats://", "nats://h", "nats://h:", "nats://:4333", "nats://h:0", "nats://h:65536", "nats://h:-1", "nats://h:+1", "nats://h:01", "nats://h:4333/", "nats://h:1:2",
		"http://h:4333", "tls://h:4333", "ws://h:4333", "NATS://h:4333", "h:4333", "nats://user@h:4333", "nats://user:pass@h:4333", "nats://h:4333?x=1", "nats://h:4333#x",
		"nats://a:1,nats://b:2", "nats://a:1,b:2", "nats://a b:1", "nats://a\n:1", "nats://a\x00:1", "nats://ä:1", "nats://a_b:1", "nats://[h]:1", "nats://[fe80::1%eth0]:1", "nats://a%2e:1",
		// Where no node is: nowhere, groups, everybody, and where a cloud answers its machines.
		"nats://0.0.0.0:1", "nats://[::]:1", "nats://224.0.0.1:1", "nats://[ff02::1]:1", "nats://255.255.255.255:1", "nats://169.254.169.254:80", "nats://[fe80::1]:1", "nats://[::ffff:169.254.169.254]:80",
		"nats://" + strings.Repeat("a", kvHostMax+1) + ":65535",
	} {
		if _, _, err := CheckKVURL(url); !errors.Is(err, ErrKVURL) {
			t.Errorf("%q: %v, want ErrKVURL", url, err)
		}
	}
}

// A name is no way around what an address may be, and this machine is dialled only where the bus is on it, too.
func TestControlKV(t *testing.T) {
	for _, c := range []struct {
		addr             string
		local, elsewhere bool // taken where the bus is on this machine, and where it is not
	}{
		{"10.0.0.1:4333", true, true}, {"[2001:db8::1]:4333", true, true},
		{"127.0.0.1:4333", true, false}, {"127.9.9.9:4333", true, false}, {"[::1]:4333", true, false}, {"[::ffff:127.0.0.1]:4333", true, false},
		{"169.254.169.254:80", false, false}, {"[fe80::1%1]:80", false, false}, {"0.0.0.0:80", false, false}, {"224.0.0.1:80", false, false}, {"no address", false, false},
	} {
		for loopback, want := range map[bool]bool{true: c.local, false: c.elsewhere} {
			err := controlKV(loopback)("tcp", c.addr, nil)
			if (err == nil) != want || err != nil && !errors.Is(err, ErrKVURL) {
				t.Errorf("%s, loopback %v: %v", c.addr, loopback, err)
			}
		}
	}
	if checkKVAddr(netip.Addr{}, true) == nil {
		t.Error("no address at all was taken")
	}
}

// An announcement with a URL that is none is refused whole, as is one of a role that has no KV.
func TestAnnouncedKVURL(t *testing.T) {
	for _, c := range []struct {
		role Role
		url  string
		good bool
	}{
		{RoleDecode, "nats://10.0.0.1:4333", true}, {RoleDecode, "", true}, {RolePrefill, "", true},
		{RolePrefill, "nats://10.0.0.1:4333", false}, {RoleRouter, "nats://10.0.0.1:4333", false}, {RoleDecode, "http://10.0.0.1:80", false}, {RoleDecode, "nats://169.254.169.254:80", false},
	} {
		a := Announce{Node: "n", Role: c.role, KVURL: c.url, Expires: time.Unix(1, 0)}
		if err := a.valid(); (err == nil) != c.good {
			t.Errorf("%s %q: %v", c.role, c.url, err)
		}
	}
}
