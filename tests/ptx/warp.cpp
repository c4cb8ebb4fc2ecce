// The steps of a warp. Lanes that branch apart are groups with a program counter each; the group that is furthest behind
// runs, and groups that meet are one again.
#include "ptx/scheduler.hpp"

namespace ptx {
namespace {

bool can_run(Warp& w, const Group& g) {
  return !g.waits && (g.mbarrier == 0 || is_over(w.block->mbarriers.at(g.mbarrier), g.parity));
}

void merge_groups(Warp& w) {
  for (std::size_t i = 0; i < w.groups.size(); ++i)
    for (std::size_t j = i + 1; j < w.groups.size();) {
      if (w.groups[i].pc != w.groups[j].pc) {
        ++j;
        continue;
      }
      w.groups[i] = {w.groups[i].mask | w.groups[j].mask, w.groups[i].pc};
      w.groups.erase(w.groups.begin() + static_cast<std::ptrdiff_t>(j));
    }
}

// Each of these returns whether the group stops here.

bool branch(Warp& w, Group& g, const Instruction& in, u32 mask) {
  const u32 target = static_cast<u32>(in.target);
  if (mask == g.mask) {
    g.pc = target;
    return w.groups.size() > 1;
  }
  ++g.pc;
  if (mask == 0) return false;
  g.mask &= ~mask;
  w.groups.push_back({mask, target});
  return true;
}

bool leave(Warp& w, Group& g, u32 mask) {
  w.exited |= mask;
  g.mask &= ~mask;
  ++g.pc;
  if (g.mask != 0) return false;
  w.groups.erase(w.groups.begin() + (&g - w.groups.data()));
  for (Group& other : w.groups) other.waits = false;
  if (w.groups.empty()) warp_exits(w);
  return true;
}

/// The group waits for lanes that are elsewhere.
bool wait_for_lanes(Warp& w, Group& g, const Instruction& in, u32 missing) {
  g.waits = true;
  if (std::ranges::all_of(w.groups, [](const Group& x) { return x.waits; }))
    fail(w, in, "lanes 0x%x wait here, and lanes 0x%x wait elsewhere", g.mask, missing);
  return true;
}

bool set_registers(Warp& w, const Instruction& in) {
  const u32 count = static_cast<u32>(in.immediate);
  if (!in.modifiers) {
    if (count > w.own_registers)
      fail(w, in, "setmaxnreg.dec to more registers (%u to %u)", w.own_registers, count);
    w.block->free_registers += (w.own_registers - count) * 32;
    w.own_registers = count;
    return false;
  }
  if (count < w.own_registers)
    fail(w, in, "setmaxnreg.inc to fewer registers (%u to %u)", w.own_registers, count);
  w.wants_registers = (count - w.own_registers) * 32;
  return true;
}

bool aligned(Warp& w, Group& g, const Instruction& in, u32 mask) {
  if (mask != 0 && mask != g.mask) fail(w, in, "an .aligned instruction for a part of the lanes");
  const u32 all = w.live & ~w.exited;
  if (mask != 0 && g.mask != all) return wait_for_lanes(w, g, in, all & ~g.mask);
  ++g.pc;
  if (mask == 0) return false;
  switch (in.kind) {
    case Kind::aligned: in.function(w, in, mask); return false;
    case Kind::registers: return set_registers(w, in);
    default: arrive(w, in, in.kind == Kind::barrier_sync); return w.waits_at >= 0;
  }
}

bool with_members(Warp& w, Group& g, const Instruction& in, u32 mask) {
  if (mask != 0) {
    const u32 members = w.at<u32>(in.w[0])[std::countr_zero(mask)], all = w.live & ~w.exited;
    if (members & ~all)
      fail(w, in, "the member mask 0x%x names lanes that have exited (0x%x)", members, w.exited);
    if (mask & ~members)
      fail(w, in, "the member mask 0x%x lacks lanes 0x%x that execute it", members, mask & ~members);
    if (mask != members) return wait_for_lanes(w, g, in, members & ~mask);
  }
  ++g.pc;
  if (mask != 0 && in.function != nullptr) in.function(w, in, mask);
  return false;
}

/// mbarrier.try_wait. a: address, b: parity, d: whether the phase is over
bool try_wait(Warp& w, Group& g, const Instruction& in, u32 mask) {
  u32 over = 0, at = 0, parity = 0;
  for_lanes(mask, [&](int l) {
    at = static_cast<u32>(address(w, in, l));
    parity = w.at<u32>(in.b)[l];
    const Mbarrier& b = mbarrier_at(w, in, at);
    if (!is_over(b, parity)) return;
    over |= 1U << l;
    join(w.clock, b.done);
  });
  set_predicate(w, in.d, mask, over);
  ++g.pc;
  if (over == mask) return false;
  if (over == 0) {
    g.mbarrier = at;
    g.parity = parity;
  }
  return true;
}

bool step(Warp& w, Group& g, const Instruction& in) {
  const u32 mask = in.guard < 0 ? g.mask : g.mask & predicate(w, in.guard, in.guard_negated);
  w.lane = -1;
  if (in.of_wgmma && mask != 0) check_registers(w, in);
  switch (in.kind) {
    case Kind::nothing: ++g.pc; return false;
    case Kind::lanes:
      if (mask != 0) in.function(w, in, mask);
      ++g.pc;
      return false;
    case Kind::branch: return branch(w, g, in, mask);
    case Kind::exit: return leave(w, g, mask);
    case Kind::trap:
      if (mask != 0) fail(w, in, "trap");
      ++g.pc;
      return false;
    case Kind::members: return with_members(w, g, in, mask);
    case Kind::try_wait: return try_wait(w, g, in, mask);
    default: return aligned(w, g, in, mask);
  }
}

/// Takes the registers that setmaxnreg.inc waits for, if they are free.
bool take_registers(Warp& w) {
  if (w.block->free_registers < w.wants_registers) return false;
  w.block->free_registers -= w.wants_registers;
  w.own_registers += w.wants_registers / 32;
  w.wants_registers = 0;
  return true;
}

}  // namespace

bool can_run(Warp& w) {
  if (w.groups.empty() || w.waits_at >= 0) return false;
  if (w.wants_registers != 0) return w.block->free_registers >= w.wants_registers;
  return std::ranges::any_of(w.groups, [&](const Group& g) { return can_run(w, g); });
}

void run(Warp& w, Kernel& kernel, u64 instructions) {
  if (!take_registers(w)) return;
  u64& steps = w.block->launch->steps;
  const u64 end = steps + instructions;
  while (steps < end && !w.groups.empty() && w.waits_at < 0 && w.wants_registers == 0) {
    Group* g = nullptr;
    for (Group& x : w.groups)
      if (can_run(w, x) && (g == nullptr || x.pc < g->pc)) g = &x;
    if (g == nullptr) return;
    g->mbarrier = 0;
    u32 meets = 0xffffffffU;  // the program counter of the next group
    for (const Group& x : w.groups)
      if (x.pc > g->pc) meets = std::min(meets, x.pc);
    bool stops = false;
    while (!stops && steps < end) {
      if (g->pc >= kernel.code.size()) throw Failure("ran off the end of " + kernel.name);
      ++steps;
      const Instruction& in = kernel.code[g->pc];
      stops = step(w, *g, in);
      if (!stops && g->pc >= meets) break;
    }
    if (w.groups.size() > 1) merge_groups(w);
  }
}

}  // namespace ptx
