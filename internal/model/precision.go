package model

// Rounding the inputs of quantised matrices to 8 bits is what makes them fast,
// and on a small model it is felt: SmolLM2's greedy answer to "What is the capital of
// France?" flips between two first tokens 0.08 apart. Most of the error is made by
// few blocks of few channels, and kernels.Backend.LoadPrecise keeps 15 bits of those.
// Measured on SmolLM2-135M Q4_1 against transformers in f32 on the same weights
// (TestSmolLM2Golden: share of 1280 first choices that agree, mean absolute difference
// of a log probability), by how many times the mean of its row's scales a block's scale
// must be (kernels/cpu, outlierFactor):
//
//	no outliers                     96.9 %  0.034   0 % of the blocks
//	3                               98.0 %  0.023   3 %
//	2.5                             98.6 %  0.022   4 %
//	2                               98.6 %  0.020   8 %
//	1.5                             99.1 %  0.017  15 %   <- every matrix
//	1.25                            99.1 %  0.014  21 %
//	1                               99.1 %  0.012  32 %
//	0 (15 bits of everything)       100 %   0.0005
//
// The last line also says that nothing else is lost: f16 KV costs 0.0004. A block of 15
// bits costs one more block of arithmetic and no memory.
