package identity

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// ErrExists is returned by Init where keys are already.
var ErrExists = errors.New("identity: there are keys already")

// maxKeyFile bounds what is read of any file of this package.
const maxKeyFile = 64 << 10

// Init makes the keys of a cluster and writes them to dir; see the package
// comment for the files. It makes dir if needed and never overwrites: a file
// that is there already gives ErrExists before anything is written.
func Init(dir, cluster string) error {
	k, err := NewMemory(cluster)
	if err != nil {
		return err
	}
	return k.Write(dir)
}

// Write writes the keys to dir as Init does.
func (k *Keys) Write(dir string) error {
	type file struct {
		name string
		data []byte
		mode os.FileMode
	}
	var files []file
	for name, pair := range k.seeds {
		seed, err := pair.Seed()
		if err != nil {
			return fmt.Errorf("identity: %s seed: %w", name, err)
		}
		files = append(files, file{name + ".nk", append(seed, '\n'), 0o400})
	}
	files = append(files,
		file{"operator.jwt", []byte(k.auth.OperatorJWT + "\n"), 0o444},
		file{"account.jwt", []byte(k.auth.AccountJWT + "\n"), 0o444},
		file{"system.jwt", []byte(k.auth.SystemJWT + "\n"), 0o444},
		file{"auth.conf", []byte(k.auth.Config()), 0o444},
	)
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })

	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(dir, f.name)); err == nil {
			return fmt.Errorf("%w: %s", ErrExists, filepath.Join(dir, f.name))
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		if err := writeNew(filepath.Join(dir, f.name), f.data, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// writeNew never follows a link and never replaces a file.
func writeNew(path string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// LoadMinter reads <role>.nk, account.jwt and operator.jwt of dir. It fails if
// the key is not that of this role in this account.
func LoadMinter(dir string, role Role) (*Minter, error) {
	if _, ok := Scopes()[role]; !ok {
		return nil, errRole(role)
	}
	a, err := LoadAuthority(dir)
	if err != nil {
		return nil, err
	}
	seed, err := readKeyFile(dir, role+".nk")
	if err != nil {
		return nil, err
	}
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return nil, fmt.Errorf("identity: %s: not an nkey seed", filepath.Join(dir, role+".nk"))
	}
	return newMinter(a, role, pair)
}

// LoadAuthority reads account.jwt and operator.jwt of dir.
func LoadAuthority(dir string) (*Authority, error) {
	account, err := readKeyFile(dir, "account.jwt")
	if err != nil {
		return nil, err
	}
	operator, err := readKeyFile(dir, "operator.jwt")
	if err != nil {
		return nil, err
	}
	return NewAuthority(account, operator)
}

// LoadServerAuth reads operator.jwt, account.jwt and system.jwt of dir.
func LoadServerAuth(dir string) (ServerAuth, error) {
	var s ServerAuth
	for name, dst := range map[string]*string{
		"operator.jwt": &s.OperatorJWT, "account.jwt": &s.AccountJWT, "system.jwt": &s.SystemJWT,
	} {
		var err error
		if *dst, err = readKeyFile(dir, name); err != nil {
			return ServerAuth{}, err
		}
	}
	for token, dst := range map[string]*string{s.AccountJWT: &s.Account, s.SystemJWT: &s.System} {
		ac, err := jwt.DecodeAccountClaims(token)
		if err != nil {
			return ServerAuth{}, fmt.Errorf("identity: account JWT in %s: %w", dir, err)
		}
		*dst = ac.Subject
	}
	return s, nil
}

func readKeyFile(dir, name string) (string, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxKeyFile {
		return "", fmt.Errorf("identity: %s: over %d bytes", filepath.Join(dir, name), maxKeyFile)
	}
	return strings.TrimSpace(string(b)), nil
}
