#include "ring_attention/parallel/all_gather/all_gather.hpp"

#include <algorithm>

namespace ring_attention {

Division all_gather() {
  return {"all-gather", make_kv_of<KvAllGather>(MakeKvOfAll{}),
          [](int ranks) { return ranks - std::min(ranks, 2); }};  // a ring has its own and the next
}

}  // namespace ring_attention
