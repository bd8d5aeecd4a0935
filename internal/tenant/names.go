package tenant

import (
	"errors"
	"fmt"
)

// The longest names, in bytes. Node names fill one NATS subject token and the
// 32-byte id fields of a sealed frame; tenant ids only ever travel in tokens.
const (
	MaxNodeName = 32
	MaxTenantID = 64
)

// ErrName is returned for a name outside its grammar.
var ErrName = errors.New("tenant: bad name")

// CheckNode returns an error matching ErrName unless name is 1 to 32 characters
// of [A-Za-z0-9_-]: the grammar of node names, which become NATS subject
// tokens, stream names and parts of permissions.
func CheckNode(name string) error { return checkName("node", name, MaxNodeName) }

// CheckTenant does the same for tenant names and ids, up to 64 characters.
func CheckTenant(name string) error { return checkName("tenant", name, MaxTenantID) }

// checkName does not repeat the name: it may be hostile bytes on its way to a log.
func checkName(kind, name string, max int) error {
	if len(name) == 0 || len(name) > max {
		return fmt.Errorf("%w: a %s name has 1 to %d characters, got %d", ErrName, kind, max, len(name))
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return fmt.Errorf("%w: a %s name holds only [A-Za-z0-9_-], byte %d is 0x%02x", ErrName, kind, i, c)
		}
	}
	return nil
}
