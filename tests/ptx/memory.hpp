// What instructions that use memory share. The checks of each access are in memory.cpp and shared_memory.cpp.
#pragma once

#include "ptx/arithmetic.hpp"

namespace ptx {

// ---- memory.cpp

/// The address of a lane's access: register `a` plus the immediate.
u64 address(Warp& w, const Instruction& in, int lane);
/// `bytes` at a global address, which are in one allocation and aligned.
u8* global_bytes(Warp& w, const Instruction& in, u64 at, u64 bytes, u32 align);
const u8* parameter_bytes(Warp& w, const Instruction& in, u64 at, u32 bytes, u32 align);
void load(Warp& w, const Instruction& in, u32 mask);
void store(Warp& w, const Instruction& in, u32 mask);
void atomic_add(Warp& w, const Instruction& in, u32 mask);

// ---- shared_memory.cpp

void check_shared(Warp& w, const Instruction& in, u32 at, u32 bytes, u32 align);
void check_no_reader(Warp& w, const Instruction& in, u32 at, u32 bytes, const char* who);
/// Records a write in the vector clocks, and fails if it is not ordered after other accesses.
void order_write(Warp& w, const Instruction& in, u32 at, u32 bytes, const char* who);
/// \param async  by the async proxy: a fence has to follow what threads wrote
const u8* shared_read(Warp& w, const Instruction& in, u32 at, u32 bytes, u32 align, bool async = false,
                      const char* who = "it");
u8* shared_write(Warp& w, const Instruction& in, u32 lane, u32 at, u32 bytes, u32 align);
void fence_proxy_async(Warp& w, const Instruction& in, u32 mask);

// ---- copies.cpp: cp.async

void cp_async(Warp& w, const Instruction& in, u32 mask);
void cp_async_commit(Warp& w, const Instruction& in, u32 mask);
void cp_async_wait(Warp& w, const Instruction& in, u32 mask);
void complete(Warp& w, const SmallCopy& copy);

// ---- mbarrier.cpp

/// The mbarrier at this address, whose initialisation is ordered before.
Mbarrier& mbarrier_at(Warp& w, const Instruction& in, u32 at);
/// Whether the phase with this parity is over: the current one has the other parity.
inline bool is_over(const Mbarrier& b, u32 parity) { return (b.phase & 1U) != (parity & 1U); }
void mbarrier_init(Warp& w, const Instruction& in, u32 mask);
void mbarrier_arrive(Warp& w, const Instruction& in, u32 mask);
void bytes_arrive(Warp& w, const Instruction& in, u32 mbarrier, u32 bytes, const Clock& issued);

// ---- bulk_copies.cpp: TMA

void tma_load(Warp& w, const Instruction& in, u32 mask);
void bulk_load(Warp& w, const Instruction& in, u32 mask);
void bulk_add(Warp& w, const Instruction& in, u32 mask);
void bulk_commit(Warp& w, const Instruction& in, u32 mask);
void bulk_wait(Warp& w, const Instruction& in, u32 mask);
void read_sources(Warp& w, u32 mask);
void add_all(Warp& w);

// ---- matrix.cpp

float widened(u16 x, bool is_bf16);
/// The sum of exact products and a float, rounded towards zero once: tensor cores keep few bits behind it, and truncate.
float truncated(double x);
void ldmatrix(Warp& w, const Instruction& in, u32 mask);
void mma(Warp& w, const Instruction& in, u32 mask);

// ---- wgmma.cpp

void wgmma(Warp& w, const Instruction& in, u32 mask);
void wgmma_fence(Warp& w, const Instruction& in, u32 mask);
void wgmma_commit(Warp& w, const Instruction& in, u32 mask);
void wgmma_wait(Warp& w, const Instruction& in, u32 mask);
/// Whether an instruction may use its registers while products are under way.
void check_registers(Warp& w, const Instruction& in);

}  // namespace ptx
