// A launch: which warp of which block runs next, and when asynchronous copies arrive.
//
// PTX_SEED: of the random order. PTX_ARRIVAL: 0 copies arrive late (when nothing else can run, or after a long time),
// 1 at once, 2 at random times; otherwise drawn for each launch. PTX_BLOCKS: the most blocks that are resident together.
// PTX_STEPS: the most instructions of warps.
#include <cstdlib>

#include "ptx/scheduler.hpp"

namespace ptx {

u64 setting(const char* name, u64 otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 0) : otherwise;
}

namespace {

using Blocks = std::vector<std::unique_ptr<Block>>;

template <class List>
auto& one_of(List& list, Launch& launch) {
  return list[launch.random() % list.size()];
}

/// A random warp that can run, or nullptr.
Warp* pick_warp(const Blocks& resident, Launch& launch) {
  const std::size_t first = launch.random() % resident.size();
  for (std::size_t i = 0; i < resident.size(); ++i) {
    const auto& warps = resident[(first + i) % resident.size()]->warps;
    const std::size_t from = launch.random() % warps.size();
    for (std::size_t j = 0; j < warps.size(); ++j)
      if (Warp& w = *warps[(from + j) % warps.size()]; can_run(w)) return &w;
  }
  return nullptr;
}

bool deliver_copy(const Blocks& resident, Launch& launch) {
  std::vector<Block*> with_copies;
  for (const auto& block : resident)
    if (!block->copies.empty()) with_copies.push_back(block.get());
  if (with_copies.empty()) return false;
  auto& copies = one_of(with_copies, launch)->copies;
  const auto at = copies.begin() + static_cast<std::ptrdiff_t>(launch.random() % copies.size());
  const std::function<void()> copy = std::move(*at);
  copies.erase(at);
  copy();
  return true;
}

/// Copies of a warp's lanes that arrive before they are waited for.
void arrive_early(Warp& w, Launch& launch) {
  if (!w.copies.empty() && launch.random() % 16 == 0) {
    const auto at = w.copies.begin() + static_cast<std::ptrdiff_t>(launch.random() % w.copies.size());
    complete(w, *at);
    w.copies.erase(at);
  }
  if (launch.random() % 16 == 0) read_sources(w, 0xffffffffU);
}

void run_blocks(Launch& launch, Blocks& resident) {
  const u32 count = launch.grid[0] * launch.grid[1] * launch.grid[2];
  const u64 most_resident = launch.random() % setting("PTX_BLOCKS", 3) + 1;
  const u64 limit = setting("PTX_STEPS", 2000000000ULL);
  u64 without_delivery = 0;
  for (u32 next = 0; next < count || !resident.empty();) {
    while (resident.size() < most_resident && next < count) resident.push_back(make_block(launch, next++));
    Warp* w = pick_warp(resident, launch);
    const bool random_arrival = launch.arrival == Arrival::random;
    if (w == nullptr || (random_arrival && launch.random() % 8 == 0) || ++without_delivery > 2000) {
      without_delivery = 0;
      const bool delivered = deliver_copy(resident, launch);
      if (w == nullptr && !delivered) throw Failure("DEADLOCK" + positions(resident));
      if (w == nullptr) continue;
    }
    run(*w, *launch.kernel, launch.random() % (launch.random() % 4 != 0 ? 30 : 600) + 1);
    if (random_arrival) arrive_early(*w, launch);
    if (launch.steps > limit)
      throw Failure("no end after " + std::to_string(limit) + " instructions" + positions(resident));
    if (Block& block = *w->block; block.alive == 0) {
      if (const std::string error = left_behind(block); !error.empty()) throw Failure(error);
      std::erase_if(resident, [&](const auto& one) { return one.get() == &block; });
    }
  }
}

}  // namespace

std::string run_kernel(Kernel& kernel, std::array<u32, 3> grid, std::array<u32, 3> block, u32 dynamic,
                       std::vector<u8> parameters) {
  if (!kernel.error.empty()) return kernel.error;
  static u64 launches = 0;
  const u64 seed = setting("PTX_SEED", 1) * 1000003 + ++launches;
  Launch launch{&kernel,
                grid,
                block,
                dynamic,
                std::move(parameters),
                0,
                0,
                std::mt19937_64(seed),
                static_cast<Arrival>(setting("PTX_ARRIVAL", seed % 3) % 3)};
  launch.threads = block[0] * block[1] * block[2];
  launch.warps = (launch.threads + 31) / 32;
  if (kernel.max_threads != 0 && launch.threads > kernel.max_threads) return "more threads than .maxntid";
  Blocks resident;
  try {
    run_blocks(launch, resident);
  } catch (const std::exception& error) {
    return std::string(error.what()) + "\n  in " + kernel.name + " (sm_" +
           std::to_string(kernel.architecture) + ", PTX_SEED=" + std::to_string(setting("PTX_SEED", 1)) +
           ", PTX_ARRIVAL=" + std::to_string(static_cast<int>(launch.arrival)) + ")";
  }
  return "";
}

}  // namespace ptx
