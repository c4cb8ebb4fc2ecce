// Judges exercise 11e by the order in which the warpgroups have issued their products.
#include "judge.hpp"
#include "ring_attention/cuda/check.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_11;

namespace {

constexpr int turns = 6;

Finding examine() {
  std::vector<int> order(std::size_t{2} * turns, -1);
  int issued = 0;
  ping_pong({&issued, order.data(), turns}, nullptr);
  cuda::check(cudaStreamSynchronize(nullptr));

  Finding finding;
  finding.result.assign(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size() && finding.right(); ++i) {
    const int due = static_cast<int>(i % 2), group = order[i];
    if (group == due) continue;
    const std::string other = std::to_string(group), here = std::to_string(due);
    finding.wrong = "product " + std::to_string(i) + " is that of warpgroup " + other +
                    (i == 0 ? ": warpgroup 0 is to begin"
                            : ", the second one after the other: it was the turn of " + here);
    finding.race = "product " + std::to_string(i) + " is that of warpgroup " + other +
                   ", and it was the turn of " + here + ": does warpgroup " + other +
                   " wait at a barrier of its own, and does warpgroup " + here +
                   " arrive there after its products, not before?";
  }
  return finding;
}

}  // namespace

int main() {
  return judge("11e", "ping_pong", examine,
               {{"threads 0-127 wait at barrier 1, where 128 of 256 threads are",
                 "warpgroup 0 waits at barrier 1, and warpgroup 1 has not arrived there"},
                {"different numbers of threads",
                 "the numbers of threads of sync and arrive at a barrier have to be the same"}});
}
