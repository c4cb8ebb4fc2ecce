// bar.sync and bar.arrive: named barriers of a block.
#include "ptx/scheduler.hpp"

namespace ptx {
namespace {

void release(Block& block, std::size_t number) {
  NamedBarrier& b = block.barriers[number];
  for (auto& w : block.warps)
    if (w->waits_at == static_cast<int>(number)) {
      w->waits_at = -1;
      join(w->clock, b.clock);
      ++w->clock[w->id];
    }
  b = NamedBarrier{};
}

u32 expected_threads(Warp& w, const Instruction& in, u32 number) {
  const Block& block = *w.block;
  if (in.b < 0) return block.alive * 32;  // warps that have exited are not waited for
  const u32 expected = w.at<u32>(in.b)[std::countr_zero(w.live & ~w.exited)];
  if (expected % 32 != 0 || expected == 0 || expected > block.warps.size() * 32)
    fail(w, in, "barrier %u with %u threads, in a block of %zu", number, expected, block.warps.size() * 32);
  return expected;
}

}  // namespace

void arrive(Warp& w, const Instruction& in, bool waits) {
  const u32 number = w.at<u32>(in.a)[std::countr_zero(w.live & ~w.exited)];
  if (number > 15) fail(w, in, "there is no barrier %u", number);
  NamedBarrier& b = w.block->barriers[number];
  const u32 expected = expected_threads(w, in, number);
  if (b.arrived == 0) b.whole = in.b < 0;
  if (b.arrived == 0 || (b.whole && in.b < 0)) b.expected = expected;
  if (b.expected != expected)
    fail(w, in, "barrier %u has %u threads here and %u elsewhere", number, expected, b.expected);
  if (b.who >> w.id & 1U) fail(w, in, "warp %u arrives twice at barrier %u", w.id, number);
  b.who |= 1U << w.id;
  b.arrived += 32;
  join(b.clock, w.clock);
  ++w.clock[w.id];
  if (waits) {
    w.waits_at = static_cast<int>(number);
    b.waited_for = true;
  }
  if (b.arrived > b.expected) fail(w, in, "too many threads at barrier %u", number);
  if (b.arrived == b.expected) release(*w.block, number);
}

void warp_exits(Warp& w) {
  Block& block = *w.block;
  --block.alive;
  read_sources(w, 0xffffffffU);
  for (const SmallCopy& copy : w.copies) complete(w, copy);
  w.copies.clear();
  for (std::size_t n = 0; n < block.barriers.size(); ++n) {
    const NamedBarrier& b = block.barriers[n];
    if (b.whole && b.waited_for && b.arrived == block.alive * 32) release(block, n);
  }
}

}  // namespace ptx
