package identity

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
)

// The login of a prefill node at the KV server that a decode node runs in its
// own process. That server is another node's, and may be hostile: a bare signature of
// its challenge, as a broker gets it, it could pass on to the real broker, whose challenge it was. So the challenge is
// signed as a statement ([Node.Sign]) to this one decode node in this boot, which
// no broker takes, nor any other node's KV server.

// kvLogin is the statement's kind.
const kvLogin = "kv login"

// kvNonceMax is the longest challenge that is signed; nats-server's has 22 characters (base64 of 16 bytes).
const kvNonceMax = 64

// ErrKVLogin is a login at a KV server that does not hold.
var ErrKVLogin = errors.New("identity: KV server login does not hold")

// KVLogin is what a node shows of itself at one decode node's KV server.
type KVLogin struct {
	node *Node
	dest string
}

// KVLogin is the login at the KV server of a decode node in one boot.
func (n *Node) KVLogin(decode string, epoch uint64) KVLogin {
	return KVLogin{n, kvLoginDest(decode, epoch)}
}

// kvLoginDest names a boot of a decode node.
func kvLoginDest(decode string, epoch uint64) string {
	return string(binary.BigEndian.AppendUint64(append([]byte(decode), 0), epoch))
}

// JWT has the signature of nats.UserJWTHandler.
func (k KVLogin) JWT() (string, error) { return k.node.JWT() }

// Token is the JWT where it travels as a NATS token: a server without accounts, as a KV server is, throws
// the JWT of a login away before anyone sees it.
func (k KVLogin) Token() string {
	token, err := k.node.JWT()
	if err != nil {
		return "" // refused by whoever reads it
	}
	return token
}

// User is the node's public nkey.
func (k KVLogin) User() string { return k.node.user }

// NATSSign has the signature of nats.SignatureHandler.
func (k KVLogin) NATSSign(nonce []byte) ([]byte, error) {
	if len(nonce) == 0 || len(nonce) > kvNonceMax {
		return nil, fmt.Errorf("%w: %d bytes", ErrNonce, len(nonce))
	}
	return k.node.Sign(kvLogin, k.dest, nonce), nil
}

// VerifyKVLogin returns ErrKVLogin unless sig, in the base64 of a NATS login, is the peer's
// answer to nonce at the KV server of this boot of this decode node.
func (p Peer) VerifyKVLogin(decode string, epoch uint64, nonce []byte, sig string) error {
	if len(nonce) == 0 || len(nonce) > kvNonceMax {
		return fmt.Errorf("%w: challenge of %d bytes", ErrKVLogin, len(nonce))
	}
	raw, err := base64.RawURLEncoding.DecodeString(sig)
	if err != nil {
		return fmt.Errorf("%w: signature is not base64", ErrKVLogin)
	}
	if err := p.VerifySig(kvLogin, kvLoginDest(decode, epoch), nonce, raw); err != nil {
		return fmt.Errorf("%w: %w", ErrKVLogin, err)
	}
	return nil
}
