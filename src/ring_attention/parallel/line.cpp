#include "ring_attention/parallel/line.hpp"

#include <algorithm>

namespace ring_attention {

void Line::exchange(const Pieces& pieces) const {
  if (end_) {
    end_->exchange(pieces);
  } else {
    require_pieces(pieces, 0, 1);
    std::ranges::copy(pieces.send.front(), pieces.receive.front().begin());
  }
}

}  // namespace ring_attention
