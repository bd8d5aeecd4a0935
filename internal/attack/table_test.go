//go:build mutants

package attack

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/mutant"
	"bulkhead/internal/sim"
)

var (
	write     = flag.Bool("table", false, "make docs/mutants.md anew: every check alone, and every pair")
	schedules = flag.Uint64("schedules", 400, "of the simulator for each check alone; a tenth of it for each pair that no move gets past")
	long      = flag.Bool("long", false, "try every move against every pair, also those that the pair is no wall of")
)

const document = "../../docs/mutants.md"

// sight is by what a removed check, or several, was seen.
type sight struct {
	move *row   // that went through
	seed uint64 // of the first schedule that broke; 0: none
	says string // what broke in it
}

func (s sight) red() bool { return s.move != nil || s.seed > 0 }

func (s sight) String() string {
	var by []string
	if s.move != nil {
		by = append(by, fmt.Sprintf("**%s** (%s): else refused, *%s*", s.move.name, s.move.who, s.move.want))
	}
	if s.seed > 0 {
		by = append(by, fmt.Sprintf("schedule %d: %s", s.seed, s.says))
	}
	return cell(strings.Join(by, "; "))
}

func cell(s string) string { return strings.NewReplacer("|", `\|`, "\n", " ").Replace(s) }

// simulated runs schedules without checks, until one breaks.
func simulated(t *testing.T, n uint64, off ...mutant.Check) (seed uint64, says string) {
	t.Helper()
	defer mutant.Remove(off...)()
	r, err := sim.Run(t.Context(), sim.Config{Schedules: n, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.FirstBad == nil {
		return 0, ""
	}
	return r.FirstBad.Seed, r.FirstBad.Violations[0]
}

// found returns the first of the moves that goes through without the checks. Those
// of which the checks are walls come first; with all the others are tried too.
func found(all []row, everything bool, off ...mutant.Check) *row {
	wall := func(r row) bool {
		return slices.ContainsFunc(r.walls, func(c mutant.Check) bool { return slices.Contains(off, c) })
	}
	for _, first := range []bool{true, false} {
		if !first && !everything {
			return nil
		}
		for i := range all {
			if wall(all[i]) == first && without(all[i], off...) == "" {
				return &all[i]
			}
		}
	}
	return nil
}

// Goal: no check is there for nothing, and the document says which instrument sees
// each one gone. Method: each check is removed alone, then every pair; takes a minute or two.
func TestMutantsTable(t *testing.T) {
	checks, all := mutant.All(), rows()
	alone := map[mutant.Check]sight{}
	var silent []mutant.Info
	for _, c := range checks {
		s := sight{move: found(all, true, c.Check)}
		s.seed, s.says = simulated(t, *schedules, c.Check)
		alone[c.Check] = s
		if !s.red() {
			silent = append(silent, c)
		}
		t.Logf("%-22s %v", c.Check.Name(), s)
	}

	type pair [2]mutant.Check
	seen := map[pair]sight{}
	red, total := 0, 0
	var masked []pair
	for i, a := range checks {
		for _, b := range checks[i+1:] {
			total++
			sa, sb := alone[a.Check], alone[b.Check]
			s := pairSight(t, all, sa, sb, a.Check, b.Check)
			switch {
			case s.red():
				red++
			case sa.red() || sb.red():
				masked = append(masked, pair{a.Check, b.Check})
			}
			if !sa.red() && !sb.red() && s.red() {
				seen[pair{a.Check, b.Check}] = s
			}
		}
	}
	t.Logf("%d pairs, %d red", total, red)

	var d strings.Builder
	d.WriteString(preface)
	fmt.Fprintf(&d, "\nOf %d checks %d go red alone and %d are backed by others. Of %d pairs %d go red; the rest are two of those %d that do not back each other.\n",
		len(checks), len(checks)-len(silent), len(silent), total, red, len(silent))
	for _, p := range masked {
		t.Errorf("without %s and %s nothing is seen, and without one of them something is", p[0].Name(), p[1].Name())
	}
	d.WriteString("\n## Alone\n\n| check | where | what it holds | seen when it is removed |\n|---|---|---|---|\n")
	for _, c := range checks {
		by := alone[c.Check].String()
		if by == "" {
			by = "backed: see below"
		}
		fmt.Fprintf(&d, "| %s | %s | %s | %s |\n", c.Check.Name(), c.Package, cell(c.Says), by)
	}
	d.WriteString("\n## Backed by others\n\n| check | removed together with | seen |\n|---|---|---|\n")
	for _, c := range silent {
		shown := map[string]bool{}
		line := func(with string, s sight) {
			if !shown[with] {
				shown[with] = true
				fmt.Fprintf(&d, "| %s | %s | %s |\n", c.Check.Name(), with, s)
			}
		}
		for _, r := range nearest(all, c.Check) {
			line(names(r.walls, c.Check), sight{move: r})
		}
		for _, b := range silent {
			for _, p := range []pair{{c.Check, b.Check}, {b.Check, c.Check}} {
				if s, ok := seen[p]; ok {
					line(b.Check.Name(), s)
				}
			}
		}
		if len(shown) == 0 {
			t.Errorf("%s: no move and no schedule shows that it is gone, alone or with others", c.Check)
		}
	}
	if !*write {
		if old, err := os.ReadFile(document); err != nil || string(old) != d.String() {
			t.Errorf("%s is not what the table makes, or cannot be read (%v): run make mutants", document, err)
		}
		return
	}
	if err := os.WriteFile(document, []byte(d.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// pairSight is how a pair is seen: by what shows one of the two, or by anything.
func pairSight(t *testing.T, all []row, sa, sb sight, a, b mutant.Check) sight {
	t.Helper()
	for _, s := range []sight{sa, sb} {
		if s.move != nil && without(*s.move, a, b) == "" {
			return s
		}
	}
	if m := found(all, *long, a, b); m != nil {
		return sight{move: m}
	}
	n := *schedules / 10
	for _, s := range []sight{sa, sb} {
		n = max(n, s.seed)
	}
	var s sight
	s.seed, s.says = simulated(t, n, a, b)
	return s
}

// nearest are the moves that have the check as a wall, and the fewest others.
func nearest(all []row, c mutant.Check) (out []*row) {
	for i, r := range all {
		switch {
		case !slices.Contains(r.walls, c):
		case len(out) == 0 || len(r.walls) < len(out[0].walls):
			out = []*row{&all[i]}
		case len(r.walls) == len(out[0].walls):
			out = append(out, &all[i])
		}
	}
	return out
}

func names(c []mutant.Check, but mutant.Check) string {
	var out []string
	for _, c := range c {
		if c != but {
			out = append(out, c.Name())
		}
	}
	return strings.Join(out, " and ")
}

// The document lists the checks that there are, no fewer and no more.
func TestMutantsDocument(t *testing.T) {
	b, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(b), "## Alone")
	table, _, cut := strings.Cut(table, "## Backed by others")
	if !ok || !cut {
		t.Fatal("docs/mutants.md has not its two tables")
	}
	var have, want []string
	for _, line := range strings.Split(table, "\n") {
		if c := strings.Split(line, " | "); len(c) > 3 && !strings.HasPrefix(line, "| check") {
			have = append(have, strings.TrimPrefix(c[0], "| ")+" "+c[1]+" "+c[2])
		}
	}
	for _, c := range mutant.All() {
		want = append(want, c.Check.Name()+" "+c.Package+" "+cell(c.Says))
	}
	if !slices.Equal(have, want) {
		for _, w := range want {
			if !slices.Contains(have, w) {
				t.Errorf("not in docs/mutants.md: %s", w)
			}
		}
		t.Errorf("docs/mutants.md lists %d checks, there are %d: run make mutants", len(have), len(want))
	}
}

const preface = `# What each check holds

Made by ` + "`make mutants`" + `; do not edit. A *mutant* is Bulkhead with one check taken out: a test build only can do that
([internal/mutant](../internal/mutant)), and a test looks for the names in the release binary. If a mutant behaves like the product, either
the check is not needed or no test sees what it is for. So each one must *go red* somewhere:

- A **hostile move** ([internal/attack](../internal/attack)) goes through. The cell names the move, who makes it (the bus, a node
  of the cluster with its own keys, a client, a fault in memory) and the words with which the product refuses it. The same moves run in every ` + "`go test`" + `.
- A **schedule** of the simulator ([internal/sim](../internal/sim)) breaks: the number is the seed and so the count of schedules until it was seen; what
  follows is the first thing that broke. ` + "`bulkhead sim`" + ` runs the same seeds on the product.

Where a check is *backed*, nothing goes wrong without it alone, because another stands behind it; the second table has each set that
together goes red. ` + "`make test`" + ` proves the moves anew: with all walls of a move removed it goes through, with any one left it does not.
`
