package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"bulkhead/internal/identity"
	"bulkhead/internal/tenant"
)

type keysCmd struct {
	Init keysInitCmd `cmd:"" help:"Make a cluster's operator, account and one signing key per role."`
}

// keysInitCmd never overwrites a key.
type keysInitCmd struct {
	Dir         string   `help:"Folder to write to." default:"keys"`
	Cluster     string   `help:"Name of the cluster." default:"bulkhead"`
	IfMissing   bool     `help:"Do nothing, with success, where keys are already."`
	TenantsFile string   `help:"Also make a tenants file here, if there is none."`
	Tenant      []string `help:"A tenant of a new tenants file, NAME=KEY; NAME alone generates the key and prints it." placeholder:"NAME=KEY"`
}

func (c keysInitCmd) Run() error {
	// A bad tenant is found before any key is written.
	var reg *tenant.Registry
	if c.TenantsFile != "" {
		switch _, err := os.Stat(c.TenantsFile); {
		case errors.Is(err, fs.ErrNotExist):
			if len(c.Tenant) == 0 {
				c.Tenant = []string{"default"}
			}
			reg = tenant.NewRegistry()
			if err := addTenants(reg, c.Tenant); err != nil {
				return err
			}
		case err != nil:
			return err
		}
	}
	keys, err := identity.NewMemory(c.Cluster)
	if err != nil {
		return err
	}
	switch err := keys.WriteTree(c.Dir); {
	case errors.Is(err, identity.ErrExists) && c.IfMissing:
		fmt.Println("keys are there already:", c.Dir)
	case err != nil:
		return err
	default:
		fmt.Println("made keys in", c.Dir)
		fmt.Printf("keep %s offline; a role needs its own folder only, the broker %s\n",
			filepath.Join(c.Dir, identity.OperatorDir), filepath.Join(c.Dir, identity.PublicDir))
	}
	if reg == nil {
		return nil
	}
	return reg.Save(c.TenantsFile)
}

// addTenants adds NAME=KEY pairs. A key that is made here is printed, once: the
// registry keeps only its hash.
func addTenants(reg *tenant.Registry, pairs []string) error {
	for _, p := range pairs {
		name, key, given := strings.Cut(p, "=")
		if !given {
			key = tenant.NewKey()
			fmt.Printf("tenant %s has the key %s\n", name, key)
		}
		if _, err := reg.Add(name, key, tenant.Limits{}); err != nil {
			return err
		}
	}
	return nil
}

type tenantCmd struct {
	Add    tenantAddCmd    `cmd:"" help:"Add a tenant and print its key."`
	List   tenantListCmd   `cmd:"" help:"List tenants."`
	Remove tenantRemoveCmd `cmd:"" help:"Remove a tenant."`
}

type tenantAddCmd struct {
	File string `help:"The tenants file." default:"tenants.json"`
	Name string `arg:"" help:"Name of the tenant."`
	Key  string `help:"Its key; empty generates one and prints it."`

	MaxConcurrent     int `help:"Requests in work at once; 0 is no limit."`
	RequestsPerMinute int `help:"0 is no limit."`
	TokensPerMinute   int `help:"Prompt and generated together; 0 is no limit."`
	MaxNewTokens      int `help:"Generated tokens of one sequence; 0 is no limit."`
}

func (c tenantAddCmd) Run() error {
	reg, err := tenant.LoadOrNew(c.File)
	if err != nil {
		return err
	}
	key := c.Key
	if key == "" {
		key = tenant.NewKey()
	}
	_, err = reg.Add(c.Name, key, tenant.Limits{
		MaxConcurrent: c.MaxConcurrent, RequestsPerMinute: c.RequestsPerMinute,
		TokensPerMinute: c.TokensPerMinute, MaxNewTokens: c.MaxNewTokens,
	})
	if err != nil {
		return err
	}
	if err := reg.Save(c.File); err != nil {
		return err
	}
	if c.Key == "" {
		fmt.Println(key)
	}
	return nil
}

type tenantListCmd struct {
	File string `help:"The tenants file." default:"tenants.json"`
}

func (c tenantListCmd) Run() error {
	reg, err := tenant.Load(c.File)
	if err != nil {
		return err
	}
	for _, t := range reg.Tenants() {
		fmt.Printf("%s\t%s\t%+v\n", t.Name, t.ID, t.Limits)
	}
	return nil
}

type tenantRemoveCmd struct {
	File string `help:"The tenants file." default:"tenants.json"`
	Name string `arg:"" help:"Name of the tenant."`
}

func (c tenantRemoveCmd) Run() error {
	reg, err := tenant.Load(c.File)
	if err != nil {
		return err
	}
	if err := reg.Remove(c.Name); err != nil {
		return err
	}
	return reg.Save(c.File)
}

// splitAddress reads host:port.
func splitAddress(addr string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	if port, err = strconv.Atoi(p); err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("address %q: bad port", addr)
	}
	return host, port, nil
}
