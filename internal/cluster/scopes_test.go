package cluster_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"bulkhead/internal/identity"
)

// The goal: each role's scope template lets its nodes do their work on a real
// broker, and nothing else. The method: an embedded nats-server that trusts the
// cluster's operator, one node per role made as in production, and a table of
// what each may do. A denied publish or subscription is an asynchronous
// permission error of the connection, so each step ends in a flush and a look
// at the errors.

func broker(t *testing.T, auth identity.ServerAuth) *server.Server {
	t.Helper()
	ops, err := auth.Operators()
	if err != nil {
		t.Fatal(err)
	}
	resolver := &server.MemAccResolver{}
	for account, token := range map[string]string{auth.Account: auth.AccountJWT, auth.System: auth.SystemJWT} {
		if err := resolver.Store(account, token); err != nil {
			t.Fatal(err)
		}
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: t.TempDir(),
		TrustedOperators: ops, AccountResolver: resolver, SystemAccount: auth.System,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("broker does not start")
	}
	return s
}

// client is one node's connection. Permission errors are found in LastError.
type client struct{ *nats.Conn }

func connect(t *testing.T, s *server.Server, k *identity.Keys, role identity.Role, name string) *client {
	t.Helper()
	m, err := k.Minter(role)
	if err != nil {
		t.Fatal(err)
	}
	n, err := m.NewNode(name)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(s.ClientURL(),
		nats.UserJWT(n.JWT, n.NATSSign),
		nats.CustomInboxPrefix("_INBOX."+name),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // else they are printed
	)
	if err != nil {
		t.Fatalf("%s %s cannot connect: %v", role, name, err)
	}
	t.Cleanup(conn.Close)
	return &client{conn}
}

// denied reports whether the broker refused what do did: the flush's pong comes
// after the error, and each error names its subject, so LastError has changed.
func (c *client) denied(t *testing.T, do func() error) bool {
	t.Helper()
	before := c.violations()
	if err := do(); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	return c.violations() != before
}

func (c *client) violations() string {
	if err := c.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return err.Error()
	}
	return ""
}

// TestScopes: the table of permissions_test.go, tried by a client that is not the product's.
func TestScopes(t *testing.T) {
	k, err := identity.NewMemory("test")
	if err != nil {
		t.Fatal(err)
	}
	s := broker(t, k.ServerAuth())
	acks := []string{"$JS.API.CONSUMER.MSG.NEXT.KV_d0.d0", "$JS.ACK.KV_d0.d0.1.1.1.1.0", "$JS.ACK._.hash.KV_d0.d0.1.1.1.1.0", "$JS.ACK._.hash.KV_d0.d0.1.1.1.1.0.rand"}
	for _, r := range permissions() {
		t.Run(r.role, func(t *testing.T) {
			c := connect(t, s, k, r.role, r.name)
			may := append(r.publish, r.destroys...)
			if r.role == identity.Decode {
				may = append(may, acks...) // nobody answers these
			}
			for want, subjects := range map[bool][]string{false: may, true: r.noPublish} {
				for _, subject := range subjects {
					if got := c.denied(t, func() error { return c.Publish(subject, nil) }); got != want {
						t.Errorf("publish %s: denied %v, want %v", subject, got, want)
					}
				}
			}
			for want, subjects := range map[bool][]string{false: r.subscribe, true: r.noSubscribe} {
				for _, subject := range subjects {
					if got := c.denied(t, func() error { _, err := c.SubscribeSync(subject); return err }); got != want {
						t.Errorf("subscribe %s: denied %v, want %v", subject, got, want)
					}
				}
			}
		})
	}
}

// TestScopesWork walks one attempt's messages over JetStream with the rights of
// the roles: the router makes the stream and the durable, prefill publishes and
// gets the broker's word for it, decode pulls and acknowledges, and answers a
// request without any right to publish to inboxes.
func TestScopesWork(t *testing.T) {
	k, err := identity.NewMemory("test")
	if err != nil {
		t.Fatal(err)
	}
	s := broker(t, k.ServerAuth())
	r := connect(t, s, k, identity.Router, "r0")
	p := connect(t, s, k, identity.Prefill, "p0")
	d := connect(t, s, k, identity.Decode, "d0")
	const wait = 10 * time.Second

	request := func(c *client, subject, body string) string {
		t.Helper()
		m, err := c.Request(subject, []byte(body), wait)
		if err != nil {
			t.Fatalf("%s: %v (%v)", subject, err, c.LastError())
		}
		return string(m.Data)
	}
	ok := func(reply string) {
		t.Helper()
		if strings.Contains(reply, `"error"`) {
			t.Fatal(reply)
		}
	}
	ok(request(r, "$JS.API.STREAM.CREATE.KV_d0",
		`{"name":"KV_d0","subjects":["kv.d0.>"],"retention":"workqueue","storage":"memory","max_bytes":16777216,"discard":"new","num_replicas":1}`))
	ok(request(r, "$JS.API.CONSUMER.CREATE.KV_d0.d0",
		`{"stream_name":"KV_d0","config":{"durable_name":"d0","name":"d0","ack_policy":"explicit"}}`))
	if reply := request(r, "$JS.API.STREAM.CREATE.KV_d1",
		`{"name":"KV_d1","subjects":["kv.d1.>"],"retention":"workqueue","storage":"memory","discard":"new","num_replicas":1}`); !strings.Contains(reply, `"error"`) {
		t.Errorf("a stream without max_bytes was made: %s", reply)
	}
	ok(request(p, "kv.d0.req.1.aaaaaaaaaaaaaaaaaaaaaaaaaa", "frame"))
	ok(request(d, "$JS.API.CONSUMER.INFO.KV_d0.d0", ""))
	m, err := d.Request("$JS.API.CONSUMER.MSG.NEXT.KV_d0.d0", []byte(`{"batch":1,"expires":5000000000}`), wait)
	if err != nil || string(m.Data) != "frame" {
		t.Fatalf("pull: %v, %v", m, err)
	}
	if d.denied(t, func() error { return m.Ack() }) {
		t.Errorf("ack to %s denied", m.Reply)
	}
	var info string
	for range 100 { // the ack is processed after the flush's pong
		if info = request(r, "$JS.API.STREAM.INFO.KV_d0", ""); strings.Contains(info, `"messages":0`) {
			break
		}
	}
	if !strings.Contains(info, `"messages":0`) {
		t.Errorf("stream is not empty after the ack: %s", info)
	}
	jobs, err := d.SubscribeSync("job.decode.d0")
	if err != nil {
		t.Fatal(err)
	}
	answers, err := r.SubscribeSync("_INBOX.r0.answer")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Flush(), r.PublishRequest("job.decode.d0", "_INBOX.r0.answer", nil)); err != nil {
		t.Fatal(err)
	}
	job, err := jobs.NextMsg(wait)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, true} { // one answer is allowed, a second is not
		if got := d.denied(t, func() error { return job.Respond(nil) }); got != want {
			t.Errorf("answer %d denied: %v, want %v", i, got, want)
		}
	}
	if _, err := answers.NextMsg(wait); err != nil {
		t.Error(err)
	}
}

// TestStrangers: the broker lets in nobody but nodes of this account's roles.
func TestStrangers(t *testing.T) {
	ours, err := identity.NewMemory("test")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := identity.NewMemory("test")
	if err != nil {
		t.Fatal(err)
	}
	s := broker(t, ours.ServerAuth())
	m, err := theirs.Minter(identity.Router)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := m.NewNode("r0")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := nats.Connect(s.ClientURL(), nats.UserJWT(stranger.JWT, stranger.NATSSign)); err == nil {
		c.Close()
		t.Error("a node of another operator got in")
	}
	if c, err := nats.Connect(s.ClientURL()); err == nil {
		c.Close()
		t.Error("a client without identity got in")
	}
	// Our JWT, another's key: the login challenge needs the node's own.
	m, err = ours.Minter(identity.Router)
	if err != nil {
		t.Fatal(err)
	}
	node, err := m.NewNode("r0")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := nats.Connect(s.ClientURL(), nats.UserJWT(node.JWT, stranger.NATSSign)); err == nil {
		c.Close()
		t.Error("a JWT without its key got in")
	}
}
