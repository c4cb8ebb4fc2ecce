/// \file
/// The forward with exact sums for few queries: the same source with tiles of one vector.
#define RING_ATTENTION_VECTORS 1
#define RING_ATTENTION_EXACT_FORWARD exact_forward_1
#include "ring_attention/cpu/exact/forward_kernel.cpp"  // NOLINT(bugprone-suspicious-include)
