package cpu

func archTiers() []*tier { return nil }
