//go:build rogue

package rogue

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/openai"
	"bulkhead/internal/provenance"
	"bulkhead/transfer"
)

const (
	roundSize = 50 // requests at once, where nothing has to time out
	roundsMax = 60 // until enough have met the bug
)

// requests is how many are to meet each bug.
func requests(t *testing.T) int {
	text, ok := os.LookupEnv("BULKHEAD_ROGUE_REQUESTS")
	if !ok {
		return 10
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("BULKHEAD_ROGUE_REQUESTS is %q, want a number from 1", text)
	}
	return n
}

// tally is what became of the requests of one switch.
type tally struct {
	asked, met, refused, right, wrong int
	counted                           float64
	first                             string // the first wrong one
}

func (a *tally) add(v verdict) {
	a.asked++
	switch v.outcome {
	case Refused:
		a.refused++
	case Right:
		a.right++
	default:
		a.wrong++
		if a.first == "" {
			a.first = v.why
		}
	}
}

type verdict struct {
	outcome Outcome // Refused, Right, or Blind for wrong
	why     string
}

// judge compares an answer with the only right one.
func judge(a *openai.Answer, err error, want string, prompt, maxNew int, stream bool) verdict {
	wrong := func(format string, args ...any) verdict { return verdict{Blind, fmt.Sprintf(format, args...)} }
	if a == nil {
		return wrong("no answer: %v", err)
	}
	if a.Status != http.StatusOK {
		if a.Err == nil || a.Text != "" {
			return wrong("status %d with text %q, error %+v", a.Status, a.Text, a.Err)
		}
		return verdict{Refused, a.Err.Message}
	}
	switch {
	case a.Err != nil && (!stream || a.Done || a.After || !strings.HasPrefix(want, a.Text)):
		return wrong("an error in a 200, with %q of %q, done %v", a.Text, want, a.Done)
	case a.Err != nil:
		return verdict{Refused, a.Err.Message}
	case err != nil:
		return wrong("200, then %v", err)
	case a.Text != want:
		return wrong("200 with %q, want %q", a.Text, want)
	case a.Finish != "length" || a.Done != stream:
		return wrong("200 that ends with %q, [DONE] %v", a.Finish, a.Done)
	case a.Usage == nil || a.Usage.Prompt != prompt || a.Usage.Completion != maxNew:
		return wrong("usage %+v of a prompt of %d and an answer of %d", a.Usage, prompt, maxNew)
	}
	return verdict{Right, ""}
}

// bench asks with prompts of its own and judges.
type bench struct {
	*site
	oracle *provenance.Oracle
	mu     sync.Mutex // of oracle
	asked  int
}

// round sends some requests at once and adds them to a.
func (b *bench) round(a *tally, c *openai.Client, n int, streams bool) {
	var wg sync.WaitGroup
	verdicts := make([]verdict, n)
	for i := range n {
		b.asked++
		number := b.asked
		wg.Go(func() {
			const maxNew = 6
			// 1 to 5 blocks, with a head of its own.
			prompt := fmt.Sprintf("request %d of tenant %d: ", number, number%2)
			prompt += strings.Repeat("x", 65+number*37%230)
			ids := make([]int32, len(prompt)) // one token for each byte
			for j := range ids {
				ids[j] = int32(prompt[j])
			}
			want := ""
			b.mu.Lock()
			for _, id := range b.oracle.Expected(ids, maxNew) {
				want += fmt.Sprintf("[p%x]", id-provenance.FirstDigit)
			}
			b.mu.Unlock()
			stream := streams && number%2 == 0
			answer, err := b.ask(c, tenantKeys[number%2], prompt, maxNew, stream)
			verdicts[i] = judge(answer, err, want, len(ids), maxNew, stream)
		})
	}
	wg.Wait()
	for _, v := range verdicts {
		a.add(v)
	}
}

// run meets one switch n times.
func (b *bench) run(s Switch, n int) (a tally) {
	before := b.series()
	b.set(s.Role, s.Name)
	c, streams := b.web, true
	if s.Role == transfer.RoleRouter {
		c, streams = b.edge, false // the rogue's own answers are no streams
	}
	counted := func(now map[string]float64) (sum float64) {
		for _, name := range s.Counted {
			sum += now[name]
			if !s.Shunned {
				sum -= before[name]
			}
		}
		return sum
	}
	if s.Shunned {
		b.eventually("a node is shunned", func() bool { return counted(b.series()) > 0 })
		a.counted = counted(b.series())
	}
	size := min(roundSize, n)
	switch {
	case s.Slow && s.Role == transfer.RoleRouter:
		size = n
	case s.Slow:
		size = 5 * n / 2 // about half of them meet the bug
	}
	for range roundsMax {
		b.round(&a, c, size, streams)
		if a.met = b.set(s.Role, s.Name); a.met >= n || s.Shunned && a.asked >= n {
			break
		}
	}
	b.set(s.Role, Idle)
	a.met = b.set(s.Role, s.Name)
	b.set(s.Role, Idle)
	if !s.Shunned {
		// What was sent to nobody is refused in its own time.
		b.eventually(s.Name+": the refusals are counted", func() bool {
			a.counted = counted(b.series())
			return len(s.Counted) == 0 || a.counted >= float64(a.met) || b.t.Failed()
		})
	}
	return a
}

// goal: no misbehaving prefill, decode or router makes an honest peer give a wrong answer, and what
// is refused is counted under its reason. method: the released binary as honest processes, this test
// binary as the rogue ones, a real nats-server; each bug of [Switches] met by so many requests (100
// in make rogue); every answer compared with the oracle's. After each bug the honest nodes' pages
// are back, and honest requests are served. The blind ones are the control: lies that
// only the oracle sees, and it does.
func TestRogue(t *testing.T) {
	e, err := provenance.New(provenance.Config{Window: window})
	must(t, err)
	b := &bench{site: newSite(t), oracle: e.NewOracle()}
	n := requests(t)

	var honest tally
	for _, r := range []transfer.Role{transfer.RolePrefill, transfer.RoleDecode, transfer.RoleRouter} {
		// Each rogue without a bug is as good as any, and has a past to replay afterwards.
		b.set(r, Honest)
		c := b.web
		if r == transfer.RoleRouter {
			c = b.edge
		}
		for b.set(r, Honest) < 4 && honest.asked < 1000 {
			b.round(&honest, c, 8, false)
		}
		b.set(r, Idle)
	}
	if honest.right != honest.asked {
		t.Fatalf("rogues without a bug: %+v", honest)
	}

	var rows []string
	for _, s := range Switches() {
		t.Run(string(s.Role)+"/"+s.Name, func(t *testing.T) {
			site := b.site.t
			b.t = t
			defer func() { b.t = site; b.set(s.Role, Idle) }()
			a := b.run(s, n)
			row := row(s, a)
			rows = append(rows, row)
			t.Log(row)
			if a.met < n && !s.Shunned {
				t.Errorf("only %d of %d requests met the bug", a.met, a.asked)
			}
			if s.Want == Blind {
				if a.wrong == 0 {
					t.Error("the oracle does not see a lie that no peer can")
				}
			} else if a.wrong > 0 {
				t.Errorf("%d wrong answers, the first: %s", a.wrong, a.first)
			}
			switch {
			case s.Want == Refused && a.refused != a.met:
				t.Errorf("%d refused of %d that met the bug", a.refused, a.met)
			case s.Want == Right && a.refused > 0:
				t.Errorf("%d refused", a.refused)
			case a.refused > a.met:
				t.Errorf("%d refused, and only %d met the bug", a.refused, a.met)
			}
			if s.Want != Blind && len(s.Counted) > 0 && !s.Shunned && a.counted < float64(a.met) {
				t.Errorf("counted %v under %v, %d met the bug", a.counted, s.Counted, a.met)
			}
			b.eventually("the pages are back", func() bool { return maps.Equal(b.free(), b.pages) })
			var after tally
			b.round(&after, b.web, 2, true)
			if after.right != after.asked {
				t.Errorf("honest requests afterwards: %+v", after)
			}
		})
	}
	t.Logf("misbehaving peers, %d requests a switch:\n%s%s", n, head, strings.Join(rows, ""))
	if path := os.Getenv("BULKHEAD_ROGUE_TABLE"); path != "" && !t.Failed() && len(rows) == len(Switches()) {
		must(t, os.WriteFile(path, []byte(page(n, rows)), 0o644))
	}
}
