package cluster

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"bulkhead/internal/identity"
	"bulkhead/transfer"
)

// Join is how a node comes onto the bus.
type Join struct {
	Minter *identity.Minter // makes the node's identity; its role is the node's
	Name   string           // of the node; "" is NodeName(role)

	URL    string // of the NATS server
	Server *NATS  // an embedded server to reach in process instead

	Log          *slog.Logger
	Counters     *transfer.Counters
	OnConnection func(up bool)
}

// Joined is a node on the bus.
type Joined struct {
	Node *identity.Node
	Peer *transfer.Peer
	Conn *transfer.Conn
}

// Connect makes the node's identity and connects it; it tries until ctx ends.
func (j Join) Connect(ctx context.Context) (*Joined, error) {
	if j.Name == "" {
		j.Name = NodeName(j.Minter.Role())
	}
	node, err := j.Minter.NewNode(j.Name)
	if err != nil {
		return nil, err
	}
	cfg := transfer.Config{
		URL: j.URL, Name: node.Name, Identity: node,
		Log: j.Log, Counters: j.Counters, OnConnection: j.OnConnection,
	}
	if j.Server != nil {
		cfg.URL, cfg.InProcess = j.Server.ClientURL(), j.Server
	}
	conn, err := transfer.Connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("cluster: join as %s: %w", node.Name, err)
	}
	peer := transfer.NewPeer(transfer.Options{
		Bus: conn, Node: node, Authority: node.Authority(), Cluster: node.Authority().Cluster(),
		Log: j.Log, Counters: j.Counters, Loopback: conn.Loopback(),
	})
	return &Joined{Node: node, Peer: peer, Conn: conn}, nil
}

// NodeName makes the name of a new node: its role, what the machine calls
// itself, and a random part, because replicas of a container may share a host
// name and a name must not be used twice at a time.
func NodeName(role string) string {
	var b [5]byte
	rand.Read(b[:])
	host, err := os.Hostname()
	if err != nil {
		host = "host"
	}
	host = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		}
		return '-'
	}, host)
	random := strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
	room := transfer.NodeNameMax - len(role) - len(random) - 2
	return fmt.Sprintf("%s-%.*s-%s", role, room, host, random)
}
