package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"bulkhead/internal/identity"
	"bulkhead/transfer"
)

// KVServerConfig says how a decode node carries its own KV stream.
type KVServerConfig struct {
	Node *Joined // the decode node, on the cluster's bus

	Host      string // to listen on; "" is 127.0.0.1
	Port      int    // 0 is any free one
	Advertise string // nats://host:port for prefill nodes; "": what is listened on, by the address that reaches the bus where that is every address
	StoreDir  string // of the server's books, no KV is written there; "": a folder of its own, removed at the end
	MaxBytes  int64  // of the KV stream, hard; 0: StreamBytes

	Log      *slog.Logger       // nil: silent
	Counters *transfer.Counters // nil: not counted
}

// KVServer is a nats-server in a decode node's process that carries its KV stream and nothing else:
// prefill nodes dial it, the node itself reads in process.
//
// It lets in prefill nodes of the cluster, which may publish to this node's stream, and the node
// itself, which makes the stream and reads it. Nobody else, of any role, has a right on it; see kvGate.
type KVServer struct {
	nats *NATS
	conn *transfer.Conn
	peer *transfer.Peer
	url  string
	dir  string // to be removed; "": not ours
}

// kvConns is the most connections to a KV server: prefill nodes, and strangers until their login fails.
const kvConns = 512

// StartKVServer starts a decode node's KV server and makes its stream. Close must be called.
func StartKVServer(ctx context.Context, cfg KVServerConfig) (k *KVServer, err error) {
	if cfg.Node.Node.Role != identity.Decode {
		return nil, fmt.Errorf("cluster: KV server of a %s node, want a decode node", cfg.Node.Node.Role)
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = StreamBytes
	}
	if cfg.MaxBytes < 2*transfer.FirstCredit {
		return nil, fmt.Errorf("cluster: KV server: a stream of %d bytes, want at least %d", cfg.MaxBytes, 2*transfer.FirstCredit)
	}
	if cfg.Port == 0 {
		cfg.Port = -1
	}
	made := &KVServer{}
	defer func() {
		if err != nil {
			made.Close()
		}
	}()
	if cfg.StoreDir == "" {
		if cfg.StoreDir, err = os.MkdirTemp("", "bulkhead-kv-"); err != nil {
			return nil, fmt.Errorf("cluster: KV server: %w", err)
		}
		made.dir = cfg.StoreDir
	}
	node := cfg.Node.Node
	made.nats, err = StartNATS(NATSConfig{
		Name: "bulkhead-kv-" + node.Name, Host: cfg.Host, Port: cfg.Port, StoreDir: cfg.StoreDir,
		MaxMemory: cfg.MaxBytes, MaxStore: 1, Log: cfg.Log,
		gate: &kvGate{node: node, authority: node.Authority(), now: time.Now},
	})
	if err != nil {
		return nil, err
	}
	if made.url, err = kvURL(cfg, made.nats.ClientURL()); err != nil {
		return nil, err
	}
	made.conn, err = transfer.Connect(ctx, transfer.Config{
		InProcess: made.nats, URL: made.nats.ClientURL(), Name: node.Name, Identity: node.KVLogin(node.Name, node.Epoch),
		Log: cfg.Log, Counters: cfg.Counters,
	})
	if err != nil {
		return nil, fmt.Errorf("cluster: KV server: %w", err)
	}
	if err := made.conn.EnsureKV(ctx, node.Name, cfg.MaxBytes); err != nil {
		return nil, fmt.Errorf("cluster: KV server: %w", err)
	}
	made.peer = cfg.Node.Peer.WithKV(made.conn)
	return made, nil
}

// kvURL is what the node announces.
func kvURL(cfg KVServerConfig, listening string) (string, error) {
	url := cfg.Advertise
	if url == "" {
		_, port, err := transfer.CheckKVURL(listening)
		if err != nil && !errors.Is(err, transfer.ErrKVURL) {
			return "", err
		}
		host := cfg.Host
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			host = cfg.Node.Conn.LocalHost()
		}
		if host == "" {
			host = "127.0.0.1"
		}
		url = "nats://" + net.JoinHostPort(host, strconv.Itoa(port))
	}
	if _, _, err := transfer.CheckKVURL(url); err != nil {
		return "", fmt.Errorf("cluster: KV server: advertised as %q: %w", url, err)
	}
	return url, nil
}

// URL is what the node announces: decode.Config.KVURL.
func (k *KVServer) URL() string { return k.url }

// Peer is the node with its KV stream here: decode.Config.Peer.
func (k *KVServer) Peer() *transfer.Peer { return k.peer }

// Close ends the server; its stream goes with it.
func (k *KVServer) Close() {
	if k.conn != nil {
		k.conn.Close()
	}
	if k.nats != nil {
		k.nats.Shutdown()
	}
	if k.dir != "" {
		os.RemoveAll(k.dir)
	}
}

// kvGate is who may come in at a decode node's KV server, and what for. It takes the place of the accounts
// that the cluster's broker has: whom the cluster's account vouches for is known here by the same JWTs, but with
// other rights, and by a login to this server alone (identity.KVLogin).
type kvGate struct {
	node      *identity.Node
	authority *identity.Authority
	now       func() time.Time
}

// Check implements server.Authentication.
func (g *kvGate) Check(c server.ClientAuthentication) bool {
	user, err := g.login(c.Kind(), c.GetOpts(), c.GetNonce())
	if err != nil {
		return false // the server logs that it refused
	}
	c.RegisterUser(user)
	return true
}

// errKVRole is somebody of this cluster who has no business here.
var errKVRole = errors.New("cluster: neither a prefill node nor this decode node")

func (g *kvGate) login(kind int, o *server.ClientOpts, nonce []byte) (*server.User, error) {
	if kind != server.CLIENT {
		return nil, errKVRole
	}
	from, err := g.authority.Verify(o.Token, g.now())
	if err != nil {
		return nil, err
	}
	if err := from.VerifyKVLogin(g.node.Name, g.node.Epoch, nonce, o.Sig); err != nil {
		return nil, err
	}
	user := &server.User{Username: from.Name, ConnectionDeadline: from.Expires}
	inbox := "_INBOX." + from.Name + ".>"
	switch {
	case from.Role == identity.Prefill:
		user.Permissions = kvRights([]string{"kv." + g.node.Name + ".*.*.*"}, []string{inbox})
	case from.Role == identity.Decode && from.Public.Equal(g.node.Public()): // this process, whoever else bears its name
		user.ConnectionDeadline = time.Time{}
		stream, mine := "KV_"+g.node.Name, "KV_"+g.node.Name+"."+g.node.Name
		user.Permissions = kvRights([]string{
			"$JS.API.STREAM.INFO." + stream, "$JS.API.STREAM.CREATE." + stream, "$JS.API.STREAM.UPDATE." + stream,
			"$JS.API.CONSUMER.CREATE." + mine, "$JS.API.CONSUMER.MSG.NEXT." + mine, "$JS.API.CONSUMER.INFO." + mine,
			"$JS.ACK." + mine + ".*.*.*.*.*", "$JS.ACK.*.*." + mine + ".*.*.*.*.>",
		}, []string{inbox})
	default:
		return nil, errKVRole
	}
	return user, nil
}

// kvRights allows what is listed and nothing else.
func kvRights(publish, subscribe []string) *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: publish},
		Subscribe: &server.SubjectPermission{Allow: subscribe},
	}
}
