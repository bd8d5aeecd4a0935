package cpu

// archTiers gives the tiers of this architecture, best first.
func archTiers() []*tier { return []*tier{avx512(), avxvnni(), avx2()} }
