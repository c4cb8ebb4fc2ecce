// Shared memory. Every access is checked: bounds, alignment, written before it is read, no copy under way to it, and ordered
// by a barrier with the accesses of other warps (vector clocks, for each 4 bytes).
#include "ptx/memory.hpp"

namespace ptx {

void check_shared(Warp& w, const Instruction& in, u32 at, u32 bytes, u32 align) {
  if (at < shared_base || at + bytes > w.block->end())
    fail(w, in, "shared address 0x%x + %u is outside 0x%x .. 0x%x", at, bytes, shared_base, w.block->end());
  if (at % align != 0) fail(w, in, "shared address 0x%x is not a multiple of %u", at, align);
}

namespace {

void check_written_before(Warp& w, const Instruction& in, u32 word, const char* who, const char* does) {
  const Block& b = *w.block;
  if (b.write_time[word] > w.clock[b.writer[word]])
    fail(w, in, "RACE: %s %s shared 0x%x that warp %u wrote, and no barrier orders them", who, does,
         word * 4 + shared_base, u32{b.writer[word]});
}

void order_read(Warp& w, const Instruction& in, u32 at, u32 bytes, const char* who) {
  Block& b = *w.block;
  for (u32 word = (at - shared_base) / 4; word <= (at + bytes - 1 - shared_base) / 4; ++word) {
    check_written_before(w, in, word, who, "reads");
    b.reads[word * b.warps.size() + w.id] = w.clock[w.id];
  }
}

}  // namespace

void order_write(Warp& w, const Instruction& in, u32 at, u32 bytes, const char* who) {
  Block& b = *w.block;
  for (u32 word = (at - shared_base) / 4; word <= (at + bytes - 1 - shared_base) / 4; ++word) {
    check_written_before(w, in, word, who, "writes");
    for (u32 other = 0; other < b.warps.size(); ++other)
      if (b.reads[word * b.warps.size() + other] > w.clock[other])
        fail(w, in, "RACE: %s writes shared 0x%x that warp %u read, and no barrier orders them", who,
             word * 4 + shared_base, other);
    b.write_time[word] = w.clock[w.id];
    b.writer[word] = static_cast<u8>(w.id);
  }
}

const u8* shared_read(Warp& w, const Instruction& in, u32 at, u32 bytes, u32 align, bool async,
                      const char* who) {
  check_shared(w, in, at, bytes, align);
  Block& b = *w.block;
  const u32 first = at - shared_base;
  for (u32 k = first; k < first + bytes; ++k) {
    const u8 flags = b.flags[k];
    if (flags == initialised || (flags == (initialised | unfenced) && !async)) continue;
    const u32 byte = k + shared_base;
    if (flags & under_way) fail(w, in, "%s reads shared 0x%x while a copy to it is under way", who, byte);
    if (flags & is_mbarrier) fail(w, in, "%s reads an mbarrier at 0x%x as data", who, byte);
    if (!(flags & initialised)) fail(w, in, "%s reads shared 0x%x that was never written", who, byte);
    fail(w, in, "the async proxy reads shared 0x%x that thread %u wrote, without fence.proxy.async", byte,
         u32{b.owner[k]});
  }
  order_read(w, in, at, bytes, who);
  return &b.memory[first];
}

void check_no_reader(Warp& w, const Instruction& in, u32 at, u32 bytes, const char* who) {
  for (u32 line = (at - shared_base) / 16; line <= (at + bytes - 1 - shared_base) / 16; ++line)
    if (w.block->reading[line] != 0)
      fail(w, in, "%s writes shared 0x%x that a wgmma or a bulk copy still reads", who, at);
}

u8* shared_write(Warp& w, const Instruction& in, u32 lane, u32 at, u32 bytes, u32 align) {
  check_shared(w, in, at, bytes, align);
  Block& b = *w.block;
  check_no_reader(w, in, at, bytes, "it");
  for (u32 k = at - shared_base; k < at - shared_base + bytes; ++k) {
    if (b.flags[k] & under_way)
      fail(w, in, "it writes shared 0x%x while a copy to it is under way", k + shared_base);
    if (b.flags[k] & is_mbarrier) fail(w, in, "it writes an mbarrier at 0x%x as data", k + shared_base);
    b.flags[k] |= initialised | unfenced;
    b.owner[k] = static_cast<u16>(w.id * 32 + lane);
  }
  w.written[lane].emplace_back(at, bytes);
  order_write(w, in, at, bytes, "it");
  return &b.memory[at - shared_base];
}

/// fence.proxy.async orders what the lane itself wrote.
void fence_proxy_async(Warp& w, const Instruction&, u32 mask) {
  Block& b = *w.block;
  for_lanes(mask, [&](int l) {
    auto& written = w.written[static_cast<std::size_t>(l)];
    for (const auto& [at, bytes] : written)
      for (u32 k = at - shared_base; k < at - shared_base + bytes; ++k)
        if (b.owner[k] == w.id * 32 + static_cast<u32>(l)) b.flags[k] &= static_cast<u8>(~unfenced);
    written.clear();
  });
}

}  // namespace ptx
