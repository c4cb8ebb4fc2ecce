// Instructions of a whole warp: shuffles, votes, barriers, setmaxnreg, matrices.
#include <algorithm>

#include "ptx/memory.hpp"
#include "ptx/parser.hpp"

namespace ptx {
namespace {

enum Shuffle : u32 { idx, up, down, bfly };

/// shfl.sync: d = a of lane b; c: clamp and segment mask; v: a predicate, whether b is in the segment, or nothing
void shuffle(Warp& w, const Instruction& in, u32 mask) {
  u32 old[32], in_segment = 0;
  std::memcpy(old, w.at<u32>(in.a), sizeof old);
  for_lanes(mask, [&](int l) {
    w.lane = l;
    const u32 b = w.at<u32>(in.b)[l] & 31U, c = w.at<u32>(in.c)[l], lane = static_cast<u32>(l);
    const u32 clamp = c & 31U, segment = c >> 8U & 31U;
    const u32 last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    u32 from = in.modifiers == idx    ? first | (b & ~segment)
               : in.modifiers == up   ? lane - b
               : in.modifiers == down ? lane + b
                                      : lane ^ b;
    const bool inside = in.modifiers == up ? static_cast<i32>(from) >= static_cast<i32>(last) : from <= last;
    in_segment |= static_cast<u32>(inside) << lane;
    if (!inside) from = lane;
    if (!(mask >> from & 1U)) fail(w, in, "it reads lane %u, which takes no part", from);
    w.at<u32>(in.d)[l] = old[from];
  });
  if (!in.v.empty()) set_predicate(w, in.v[0], mask, in_segment);
}

void vote_any(Warp& w, const Instruction& in, u32 mask) {
  set_predicate(w, in.d, mask, predicate(w, in.a, in.modifiers) & mask ? mask : 0);
}
void vote_all(Warp& w, const Instruction& in, u32 mask) {
  set_predicate(w, in.d, mask, (predicate(w, in.a, in.modifiers) & mask) == mask ? mask : 0);
}
void vote_ballot(Warp& w, const Instruction& in, u32 mask) {
  const u32 votes = predicate(w, in.a, in.modifiers) & mask;
  for_lanes(mask, [&](int l) { w.at<u32>(in.d)[l] = votes; });
}

}  // namespace

bool Parser::decode_warp(Instruction& in, const Words& words, const std::vector<Operand>& o) {
  const std::string& name = words[0];
  if (name == "shfl") {
    in.kind = Kind::members;
    in.function = shuffle;
    in.modifiers = has(words, "idx") ? idx : has(words, "up") ? up : has(words, "down") ? down : bfly;
    in.d = destination(in, o.at(0), 4);
    if (!o[0].parts.empty()) in.v = {destination(in, o[0].parts[0], 0)};
    in.a = source(in, o.at(1), 4);
    in.b = source(in, o.at(2), 4);
    in.c = source(in, o.at(3), 4);
    in.w = {source(in, o.at(4), 4)};
  } else if (name == "vote") {
    in.kind = Kind::members;
    const bool ballot = has(words, "ballot");
    if (!ballot && !has(words, "any") && !has(words, "all")) return false;
    in.function = ballot ? vote_ballot : has(words, "any") ? vote_any : vote_all;
    in.d = destination(in, o.at(0), ballot ? 4 : 0);
    in.a = source(in, o.at(1), 0);
    in.modifiers = o[1].negated;
    in.w = {source(in, o.at(2), 4)};
  } else if ((name == "bar" || name == "barrier") && !has(words, "red")) {
    if (has(words, "warp")) {
      in.kind = Kind::members;
      in.w = {source(in, o.at(0), 4)};
      return true;
    }
    in.kind = has(words, "arrive") ? Kind::barrier_arrive : Kind::barrier_sync;
    in.a = source(in, o.at(0), 4);
    if (o.size() > 1) in.b = source(in, o[1], 4);
  } else if (name == "setmaxnreg") {
    in.kind = Kind::registers;
    in.modifiers = has(words, "inc");
    in.immediate = static_cast<i64>(o.at(0).bits);
    if (in.immediate % 8 != 0 || in.immediate < 24 || in.immediate > 256) bad("its count", in.text);
  } else {
    return false;
  }
  return true;
}

bool Parser::decode_matrix(Instruction& in, const Words& words, const std::vector<Operand>& o) {
  if (words[0] == "ldmatrix") {
    if (!has(words, "m8n8") || words.back() != "b16") bad("shape", in.text);
    in.kind = Kind::aligned;
    in.function = ldmatrix;
    in.modifiers = has(words, "trans");
    for (const Operand& x : o.at(0).parts) in.v.push_back(destination(in, x, 4));
    address(in, o.at(1));
    return true;
  }
  if (words[0] != "mma") return false;
  in.kind = Kind::aligned;
  in.function = mma;
  in.modifiers = has(words, "bf16");
  if (!has(words, "m16n8k16") || !has(words, "row") || !has(words, "col") || words.back() != "f32" ||
      !(in.modifiers || has(words, "f16")))
    bad("shape", in.text);
  for (const Operand& x : o.at(0).parts) in.v.push_back(destination(in, x, 4));
  for (std::size_t i = 1; i < 4; ++i)
    for (const Operand& x : o.at(i).parts) in.v.push_back(source(in, x, 4));
  if (in.v.size() != 14) bad("its operands", in.text);
  return true;
}

bool Parser::decode_wgmma(Instruction& in, const Words& words, const std::vector<Operand>& o) {
  if (words[0] != "wgmma") return false;
  in.kind = Kind::aligned;
  if (has(words, "fence") || has(words, "commit_group")) {
    in.function = has(words, "fence") ? wgmma_fence : wgmma_commit;
    return true;
  }
  if (has(words, "wait_group")) {
    in.function = wgmma_wait;
    in.immediate = static_cast<i64>(o.at(0).bits);
    return true;
  }
  in.function = wgmma;
  const std::string& type = words.back();
  const auto shape = std::ranges::find_if(words, [](const auto& word) { return word.starts_with("m64n"); });
  if (shape == words.end() || !has(words, "f32") || (type != "bf16" && type != "f16")) bad("shape", in.text);
  for (const Operand& x : o.at(0).parts) {
    in.v.push_back(source(in, x, 4));
    in.writes.push_back(in.v.back());
  }
  if (in.v.size() * 2 != std::stoul(shape->substr(4))) bad("number of accumulators", in.text);
  const bool a_in_registers = o.at(1).kind == Operand::vector;
  if (a_in_registers)
    for (const Operand& x : o[1].parts) in.w.push_back(source(in, x, 4));
  else
    in.a = source(in, o[1], 8);
  in.b = source(in, o.at(2), 8);
  in.c = source(in, o.at(3), 0);
  if (o.size() != (a_in_registers ? 7U : 8U) || o[4].bits != 1 || o[5].bits != 1) bad("scales", in.text);
  const u64 a_transposed = a_in_registers ? 0 : o[6].bits, b_transposed = o.back().bits;
  in.modifiers = static_cast<u32>((type == "bf16" ? 1U : 0U) | a_transposed << 1U | b_transposed << 2U);
  return true;
}

}  // namespace ptx
