// TMA: cp.async.bulk, with a tensor map and without, and cp.reduce.async.bulk.
#include "ptx/memory.hpp"

namespace ptx {
namespace {

/// A copy to shared memory begins: nothing else may use the bytes until its mbarrier's phase is over.
void begin_write(Warp& w, const Instruction& in, u32 at, u32 bytes) {
  Block& b = *w.block;
  check_no_reader(w, in, at, bytes, "the copy");
  for (u32 k = at - shared_base; k < at - shared_base + bytes; ++k) {
    const u8 flags = b.flags[k];
    if (flags & is_mbarrier) fail(w, in, "the copy overwrites an mbarrier at 0x%x", k + shared_base);
    if (flags & under_way) fail(w, in, "two copies to shared 0x%x are under way", k + shared_base);
    if (flags & unfenced)
      fail(w, in, "the async proxy writes shared 0x%x that thread %u wrote, without fence.proxy.async",
           k + shared_base, u32{b.owner[k]});
    b.flags[k] = under_way;
  }
  ++w.clock[w.id];  // so that only those who wait at the mbarrier come after this write
  order_write(w, in, at, bytes, "the copy");
}

void end_write(Block& b, u32 at, const u8* data, u32 bytes) {
  std::memcpy(&b.memory[at - shared_base], data, bytes);
  std::memset(&b.flags[at - shared_base], initialised, bytes);
}

int single_lane(Warp& w, const Instruction& in, u32 mask) {
  if (mask & (mask - 1)) fail(w, in, "a copy is started by several lanes");
  w.lane = std::countr_zero(mask);
  return w.lane;
}

void start(Warp& w, std::function<void()> copy) {
  if (w.block->launch->arrival == Arrival::at_once)
    copy();
  else
    w.block->copies.push_back(std::move(copy));
}

using Coordinates = std::array<i64, 4>;

/// The box of a tensor map from these coordinates, as it lies in shared memory at `to`. Outside the tensor are zeros.
std::vector<u8> box_at(Warp& w, const Instruction& in, const TensorMap& map, const Coordinates& first,
                       u32 to) {
  const u32 row_bytes = map.box[0] * map.element;
  u32 rows = 1;
  for (u32 i = 1; i < map.rank; ++i) rows *= map.box[i];
  std::vector<u8> data(std::size_t{row_bytes} * rows);
  const auto inside = [&](i64 x, u32 i) { return x >= 0 && x < static_cast<i64>(map.size[i]); };
  for (u32 row = 0; row < rows; ++row) {
    u64 from = map.address;
    bool in_tensor = true;
    for (u32 i = 1, rest = row; i < map.rank; rest /= map.box[i], ++i) {
      const i64 x = first[i] + rest % map.box[i];
      in_tensor = in_tensor && inside(x, i);
      from += static_cast<u64>(x) * map.stride[i - 1];
    }
    for (u32 e = 0; e < map.box[0]; ++e) {
      const i64 x = first[0] + e;
      if (!in_tensor || !inside(x, 0)) continue;
      u32 at = to + row * row_bytes + e * map.element;
      const u32 mask = (1U << map.swizzle) - 1;  // 128 bytes: three bits
      at ^= (at >> 7U & mask) << 4U;
      std::memcpy(&data[at - to],
                  global_bytes(w, in, from + static_cast<u64>(x) * map.element, map.element, map.element),
                  map.element);
    }
  }
  return data;
}

}  // namespace

/// cp.async.bulk.tensor.Nd.shared.global.tile. a: to, b: the map, v: coordinates, c: mbarrier
void tma_load(Warp& w, const Instruction& in, u32 mask) {
  const int l = single_lane(w, in, mask);
  const u32 to = w.at<u32>(in.a)[l] + static_cast<u32>(in.immediate), mbarrier = w.at<u32>(in.c)[l];
  const u64 at = w.at<u64>(in.b)[l];
  if (!(at & param_window)) fail(w, in, "a tensor map outside the parameters is not modelled (0x%lx)", at);
  TensorMap map;
  std::memcpy(&map, parameter_bytes(w, in, at & ~param_window, 128, 64), sizeof map);
  if (map.magic != TensorMap::the_magic)
    fail(w, in, "there is no tensor map at parameter offset %lu", at & ~param_window);
  if (map.rank != in.v.size()) fail(w, in, "the map has %u dimensions", map.rank);
  u32 bytes = map.element;
  Coordinates first{};
  for (u32 i = 0; i < map.rank; ++i) {
    bytes *= map.box[i];
    first[i] = static_cast<i32>(w.at<u32>(in.v[i])[l]);
  }
  check_shared(w, in, to, bytes, 128);
  mbarrier_at(w, in, mbarrier);
  begin_write(w, in, to, bytes);
  start(w, [warp = &w, instruction = &in, issued = w.clock, map, first, to, mbarrier, bytes] {
    end_write(*warp->block, to, box_at(*warp, *instruction, map, first, to).data(), bytes);
    bytes_arrive(*warp, *instruction, mbarrier, bytes, issued);
  });
}

/// cp.async.bulk.shared.global. a: to, b: from, v[0]: bytes, c: mbarrier
void bulk_load(Warp& w, const Instruction& in, u32 mask) {
  const int l = single_lane(w, in, mask);
  const u32 to = w.at<u32>(in.a)[l], mbarrier = w.at<u32>(in.c)[l], bytes = w.at<u32>(in.v[0])[l];
  if (bytes % 16 != 0) fail(w, in, "the size %u is not a multiple of 16", bytes);
  check_shared(w, in, to, bytes, 16);
  mbarrier_at(w, in, mbarrier);
  const u8* from = global_bytes(w, in, w.at<u64>(in.b)[l], bytes, 16);
  begin_write(w, in, to, bytes);
  start(w, [warp = &w, instruction = &in, issued = w.clock, from, to, mbarrier, bytes] {
    end_write(*warp->block, to, from, bytes);
    bytes_arrive(*warp, *instruction, mbarrier, bytes, issued);
  });
}

/// cp.reduce.async.bulk.global.shared.add.f32. a: to, b: from, v[0]: bytes
void bulk_add(Warp& w, const Instruction& in, u32 mask) {
  for_lanes(mask, [&](int l) {
    w.lane = l;
    const u32 from = w.at<u32>(in.b)[l], bytes = w.at<u32>(in.v[0])[l];
    if (bytes % 16 != 0) fail(w, in, "the size %u is not a multiple of 16", bytes);
    shared_read(w, in, from, bytes, 16, true, "the copy");
    u8* to = global_bytes(w, in, w.at<u64>(in.a)[l], bytes, 16);
    for (u32 line = (from - shared_base) / 16; line < (from + bytes - shared_base) / 16; ++line)
      ++w.block->reading[line];
    w.adds[static_cast<std::size_t>(l)].push_back({from, reinterpret_cast<float*>(to), bytes, false, {}});
  });
}

/// The copies of these lanes read shared memory now; the sums follow at the end.
void read_sources(Warp& w, u32 mask) {
  for_lanes(mask, [&](int l) {
    for (BulkAdd& add : w.adds[static_cast<std::size_t>(l)]) {
      if (add.read) continue;
      add.data.resize(add.bytes / 4);
      const u32 from = add.from - shared_base;
      std::memcpy(add.data.data(), &w.block->memory[from], add.bytes);
      for (u32 line = from / 16; line < (from + add.bytes) / 16; ++line) --w.block->reading[line];
      add.read = true;
    }
  });
}

void add_all(Warp& w) {
  read_sources(w, 0xffffffffU);
  for (auto& adds : w.adds) {
    for (const BulkAdd& add : adds)
      for (std::size_t k = 0; k < add.data.size(); ++k) add.to[k] += add.data[k];
    adds.clear();
  }
}

void bulk_commit(Warp&, const Instruction&, u32) {
}  // groups are not told apart: only wait_group 0 is modelled

void bulk_wait(Warp& w, const Instruction&, u32 mask) { read_sources(w, mask); }

}  // namespace ptx
