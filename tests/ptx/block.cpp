// A block: its memory and warps at the start, and the texts of errors.
#include <cstdarg>
#include <cstdio>

#include "ptx/scheduler.hpp"

namespace ptx {
namespace {

u32 special_value(const Launch& launch, const Block& block, const std::string& name, u32 thread) {
  const auto& size = launch.block;
  const std::array<u32, 3> tid{thread % size[0], thread / size[0] % size[1], thread / size[0] / size[1]};
  if (name == "%laneid") return thread % 32;
  const std::size_t axis = static_cast<std::size_t>(name.back() - 'x');
  if (name.starts_with("%tid.")) return tid[axis];
  if (name.starts_with("%ntid.")) return size[axis];
  return name.starts_with("%ctaid.") ? block.index[axis] : launch.grid[axis];
}

std::unique_ptr<Warp> make_warp(Launch& launch, Block& block, u32 id) {
  const Kernel& kernel = *launch.kernel;
  auto w = std::make_unique<Warp>();
  w->block = &block;
  w->id = id;
  // ptxas gives a thread at most this many registers; kernels with setmaxnreg have exactly these.
  const u32 threads = std::max(1U, kernel.max_threads ? kernel.max_threads : launch.threads);
  w->own_registers = std::min(255U, 65536U / threads / std::max(1U, kernel.min_blocks) / 8 * 8);
  w->register_store.assign(kernel.register_bytes + 64, 0xa5);
  const u64 unaligned = reinterpret_cast<u64>(w->register_store.data()) % 64;
  w->registers = w->register_store.data() + (64 - unaligned) % 64;
  w->register_flags.assign(kernel.register_bytes / 4 + 1, 0);
  w->local_store.assign(std::size_t{kernel.local_bytes} * 32, 0xa5);
  const u32 lanes = std::min(32U, launch.threads - 32 * id);
  w->live = lanes == 32 ? 0xffffffffU : (1U << lanes) - 1;
  w->clock[id] = 1;
  w->groups.push_back({w->live, 0});
  for (const auto& [offset, bytes] : kernel.constants)
    std::memcpy(w->registers + offset, bytes.data(), bytes.size());
  for (const auto& [offset, name] : kernel.specials)
    for (u32 l = 0; l < 32; ++l) w->at<u32>(offset)[l] = special_value(launch, block, name, id * 32 + l);
  return w;
}

}  // namespace

std::unique_ptr<Block> make_block(Launch& launch, u32 number) {
  auto block = std::make_unique<Block>();
  block->launch = &launch;
  block->number = number;
  const auto& grid = launch.grid;
  block->index = {number % grid[0], number / grid[0] % grid[1], number / grid[0] / grid[1]};
  const u32 bytes = launch.kernel->static_shared + launch.dynamic, words = bytes / 4 + 1;
  block->memory.resize(bytes);
  for (u8& x : block->memory) x = static_cast<u8>(launch.random());
  block->flags.assign(bytes + 4, 0);
  block->owner.assign(bytes + 4, 0);
  block->reading.assign(bytes / 16 + 1, 0);
  block->write_time.assign(words, 0);
  block->writer.assign(words, 0);
  block->reads.assign(std::size_t{words} * launch.warps, 0);
  block->alive = launch.warps;
  block->wgmma_log.resize((launch.warps + 3) / 4);
  for (u32 id = 0; id < launch.warps; ++id) block->warps.push_back(make_warp(launch, *block, id));
  return block;
}

std::string place(const Warp& w, const Instruction& in) {
  const Kernel& kernel = *w.block->launch->kernel;
  const auto cuda_line = [&](u32 file, u32 line) {
    const auto found = kernel.files.find(file);
    std::string name = found == kernel.files.end() ? "?" : found->second;
    return name.substr(name.find_last_of('/') + 1) + ":" + std::to_string(line);
  };
  std::string text = cuda_line(in.file, in.cuda_line);
  if (in.caller_line != 0) text += " (called from " + cuda_line(in.caller_file, in.caller_line) + ")";
  text += ", PTX line " + std::to_string(in.line) + ": " + in.text.substr(0, 160) + " [block " +
          std::to_string(w.block->number) + ", ";
  const u32 first = w.id * 32;
  if (w.lane >= 0) return text + "thread " + std::to_string(first + static_cast<u32>(w.lane)) + "]";
  return text + "threads " + std::to_string(first) + " to " + std::to_string(first + 31) + "]";
}

void fail(const Warp& w, const Instruction& in, const char* format, ...) {
  char text[600];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Failure(std::string(text) + "\n  at " + place(w, in));
}

std::string positions(const std::vector<std::unique_ptr<Block>>& blocks) {
  std::string text;
  for (const auto& block : blocks)
    for (const auto& w : block->warps)
      for (const Group& g : w->groups) {
        char waits[60] = "runs";
        if (g.waits) std::snprintf(waits, sizeof waits, "waits for lanes");
        if (g.mbarrier != 0)
          std::snprintf(waits, sizeof waits, "waits at mbarrier 0x%x for parity %u", g.mbarrier,
                        g.parity & 1U);
        if (w->waits_at >= 0) std::snprintf(waits, sizeof waits, "waits at barrier %d", w->waits_at);
        if (w->wants_registers != 0) std::snprintf(waits, sizeof waits, "wants registers");
        const auto& code = block->launch->kernel->code;
        text += "\n    warp " + std::to_string(w->id) + " " + waits + ": " +
                place(*w, code[std::min<std::size_t>(g.pc, code.size() - 1)]);
        if (text.size() > 6000) return text;
      }
  return text;
}

std::string left_behind(Block& block) {
  for (auto& w : block.warps) add_all(*w);
  if (!block.copies.empty()) return "a block ends while copies to its shared memory are under way";
  for (std::size_t n = 0; n < block.barriers.size(); ++n)
    if (const u32 arrived = block.barriers[n].arrived; arrived != 0)
      return "a block ends with " + std::to_string(arrived) + " threads at barrier " + std::to_string(n);
  for (const auto& [at, b] : block.mbarriers)
    if (b.bytes != 0) return "a block ends with a tx-count of " + std::to_string(b.bytes);
  return "";
}

}  // namespace ptx
