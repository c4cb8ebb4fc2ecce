/// \file
/// The fast forward for few queries, as in decoding: the same source with tiles of one vector. A lane computes the same
/// numbers in the same order, so a query has the same bits with both.
#define RING_ATTENTION_FEW_QUERIES
#include "ring_attention/cpu/forward_kernel.cpp"
