package cpu

// adviseHuge does nothing: darwin has 16 KiB pages and no such advice.
func adviseHuge([]byte) {}
