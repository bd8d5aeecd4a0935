package identity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// The folders of a key tree beside one per role.
const (
	OperatorDir = "operator" // the roots: keep offline
	PublicDir   = "public"   // what a broker reads
)

// WriteTree writes the keys to dir so that each role can be given one folder
// and nothing else:
//
//	operator/  operator.nk account.nk system.nk        the roots; no running role needs them
//	public/    operator.jwt account.jwt system.jwt auth.conf
//	<role>/    <role>.nk operator.jwt account.jwt      what LoadMinter reads
//
// It never overwrites: if any of the files is there, it returns ErrExists
// before anything is written.
func (k *Keys) WriteTree(dir string) error {
	type file struct {
		path string
		data []byte
		mode os.FileMode
	}
	var files []file
	add := func(folder, name, data string, mode os.FileMode) {
		files = append(files, file{filepath.Join(dir, folder, name), []byte(data), mode})
	}
	seed := func(folder, name string) error {
		s, err := k.seeds[name].Seed()
		if err != nil {
			return fmt.Errorf("identity: %s seed: %w", name, err)
		}
		add(folder, name+".nk", string(s)+"\n", 0o400)
		return nil
	}
	err := errors.Join(seed(OperatorDir, operatorKey), seed(OperatorDir, accountKey), seed(OperatorDir, systemKey))
	folders := []string{OperatorDir, PublicDir}
	add(PublicDir, "system.jwt", k.auth.SystemJWT+"\n", 0o444)
	add(PublicDir, "auth.conf", k.auth.Config(), 0o444)
	for _, role := range Roles() {
		folders = append(folders, role)
		err = errors.Join(err, seed(role, role))
	}
	if err != nil {
		return err
	}
	for _, folder := range folders[1:] {
		add(folder, "operator.jwt", k.auth.OperatorJWT+"\n", 0o444)
		add(folder, "account.jwt", k.auth.AccountJWT+"\n", 0o444)
	}
	for _, f := range files {
		if _, err := os.Lstat(f.path); err == nil {
			return fmt.Errorf("%w: %s", ErrExists, f.path)
		}
	}
	for _, folder := range folders {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o700); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := writeNew(f.path, f.data, f.mode); err != nil {
			return err
		}
	}
	return nil
}
