// cp.async: copies of 4 to 16 bytes by each lane, in groups.
#include "ptx/memory.hpp"

namespace ptx {

void complete(Warp& w, const SmallCopy& copy) {
  Block& b = *w.block;
  const u32 first = copy.to - shared_base;
  std::memset(&b.memory[first], 0, copy.size);
  if (copy.from_size != 0) std::memcpy(&b.memory[first], copy.from, copy.from_size);
  for (u32 k = first; k < first + copy.size; ++k) {
    b.flags[k] = initialised | unfenced;
    b.owner[k] = static_cast<u16>(w.id * 32 + copy.lane);
  }
  w.written[copy.lane].emplace_back(copy.to, copy.size);
}

/// a: to, b: from, c: bytes to read, the rest becomes zeros; size. immediate and modifiers: offsets of to and from
void cp_async(Warp& w, const Instruction& in, u32 mask) {
  for_lanes(mask, [&](int l) {
    w.lane = l;
    const u32 to = w.at<u32>(in.a)[l] + static_cast<u32>(in.immediate);
    const u64 from = w.at<u64>(in.b)[l] + in.modifiers;
    const u32 from_size = in.c < 0 ? in.size : w.at<u32>(in.c)[l];
    if (from_size > in.size) fail(w, in, "the source size %u is larger than %u", from_size, u32{in.size});
    const u8* source = from_size != 0 ? global_bytes(w, in, from, from_size, in.size) : nullptr;
    if (from % in.size != 0) fail(w, in, "the source 0x%lx is not a multiple of %u", from, u32{in.size});
    const u32 lane = static_cast<u32>(l);
    shared_write(w, in, lane, to, in.size, in.size);
    std::memset(&w.block->flags[to - shared_base], under_way, in.size);
    w.copies.push_back({lane, to, source, in.size, from_size, w.commits[lane]});
  });
}

void cp_async_commit(Warp& w, const Instruction&, u32 mask) {
  for_lanes(mask, [&](int l) { ++w.commits[static_cast<std::size_t>(l)]; });
}

/// immediate: how many of the newest groups may stay under way; -1: wait_all, whether committed or not
void cp_async_wait(Warp& w, const Instruction& in, u32 mask) {
  std::vector<SmallCopy> left;
  for (const SmallCopy& copy : w.copies) {
    const bool is_old =
        in.immediate < 0 || copy.group + static_cast<u64>(in.immediate) < w.commits[copy.lane];
    if ((mask >> copy.lane & 1U) && is_old)
      complete(w, copy);
    else
      left.push_back(copy);
  }
  w.copies.swap(left);
}

}  // namespace ptx
