// mbarrier: a phase is over when all have arrived and all bytes that were expected are there.
#include "ptx/memory.hpp"

namespace ptx {
namespace {

void turn(Mbarrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.pending = b.count;
  ++b.phase;
  b.done = b.current;
}

void add_bytes(Warp& w, const Instruction& in, Mbarrier& b, u32 at, i64 bytes) {
  b.bytes += bytes;
  constexpr i64 most = (1 << 20) - 1;
  if (b.bytes > most || b.bytes < -most)
    fail(w, in, "the tx-count %ld of the mbarrier 0x%x is out of range", b.bytes, at);
}

}  // namespace

Mbarrier& mbarrier_at(Warp& w, const Instruction& in, u32 at) {
  check_shared(w, in, at, 8, 8);
  const Block& block = *w.block;
  const auto found = w.block->mbarriers.find(at);
  if (found == w.block->mbarriers.end()) fail(w, in, "there is no initialised mbarrier at 0x%x", at);
  const u32 word = (at - shared_base) / 4;
  if (block.write_time[word] > w.clock[block.writer[word]])
    fail(w, in, "RACE: the init of the mbarrier at 0x%x is not ordered before this", at);
  return found->second;
}

/// a: address, b: count
void mbarrier_init(Warp& w, const Instruction& in, u32 mask) {
  for_lanes(mask, [&](int l) {
    const u32 at = static_cast<u32>(address(w, in, l)), count = w.at<u32>(in.b)[l];
    check_shared(w, in, at, 8, 8);
    if (count < 1 || count >= 1U << 20U) fail(w, in, "an mbarrier with count %u", count);
    if (w.block->mbarriers.contains(at)) fail(w, in, "the mbarrier at 0x%x is initialised twice", at);
    order_write(w, in, at, 8, "it");
    for (u32 k = at - shared_base; k < at - shared_base + 8; ++k) {
      if (w.block->flags[k] != 0) fail(w, in, "the mbarrier at 0x%x overlaps data", at);
      w.block->flags[k] = is_mbarrier;
    }
    w.block->mbarriers[at] = {count, count, 0, 0, w.clock, w.clock};
  });
}

/// mbarrier.arrive and arrive.expect_tx. modifiers: 1 expects b bytes, 2 does not arrive
void mbarrier_arrive(Warp& w, const Instruction& in, u32 mask) {
  for_lanes(mask, [&](int l) {
    const u32 at = static_cast<u32>(address(w, in, l));
    Mbarrier& b = mbarrier_at(w, in, at);
    if (in.modifiers & 1U) add_bytes(w, in, b, at, w.at<u32>(in.b)[l]);
    if (in.modifiers & 2U) return;
    const u32 arrivals = in.c < 0 ? 1 : w.at<u32>(in.c)[l];
    if (b.pending < arrivals) fail(w, in, "too many arrivals at the mbarrier 0x%x of count %u", at, b.count);
    b.pending -= arrivals;
    join(b.current, w.clock);
    ++w.clock[w.id];
    turn(b);
  });
}

/// complete_tx of a copy that was issued at this time.
void bytes_arrive(Warp& w, const Instruction& in, u32 mbarrier, u32 bytes, const Clock& issued) {
  Mbarrier& b = w.block->mbarriers.at(mbarrier);
  join(b.current, issued);
  add_bytes(w, in, b, mbarrier, -i64{bytes});
  turn(b);
}

}  // namespace ptx
