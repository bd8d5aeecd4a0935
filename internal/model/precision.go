package model

// Rounding the inputs of quantised matrices to 8 bits is what makes them fast,
// and on a small model it is felt. Measured on SmolLM2-135M Q4_1 against
// transformers in f32 on the same weights (TestSmolLM2Golden: share of 1280 first
// choices that agree, mean absolute difference of a log probability), by which matrices
// get precise inputs (kernels.Backend.LoadPrecise, 15 bits):
//
//	none                                           96.9 %  0.034
//	head                                           97.6 %  0.031
//	head, ffn_down                                 98.5 %  0.029
//	head, all of the first third of layers         98.2 %  0.029
//	head, ffn_down, all of the first third         98.8 %  0.024   <- in larger models
//	all                                             100 %  0.0005  <- in small ones
//
// The last line also says that nothing else is lost: f16 KV costs 0.0004.
//
// The rule: everything in a model of fewer than smallHidden hidden dimensions,
// whose answers the roundings visibly change (SmolLM2's greedy answer to "What is
// the capital of France?" flips between two first tokens 0.08 apart). In a larger
// model the errors average out over longer rows, and three groups are enough: the
// head, whose output is compared directly; ffn_down, whose input is a product of two
// others and has the heaviest tails; and the first third of the layers, whose errors
// travel through all the rest. Precise inputs cost twice the arithmetic in prefill, and
// little in decode, which waits for memory.

// smallHidden is where the errors of 8-bit inputs are taken to be averaged out.
const smallHidden = 1024

// precise says whether a matrix gets precise inputs. layer is noLayer for the
// head and the embedding, which is the head where it is tied; looking a token up in it
// rounds nothing.
func (s Spec) precise(layer int, name string) bool {
	return s.Hidden < smallHidden || s.sensitive(layer, name)
}

// sensitive names the matrices that get precise inputs in a model of any size.
func (s Spec) sensitive(layer int, name string) bool {
	early := layer < (s.Layers+2)/3 // noLayer included
	return early || name == nameDown
}
