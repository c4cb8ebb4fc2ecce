/// \file
/// The fast forward for few queries, as in decoding: the same source with tiles of two vectors. A lane computes the same
/// numbers in the same order, so a query has the same bits with all kernels.
#define RING_ATTENTION_VECTORS 2
#define RING_ATTENTION_FORWARD forward_2
#include "ring_attention/cpu/forward_kernel.cpp"  // NOLINT(bugprone-suspicious-include)
