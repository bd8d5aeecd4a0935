package sample

// philox is Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror
// and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.3:
// the output is a pure function of counter and key, so any position's randomness
// can be had without the positions before it.
func philox(ctr [4]uint32, key [2]uint32) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57 // multipliers
		w0, w1 = 0x9E3779B9, 0xBB67AE85 // key schedule: golden ratio, sqrt(3)-1
	)
	for range 10 {
		p0, p1 := uint64(m0)*uint64(ctr[0]), uint64(m1)*uint64(ctr[2])
		ctr = [4]uint32{
			uint32(p1>>32) ^ ctr[1] ^ key[0], uint32(p1),
			uint32(p0>>32) ^ ctr[3] ^ key[1], uint32(p0),
		}
		key[0] += w0
		key[1] += w1
	}
	return ctr
}

// random gives the 64 random bits of one position of one sequence. position is
// the place in the sequence of the token that is about to be chosen, prompt
// included. The last counter word is 0: other uses of a request's randomness, if
// they come, take other words.
func random(seed uint64, child uint32, position uint64) uint64 {
	out := philox(
		[4]uint32{uint32(position), uint32(position >> 32), child, 0},
		[2]uint32{uint32(seed), uint32(seed >> 32)},
	)
	return uint64(out[1])<<32 | uint64(out[0])
}
