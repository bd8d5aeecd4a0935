package tenant

import (
	"fmt"
	"log/slog"
)

// Redacted is what a secret prints as.
const Redacted = "[secret]"

// Secret is 32 bytes of key material that no verb of fmt, no slog handler and
// no JSON encoder will show. Convert to [32]byte where the bytes are used.
//
// fmt does not consult the methods of unexported fields, so a struct that may
// be printed should hold a *Secret, not a Secret.
type Secret [32]byte

// Format implements fmt.Formatter for every verb.
func (Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, Redacted) }

// String implements fmt.Stringer.
func (Secret) String() string { return Redacted }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(Redacted) }

// MarshalText keeps encoders out, JSON's included.
func (Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }
