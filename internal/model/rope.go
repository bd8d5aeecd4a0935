package model

import "math"

// invFreq is the rotation frequencies of a head, [RopeDims/2]: theta^(-2i/dims)
// (Su et al., "RoFormer", section 3.2.2), divided by the linear factor and by the
// file's frequency factors where it has them. Llama 3's long-context scaling is such
// factors, computed by the converter.
func (s Spec) invFreq(factors []float32) []float32 {
	inv := make([]float32, s.RopeDims/2)
	for i := range inv {
		f := math.Pow(s.RopeTheta, -float64(2*i)/float64(s.RopeDims)) / s.RopeLinear
		if factors != nil {
			f /= float64(factors[i])
		}
		inv[i] = float32(f)
	}
	return inv
}
