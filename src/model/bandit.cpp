#include "model/bandit.hpp"

#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention::model {
namespace {

constexpr std::uint64_t needle_tag = 3, pull_tag = 4;

}  // namespace

NeedleBandit::NeedleBandit(std::uint64_t seed, Index seq, Index arms, Labels labels)
    : seed_(seed), seq_(seq), arms_(arms), labels_(labels) {
  if (seq < tokens_of_trajectory || seq % tokens_of_trajectory != 0)
    throw InputError("needle bandit", std::to_string(seq) + " tokens are not a whole number of trajectories",
                     "use a multiple of " + std::to_string(tokens_of_trajectory));
  if (arms < 1 || arms > all_arms)
    throw InputError("needle bandit", std::to_string(arms) + " arms", "use 1 to " + std::to_string(all_arms));
}

Index NeedleBandit::arm(Index sequence, Index pull) const {
  const std::uint64_t choice = hash(seed_, sequence, pull, pull_tag) % static_cast<std::uint64_t>(arms_);
  return permuted(seed_, sequence, static_cast<Index>(choice), arm_bits);
}

Index NeedleBandit::needle(Index sequence) const {
  const std::uint64_t choice = hash(seed_, sequence, 0, needle_tag) % static_cast<std::uint64_t>(arms_);
  return permuted(seed_, sequence, static_cast<Index>(choice), arm_bits);
}

bool NeedleBandit::seen(Index sequence, Index end) const {
  for (Index pull = 0; 2 * pull < end; ++pull)
    if (arm(sequence, pull) == needle(sequence)) return true;
  return false;
}

Index NeedleBandit::token(Index sequence, Index position) const {
  const Index pulled = arm(sequence, position / 2);
  if (position % 2 == 0) return pulled;
  return all_arms + (pulled == needle(sequence) ? 1 : 0);
}

Index NeedleBandit::label(Index sequence, Index position) const {
  const bool ends_trajectory = (position + 1) % tokens_of_trajectory == 0;
  const bool labelled = labels_ == Labels::last ? position + 1 == seq_ : ends_trajectory;
  return labelled ? needle(sequence) : none;
}

Curriculum bandit_curriculum() {
  return {{64, 64, 200, 16}, {256, 16, 100, 64}, {1024, 4, 60, 256}, {4096, 1, 40, 512}};
}

}  // namespace ring_attention::model
