// wgmma of one warp, its operands in shared memory, and its registers while it is under way.
//
// The matrix descriptor (PTX ISA, "Matrix descriptor format"): bits 0-13 start address / 16, 16-29 leading byte offset / 16,
// 32-45 stride byte offset / 16, 49-51 base offset, 62-63 swizzle mode; 1 is 128 bytes, the only one modelled.
// K-major (not transposed): eight rows are 1024 bytes; element (i, k) at i % 8 * 128 + i / 8 * stride + 2 k.
// MN-major (transposed): 64 elements are a row of 128 bytes; element (i, k) at
//   2 (i % 64) + i / 64 * leading + k % 8 * 128 + k / 8 * stride.
// Then address bits 4-6 are exclusive-ored with bits 7-9.
#include "ptx/memory.hpp"

namespace ptx {
namespace {

struct MatrixDescriptor {
  u32 start, leading, stride;
  bool transposed;
  [[nodiscard]] u32 address_of(u32 i, u32 k) const {
    const u32 at = start + (transposed ? 2 * (i % 64) + i / 64 * leading + k % 8 * 128 + k / 8 * stride
                                       : i % 8 * 128 + i / 8 * stride + 2 * k);
    return at ^ ((at >> 7U & 7U) << 4U);
  }
};

MatrixDescriptor descriptor(Warp& w, const Instruction& in, u64 d, bool transposed) {
  if (d >> 62U != 1) fail(w, in, "descriptor 0x%lx: swizzle mode %lu is not modelled", d, d >> 62U);
  if (d >> 49U & 7U) fail(w, in, "descriptor 0x%lx: base offset is not 0", d);
  if ((d >> 14U & 3U) || (d >> 30U & 3U) || (d >> 46U & 7U) || (d >> 52U & 0x3ffU))
    fail(w, in, "descriptor 0x%lx: reserved bits are set", d);
  const auto bytes = [&](u32 bit) { return static_cast<u32>(d >> bit & 0x3fffU) << 4U; };
  return {bytes(0), bytes(16), bytes(32), transposed};
}

/// Rows `first` .. `first + rows` of 16 columns, into out[k * rows + i]. `lines`: what is read, for Wgmma
void read_matrix(Warp& w, const Instruction& in, const MatrixDescriptor& from, u32 first, u32 rows,
                 float* out, std::vector<u32>& lines) {
  const bool is_bf16 = in.modifiers & 1U;
  const auto eight = [&](u32 i, u32 k, u32 to, u32 step) {
    const u32 at = from.address_of(first + i, k);
    u16 x[8];
    std::memcpy(x, shared_read(w, in, at, 16, 16, true, "wgmma"), 16);
    lines.push_back((at - shared_base) / 16);
    ++w.block->reading[lines.back()];
    for (u32 e = 0; e < 8; ++e) out[to + e * step] = widened(x[e], is_bf16);
  };
  if (from.transposed)
    for (u32 k = 0; k < 16; ++k)
      for (u32 i = 0; i < rows; i += 8) eight(i, k, k * rows + i, 1);
  else
    for (u32 i = 0; i < rows; ++i)
      for (u32 k = 0; k < 16; k += 8) eight(i, k, k * rows + i, rows);
}

/// All four warps of a warpgroup must execute the same wgmma.
void check_warpgroup(Warp& w, const Instruction& in, u64 a, u64 b) {
  auto& log = w.block->wgmma_log[w.id / 4];
  const std::array<u64, 3> mine{reinterpret_cast<u64>(&in), a, b};
  if (w.wgmma_number == log.size())
    log.push_back(mine);
  else if (log[w.wgmma_number] != mine)
    fail(w, in, "the warps of the warpgroup execute different wgmma");
  ++w.wgmma_number;
}

u64 same_in_all_lanes(Warp& w, const Instruction& in, i32 offset) {
  if (offset < 0) return 0;
  const u64* all = w.at<u64>(offset);
  if (std::any_of(all, all + 32, [&](u64 x) { return x != all[0]; }))
    fail(w, in, "the lanes have different descriptors");
  return all[0];
}

void mark(Warp& w, const Wgmma& op) {
  for (const i32 r : op.accumulators) w.register_flags[static_cast<std::size_t>(r / 4)] |= accumulates;
  for (const i32 r : op.operand_a) w.register_flags[static_cast<std::size_t>(r / 4)] |= is_operand;
}

}  // namespace

/// m64nNk16. v: accumulators, w: registers of a or none, a and b: descriptors, c: scale-d. modifiers: 1 bf16,
/// 2 a transposed, 4 b transposed
void wgmma(Warp& w, const Instruction& in, u32) {
  const u32 n = static_cast<u32>(in.v.size()) * 2;
  const u64 a_bits = same_in_all_lanes(w, in, in.a), b_bits = same_in_all_lanes(w, in, in.b);
  const u32 scale_d = *w.at<u32>(in.c);
  if (scale_d != 0 && scale_d != 0xffffffffU) fail(w, in, "the lanes have different scale-d");
  check_warpgroup(w, in, a_bits, b_bits);
  if (!w.fenced) fail(w, in, "no wgmma.fence before the first wgmma");
  Wgmma op{{}, in.v, in.w};
  float a[16 * 16], b[16 * 256];  // [k][row]
  if (in.a >= 0) {
    read_matrix(w, in, descriptor(w, in, a_bits, in.modifiers & 2U), 16 * (w.id % 4), 16, a, op.lines);
  } else {
    for (u32 l = 0; l < 32; ++l)
      for (u32 i = 0; i < 8; ++i) {
        const u32 pair = w.at<u32>(in.w[i / 2])[l];
        a[(2 * (l % 4) + i % 2 + (i >= 4 ? 8 : 0)) * 16 + l / 4 + (i / 2 % 2 ? 8 : 0)] =
            widened(static_cast<u16>(pair >> (16 * (i % 2))), in.modifiers & 1U);
      }
  }
  read_matrix(w, in, descriptor(w, in, b_bits, in.modifiers & 4U), 0, n, b, op.lines);
  for (u32 row = 0; row < 16; ++row) {
    const auto accumulator = [&](u32 j) -> float& {
      return w.at<float>(in.v[j / 8 * 4 + 2 * (row / 8) + j % 2])[row % 8 * 4 + j % 8 / 2];
    };
    double sums[256];
    for (u32 j = 0; j < n; ++j) sums[j] = scale_d ? static_cast<double>(accumulator(j)) : 0;
    for (u32 k = 0; k < 16; ++k) {
      const double factor = static_cast<double>(a[k * 16 + row]);
      for (u32 j = 0; j < n; ++j) sums[j] += factor * static_cast<double>(b[k * n + j]);
    }
    for (u32 j = 0; j < n; ++j) accumulator(j) = truncated(sums[j]);
  }
  mark(w, op);
  w.open.push_back(std::move(op));
}

void wgmma_fence(Warp& w, const Instruction&, u32) {
  w.fenced = true;
  for (u8& flags : w.register_flags) flags &= static_cast<u8>(~changed);
}

void wgmma_commit(Warp& w, const Instruction&, u32) {
  w.committed.push_back(std::move(w.open));
  w.open.clear();
}

/// immediate: how many of the newest groups may stay under way
void wgmma_wait(Warp& w, const Instruction& in, u32) {
  while (static_cast<i64>(w.committed.size()) > in.immediate) {
    for (const Wgmma& op : w.committed.front()) {
      for (const u32 line : op.lines) --w.block->reading[line];
      for (const auto* registers : {&op.accumulators, &op.operand_a})
        for (const i32 r : *registers)
          w.register_flags[static_cast<std::size_t>(r / 4)] &= static_cast<u8>(~(accumulates | is_operand));
    }
    w.committed.erase(w.committed.begin());
  }
  for (const auto& group : w.committed)
    for (const Wgmma& op : group) mark(w, op);
  for (const Wgmma& op : w.open) mark(w, op);
}

void check_registers(Warp& w, const Instruction& in) {
  if (in.function == wgmma) return;  // wgmma of the same shape may use the same accumulators
  for (const i32 r : in.reads)
    if ((w.register_flags[static_cast<std::size_t>(r / 4)] & accumulates) &&
        !in.is_mov)  // ptxas removes a mov
      fail(w, in, "it reads an accumulator of a wgmma that is under way");
  for (const i32 r : in.writes) {
    u8& flags = w.register_flags[static_cast<std::size_t>(r / 4)];
    if (flags & (accumulates | is_operand)) fail(w, in, "it writes a register of a wgmma that is under way");
    flags |= changed;
  }
}

}  // namespace ptx
