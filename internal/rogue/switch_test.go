package rogue

import "testing"

// goal: every bug has a name of its own, one implementation, and a verdict that can fail.
func TestSwitches(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Switches() {
		name := string(s.Role) + "/" + s.Name
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		if s.Does == "" || s.Want == "" {
			t.Errorf("%s says not what it does or what must become of it", name)
		}
		if s.Want != Blind && s.Want != Right && len(s.Counted) == 0 {
			t.Errorf("%s is refused and counted nowhere", name)
		}
		var has int
		for _, f := range []bool{s.prefill != nil, s.decode != nil, s.router != nil} {
			if f {
				has++
			}
		}
		built := s.Name == bugBoast || s.Name == bugWeights || s.Name == bugFew || s.Name == bugCredit
		if has != 1 && !built {
			t.Errorf("%s has %d implementations", name, has)
		}
	}
	if len(seen) < 40 {
		t.Errorf("%d bugs, want 40 at least", len(seen))
	}
}
