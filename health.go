package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// healthCmd lets an image without a shell or curl have a health check.
type healthCmd struct {
	URL     string        `help:"What to ask: a role's /livez, /readyz or /health." default:"http://127.0.0.1:8080/readyz"`
	Timeout time.Duration `help:"How long to wait." default:"2s"`
}

func (c healthCmd) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s: %s", c.URL, resp.Status, body)
	}
	fmt.Printf("%s\n", body)
	return nil
}
