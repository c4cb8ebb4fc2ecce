// ld, st, atom.add and red.add, in all state spaces.
#include "ptx/memory.hpp"

namespace ptx {

u64 address(Warp& w, const Instruction& in, int lane) {
  w.lane = lane;
  if (in.a < 0) return static_cast<u64>(in.immediate);
  const u64 base = in.wide_address ? w.at<u64>(in.a)[lane] : w.at<u32>(in.a)[lane];
  return base + static_cast<u64>(in.immediate);
}

u8* global_bytes(Warp& w, const Instruction& in, u64 at, u64 bytes, u32 align) {
  const u64 end = end_of_allocation(at);
  if (end < at + bytes) fail(w, in, "global address 0x%lx + %lu is in no allocation", at, bytes);
  if (at % align != 0) fail(w, in, "global address 0x%lx is not a multiple of %u", at, align);
  return reinterpret_cast<u8*>(at);
}

const u8* parameter_bytes(Warp& w, const Instruction& in, u64 at, u32 bytes, u32 align) {
  const std::vector<u8>& all = w.block->launch->parameters;
  if (at + bytes > all.size()) fail(w, in, "parameter offset %lu + %u is behind the last", at, bytes);
  if (at % align != 0) fail(w, in, "parameter offset %lu is not a multiple of %u", at, align);
  return &all[at];
}

namespace {

u8* local_bytes(Warp& w, const Instruction& in, u32 lane, u64 at, u32 bytes, u32 align) {
  const u32 all = w.block->launch->kernel->local_bytes;
  if (at + bytes > all) fail(w, in, "local address %lu + %u is outside", at, bytes);
  if (at % align != 0) fail(w, in, "local address %lu is not a multiple of %u", at, align);
  return &w.local_store[u64{lane} * all + at];
}

/// The state space of an access, and its address there.
std::pair<u8, u64> space_and_address(const Instruction& in, u64 at) {
  if (in.space != generic) return {in.space, at};
  if (at & shared_window) return {shared, at & ~shared_window};
  if (at & param_window) return {param, at & ~param_window};
  return {global, at};
}

}  // namespace

/// ld. size: of an element, v: registers, w: their sizes, modifiers: 1 sign extension
void load(Warp& w, const Instruction& in, u32 mask) {
  const u32 bytes = in.size * static_cast<u32>(in.v.size());
  for (; mask != 0; mask &= mask - 1) {
    const int l = std::countr_zero(mask);
    const auto [space, at] = space_and_address(in, address(w, in, l));
    const u8* from = space == shared  ? shared_read(w, in, static_cast<u32>(at), bytes, bytes)
                     : space == local ? local_bytes(w, in, static_cast<u32>(l), at, bytes, bytes)
                     : space == param ? parameter_bytes(w, in, at, bytes, bytes)
                                      : global_bytes(w, in, at, bytes, bytes);
    for (std::size_t k = 0; k < in.v.size(); ++k, from += in.size) {
      if (in.v[k] < 0) continue;
      u64 x = 0;
      std::memcpy(&x, from, in.size);
      const int unused = 64 - 8 * in.size;
      if (in.modifiers & 1U) x = static_cast<u64>(static_cast<i64>(x << unused) >> unused);
      put(w, in.v[k], in.w[k], l, x);
    }
  }
}

void store(Warp& w, const Instruction& in, u32 mask) {
  const u32 bytes = in.size * static_cast<u32>(in.v.size());
  for (; mask != 0; mask &= mask - 1) {
    const int l = std::countr_zero(mask);
    const auto [space, at] = space_and_address(in, address(w, in, l));
    if (space == param) fail(w, in, "a store to a parameter");
    u8* to = space == shared  ? shared_write(w, in, static_cast<u32>(l), static_cast<u32>(at), bytes, bytes)
             : space == local ? local_bytes(w, in, static_cast<u32>(l), at, bytes, bytes)
                              : global_bytes(w, in, at, bytes, bytes);
    for (std::size_t k = 0; k < in.v.size(); ++k, to += in.size) {
      const u64 x = get(w, in.v[k], in.w[k], l);
      std::memcpy(to, &x, in.size);
    }
  }
}

/// atom.add and red.add of global memory. v: the terms, d: the old value; modifiers: 1 float
void atomic_add(Warp& w, const Instruction& in, u32 mask) {
  for (; mask != 0; mask &= mask - 1) {
    const int l = std::countr_zero(mask);
    const auto [space, at] = space_and_address(in, address(w, in, l));
    if (space != global) fail(w, in, "an atomic outside global memory is not modelled");
    const u32 bytes = in.size * static_cast<u32>(in.v.size());
    u8* to = global_bytes(w, in, at, bytes, bytes);
    for (std::size_t k = 0; k < in.v.size(); ++k, to += in.size) {
      u64 old = 0;
      std::memcpy(&old, to, in.size);
      const u64 term = get(w, in.v[k], in.size, l);
      const auto number = [](u64 x) { return std::bit_cast<float>(static_cast<u32>(x)); };
      const u64 sum = in.modifiers & 1U ? std::bit_cast<u32>(number(old) + number(term)) : old + term;
      std::memcpy(to, &sum, in.size);
      if (in.d >= 0) put(w, in.d, in.size, l, old);
    }
  }
}

}  // namespace ptx
