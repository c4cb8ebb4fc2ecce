// The scheduler's parts: a warp's steps, the barriers of a block, and the blocks of a launch.
#pragma once

#include "ptx/memory.hpp"

namespace ptx {

// ---- barriers.cpp

/// bar.sync (which waits) and bar.arrive of a warp.
void arrive(Warp& w, const Instruction& in, bool waits);
/// Completes what is under way, and barriers that wait for this warp.
void warp_exits(Warp& w);

// ---- warp.cpp

bool can_run(Warp& w);
/// Runs a warp for at most so many instructions, or until it waits.
void run(Warp& w, Kernel& kernel, u64 instructions);

// ---- block.cpp

std::unique_ptr<Block> make_block(Launch& launch, u32 number);
/// Where an instruction stands: the CUDA line, the line that called it, the PTX line, the text, block and thread.
std::string place(const Warp& w, const Instruction& in);
/// Where each warp is.
std::string positions(const std::vector<std::unique_ptr<Block>>& blocks);
/// What a block leaves behind, or "".
std::string left_behind(Block& block);

}  // namespace ptx
