#include "ring_attention/attention/backward.hpp"

namespace ring_attention {

template class BlockwiseBackward<float>;
template class BlockwiseBackward<double>;

}  // namespace ring_attention
