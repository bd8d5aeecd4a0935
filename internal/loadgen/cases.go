package loadgen

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Case is one line of BenchCases' input; what is zero is as in the EngineConfig.
type Case struct {
	Prompt int `json:"prompt"`
	Gen    int `json:"gen"`
	Batch  int `json:"batch"`
}

// Loaded is the first line of its output.
type Loaded struct {
	LoadS    float64 `json:"load_s"`    // as EngineResult's
	RSSBytes int64   `json:"rss_bytes"` // before any case
}

// caseBytesMax bounds a line of input: three small numbers.
const caseBytesMax = 4096

// BenchCases loads the model once and runs the cases that in names, a JSON object a line, as
// they come; out gets a line when the model is loaded and one EngineResult a case.
// So two engines can take turns on one machine, case by case, with nothing loaded
// again in between. Errors are those of BenchEngine, and ErrConfig for a line that is no case.
func BenchCases(ctx context.Context, c EngineConfig, in io.Reader, out io.Writer) error {
	if err := c.check(); err != nil {
		return err
	}
	m, seconds, err := c.load()
	if err != nil {
		return err
	}
	defer m.Close()
	rss, err := residentBytes()
	if err != nil {
		return err
	}
	enc := json.NewEncoder(out)
	if err := enc.Encode(Loaded{LoadS: seconds, RSSBytes: rss}); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, caseBytesMax)
	for n := 1; lines.Scan(); n++ {
		one, err := c.with(lines.Bytes())
		if err != nil {
			return fmt.Errorf("case %d: %w", n, err)
		}
		r, err := one.once(ctx, m)
		if err != nil {
			return fmt.Errorf("case %d: %w", n, err)
		}
		r.LoadS = seconds
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return lines.Err()
}

// with returns c changed by one line.
func (c EngineConfig) with(line []byte) (EngineConfig, error) {
	one := Case{Prompt: c.Prompt, Gen: c.Gen, Batch: c.Batch}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&one); err != nil {
		return c, fmt.Errorf("%w: no case: %v", ErrConfig, err)
	}
	c.Prompt, c.Gen, c.Batch = one.Prompt, one.Gen, one.Batch
	return c, c.check()
}
