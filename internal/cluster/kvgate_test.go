package cluster_test

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"

	"bulkhead/internal/identity"
)

// kvClient is a connection to a KV server by a client that is not the product's.
func kvClient(url string, id identity.KVLogin, name string) (*client, error) {
	c, err := nats.Connect(url, nats.Nkey(id.User(), id.NATSSign), nats.TokenHandler(id.Token), nats.CustomInboxPrefix("_INBOX."+name),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), nats.NoReconnect(), nats.Timeout(waitMax))
	return &client{c}, err
}

func (w *world) identity(keys *identity.Keys, role identity.Role, name string) *identity.Node {
	w.t.Helper()
	m, err := keys.Minter(role)
	must(w.t, err)
	id, err := m.NewNode(name)
	must(w.t, err)
	return id
}

// goal: at a decode node's KV server a prefill node may publish to that node's stream and hear its own
// inbox, the node itself may make and read its stream, and nobody may do anything else. method: every subject of the
// cluster's table of permissions, whoever may use it on the bus, tried by a prefill node with
// a client that is not the product's.
func TestKVServerPermissions(t *testing.T) {
	w := newWorld(t)
	d0 := w.join(identity.Decode, "d0")
	defer d0.Conn.Close()
	k := w.kvServer(d0)
	p, err := kvClient(k.URL(), w.identity(w.keys, identity.Prefill, "p0").KVLogin("d0", d0.Node.Epoch), "p0")
	must(t, err)
	defer p.Close()
	if m, err := p.Request(kvOfNode("d0"), []byte("frame"), waitMax); err != nil || !strings.Contains(string(m.Data), `"stream":"KV_d0"`) {
		t.Fatalf("a frame for d0: %v, %v", m, err)
	}
	no := []string{"kv.d0", "kv.d0.x", "kv.d0.x.1", "kv.d0.x.1.y.z", "kv.d01.x.1.y"}
	hear, noHear := []string{"_INBOX.p0.x", "_INBOX.p0.>"}, []string{"kv.d0.*.*.*", kvOfNode("d0"), "_INBOX.p1.x", "_INBOX.d0.>"}
	for _, r := range permissions() {
		no = slices.Concat(no, r.publish, r.destroys, r.noPublish)
		noHear = slices.Concat(noHear, r.subscribe, r.noSubscribe)
	}
	no = append(no, "$JS.API.CONSUMER.MSG.NEXT.KV_d0.d0", "$JS.ACK.KV_d0.d0.1.1.1.1.0", "$JS.ACK._.hash.KV_d0.d0.1.1.1.1.0.x")
	tried := map[string]bool{}
	for _, subject := range no {
		if subject == kvOfNode("d0") || tried[subject] {
			continue
		}
		tried[subject] = true
		if !p.denied(t, func() error { return p.Publish(subject, nil) }) {
			t.Errorf("prefill published to %s", subject)
		}
	}
	for _, subject := range noHear {
		if slices.Contains(hear, subject) || tried["sub "+subject] {
			continue
		}
		tried["sub "+subject] = true
		if !p.denied(t, func() error { _, err := p.SubscribeSync(subject); return err }) {
			t.Errorf("prefill subscribed to %s", subject)
		}
	}
	for _, subject := range hear {
		if p.denied(t, func() error { _, err := p.SubscribeSync(subject); return err }) {
			t.Errorf("prefill may not subscribe to %s", subject)
		}
	}
	if len(tried) < 100 {
		t.Errorf("only %d subjects tried", len(tried))
	}

	// The node itself, with its own key.
	own, err := kvClient(k.URL(), d0.Node.KVLogin("d0", d0.Node.Epoch), "d0")
	must(t, err)
	defer own.Close()
	for _, subject := range []string{
		kvOfNode("d0"), "$JS.API.STREAM.CREATE.KV_d1", "$JS.API.STREAM.DELETE.KV_d0", "$JS.API.STREAM.PURGE.KV_d0", "$JS.API.CONSUMER.CREATE.KV_d0.x", "$JS.API.CONSUMER.DELETE.KV_d0.d0",
		"$JS.API.STREAM.MSG.GET.KV_d0", "$JS.API.DIRECT.GET.KV_d0", "$SYS.REQ.SERVER.PING", "job.decode.d0", "_INBOX.p0.x", "anything",
	} {
		if !own.denied(t, func() error { return own.Publish(subject, nil) }) {
			t.Errorf("decode published to %s", subject)
		}
	}
	for _, subject := range []string{">", "kv.>", "_INBOX.>", "_INBOX.p0.>", "$SYS.>"} {
		if !own.denied(t, func() error { _, err := own.SubscribeSync(subject); return err }) {
			t.Errorf("decode subscribed to %s", subject)
		}
	}
}

// goal: a KV server lets in this cluster's prefill nodes, with a login to it alone, and its own node. method:
// each thing that may be wrong with a login, alone; beside it the login that is right.
func TestKVServerLogin(t *testing.T) {
	w := newWorld(t)
	d0 := w.join(identity.Decode, "d0")
	defer d0.Conn.Close()
	k := w.kvServer(d0)
	foreign, err := identity.NewMemory("test")
	must(t, err)
	epoch := d0.Node.Epoch
	prefill := w.identity(w.keys, identity.Prefill, "p0")
	try := func(name string, id identity.KVLogin, want bool) {
		t.Helper()
		c, err := kvClient(k.URL(), id, name)
		if err == nil {
			c.Close()
		}
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "uthorization") {
			t.Errorf("%s: let in %t, want %t: %v", name, err == nil, want, err)
		}
	}
	try("a prefill node", prefill.KVLogin("d0", epoch), true)
	try("the node itself", d0.Node.KVLogin("d0", epoch), true)
	try("login to another decode node", prefill.KVLogin("d1", epoch), false)
	try("login to an earlier boot", prefill.KVLogin("d0", epoch-1), false)
	try("a router", w.identity(w.keys, identity.Router, "r0").KVLogin("d0", epoch), false)
	try("another decode node", w.identity(w.keys, identity.Decode, "d1").KVLogin("d0", epoch), false)
	try("a decode node with the same name", w.identity(w.keys, identity.Decode, "d0").KVLogin("d0", epoch), false)
	try("another cluster's prefill node", w.identity(foreign, identity.Prefill, "p0").KVLogin("d0", epoch), false)
	for name, opts := range map[string][]nats.Option{
		"nobody":                 nil,
		"a JWT and nothing else": {nats.TokenHandler(prefill.KVLogin("d0", epoch).Token)},
		"a broker's login":       {nats.UserJWT(prefill.JWT, prefill.NATSSign)},
		"a broker's signature":   {nats.Nkey(prefill.KVLogin("d0", epoch).User(), prefill.NATSSign), nats.TokenHandler(prefill.KVLogin("d0", epoch).Token)},
		"another's JWT, own key": {nats.Nkey(prefill.KVLogin("d0", epoch).User(), prefill.KVLogin("d0", epoch).NATSSign), nats.TokenHandler(w.identity(w.keys, identity.Prefill, "p1").KVLogin("d0", epoch).Token)},
		"a name and a password":  {nats.UserInfo("p0", "p0")},
	} {
		c, err := nats.Connect(k.URL(), append(opts, nats.NoReconnect(), nats.Timeout(waitMax))...)
		if err == nil {
			c.Close()
			t.Errorf("%s was let in", name)
		}
	}
	// And the KV server's login is none at the broker, where the nonce of a hostile KV server may come from.
	for login, want := range map[string]bool{"broker": true, "KV server": false} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.nats.ClientURL(), "nats://"))
		must(t, err)
		in := bufio.NewReader(conn)
		must(t, conn.SetDeadline(time.Now().Add(waitMax)))
		line, err := in.ReadString('\n')
		must(t, err)
		var info struct{ Nonce string }
		must(t, json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info))
		sign := prefill.NATSSign
		if login != "broker" {
			sign = prefill.KVLogin("d0", epoch).NATSSign
		}
		sig, err := sign([]byte(info.Nonce))
		must(t, err)
		token, err := prefill.JWT()
		must(t, err)
		_, err = fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"jwt\":%q,\"sig\":%q,\"protocol\":1}\r\nPING\r\n", token, base64.RawURLEncoding.EncodeToString(sig))
		must(t, err)
		line, err = in.ReadString('\n')
		must(t, err)
		if got := strings.HasPrefix(line, "PONG"); got != want {
			t.Errorf("login of a %s at the broker: %q", login, line)
		}
		conn.Close()
	}
}

// A prefill node whose JWT has run out is not let in, and one whose JWT runs out is put out.
func TestKVServerExpiry(t *testing.T) {
	w := newWorld(t)
	d0 := w.join(identity.Decode, "d0")
	defer d0.Conn.Close()
	k := w.kvServer(d0)
	f := newForger(t, w.keys)
	for life, want := range map[time.Duration]bool{-time.Minute: false, 2 * time.Second: true} {
		u := f.user("prefill", "p0", func(uc *jwt.UserClaims) {
			uc.IssuedAt, uc.Expires = time.Now().Add(-2*time.Minute).Unix(), time.Now().Add(life).Unix()
		})
		public, err := u.key.PublicKey()
		must(t, err)
		sign := func(nonce []byte) ([]byte, error) {
			dest := binary.BigEndian.AppendUint64([]byte("d0\x00"), d0.Node.Epoch)
			b := []byte("bulkhead signature/1\x00") // as the package comment of identity has it
			b = append(binary.BigEndian.AppendUint32(b, uint32(len("kv login"))), "kv login"...)
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(dest))), dest...)
			return u.key.Sign(append(binary.BigEndian.AppendUint64(b, uint64(len(nonce))), nonce...))
		}
		c, err := nats.Connect(k.URL(), nats.Nkey(public, sign), nats.Token(u.jwt), nats.NoReconnect(), nats.Timeout(waitMax), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if (err == nil) != want {
			t.Fatalf("a JWT that lives for %s: %v", life, err)
		}
		if err == nil {
			eventually(t, "the connection ends with the JWT", c.IsClosed)
		}
	}
}
