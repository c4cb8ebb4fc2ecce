#include "ring_attention/attention/blockwise.hpp"

namespace ring_attention {

template class BlockwiseEngine<float>;
template class BlockwiseEngine<double>;

}  // namespace ring_attention
