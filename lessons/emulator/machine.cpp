#include "emulator/machine.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "emulator/fibers.hpp"
#include "ring_attention/core/error.hpp"

// All variables that kernels declare as __shared__ (language.hpp). The linker defines these names if there are any.
extern "C" {
#ifdef __APPLE__
extern std::byte __start_emulated_shared[] __asm("section$start$__DATA$emulated_shared");
extern std::byte __stop_emulated_shared[] __asm("section$end$__DATA$emulated_shared");
#else
extern std::byte __start_emulated_shared[] __attribute__((weak));
extern std::byte __stop_emulated_shared[] __attribute__((weak));
#endif
}

namespace ring_attention::emulator {
namespace {

constexpr unsigned first_address = 1024;  // of shared memory, so that 0 is never valid
constexpr std::size_t guard_bytes = 4096;
constexpr unsigned char poison = 0xff;  // NaN in every type

struct Barrier {
  std::size_t number = 0;
  unsigned arrived = 0, threads = 0;
  Waiting waiting;
};

struct Meeting {
  std::vector<void*> arguments;
  unsigned arrived = 0;
  const std::type_info* what = nullptr;
  Waiting waiting;
};

// A block in progress.
struct Block {
  unsigned number = 0, left = 0;
  std::vector<Fiber*> fibers;                // null: the thread has not begun
  std::vector<std::vector<unsigned>> ready;  // threads, by warp
  std::size_t ready_threads = 0;
  std::size_t favoured_warp = 0;
  std::array<unsigned, 17> slowness;  // of owners of work
  std::array<Barrier, 16> barriers;
  std::vector<Meeting> of_warps, of_warpgroups;
  std::map<unsigned, std::deque<Work>> work;
  std::unique_ptr<std::byte[]> memory;
  std::byte* shared = nullptr;
  std::vector<std::byte> static_shared;  // of a block that uses it, while another one runs
  std::vector<std::shared_ptr<void>> slots;

  std::vector<Wait> waits;  // of each thread that waits for others

  // Polls since the last progress of any block, and where a thread has waited last.
  std::uint64_t polls = 0, seen_progress = 0;
  unsigned waiting_thread = 0;
  std::source_location waits_at;
};

struct Machine {
  Grid grid;
  std::vector<unsigned> order;                 // in which blocks start, from the back
  std::vector<std::unique_ptr<Block>> blocks;  // in progress
  Block* block = nullptr;                      // the running one
  Block* owner_of_static_shared = nullptr;
  unsigned steps_of_block = 0;  // until another one runs, about: a power of two
  std::uint64_t progress = 0;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> free_fibers;
  const std::function<void()>* body = nullptr;
  std::exception_ptr error;
  Fiber home;  // where run_grid() was called
  Random random;
  std::size_t slots = 0;
};
Machine machine;

// ---- Asynchronous work

void finish_one(unsigned owner) {
  auto& all = machine.block->work;
  std::deque<Work>& queue = all[owner];
  const std::size_t which = owner == tma ? machine.random() % queue.size() : 0;
  const Work work = std::move(queue[which]);
  queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(which));
  if (queue.empty()) all.erase(owner);
  work();
  progress();
}

// In each block the asynchronous work of each owner is fast or slow at random.
void finish_some() {
  const Block& block = *machine.block;
  if (block.work.empty()) return;
  const std::uint64_t bits = machine.random();
  auto at = block.work.begin();
  std::advance(at, (bits >> 32U) % block.work.size());
  if (bits % block.slowness[at->first % block.slowness.size()] == 0) finish_one(at->first);
}

// ---- Fibers

Fiber* next_fiber();

void run_threads() {
  fiber_has_begun();
  Fiber& own = *machine.block->fibers[running.thread];
  for (;;) {
    Fiber* next = nullptr;
    try {
      (*machine.body)();
      machine.free_fibers.push_back(&own);
      --machine.block->left;
      progress();
      next = next_fiber();  // this fiber again if the next thread has not begun
    } catch (...) {
      machine.error = std::current_exception();
    }
    if (next != &own) switch_fibers(own, next == nullptr ? machine.home : *next);
  }
}

Fiber* take_fiber() {
  auto& all = machine.fibers;
  if (machine.free_fibers.empty()) return all.emplace_back(new_fiber(all.size() + 1, run_threads)).get();
  Fiber* fiber = machine.free_fibers.back();
  machine.free_fibers.pop_back();
  return fiber;
}

// ---- Threads of a block

void make_ready(unsigned thread) {
  machine.block->ready[thread / 32].push_back(thread);
  ++machine.block->ready_threads;
}

Barrier& barrier_of(int id) {
  if (id < 0 || id > 15) fail("a barrier has an invalid number");
  return machine.block->barriers[static_cast<std::size_t>(id)];
}

void arrive(Barrier& barrier, unsigned threads) {
  if (threads % 32 != 0 || threads > machine.grid.threads) fail("a barrier has an invalid number of threads");
  if (barrier.arrived > 0 && barrier.threads != threads)
    fail("threads use a barrier with different numbers of threads");
  barrier.threads = threads;
  ++barrier.arrived;
}

bool complete(Barrier& barrier) {
  if (barrier.arrived < barrier.threads) return false;
  barrier.arrived = 0;
  wake(barrier.waiting);
  return true;
}

// Mostly a thread of the favoured warp, and sometimes another one, so that warps run far ahead of others.
unsigned take_next() {
  Block& block = *machine.block;
  const std::uint64_t bits = machine.random();
  const std::size_t warps = block.ready.size();
  if ((bits & 0xffU) == 0) block.favoured_warp = machine.random() % warps;
  std::size_t warp = block.favoured_warp;
  if ((bits >> 8U & 0xfU) == 0) warp = machine.random() % warps;
  while (block.ready[warp].empty()) warp = warp + 1 < warps ? warp + 1 : 0;
  std::vector<unsigned>& threads = block.ready[warp];
  std::swap(threads[(bits >> 32U) * threads.size() >> 32U], threads.back());
  const unsigned thread = threads.back();
  threads.pop_back();
  --block.ready_threads;
  return thread;
}

// Each thread of the block has polled about so many times, and nothing has changed since then.
bool is_stuck(const Block& block, unsigned times = 100) {
  return block.work.empty() && block.seen_progress == machine.progress &&
         block.polls > std::uint64_t{times} * machine.grid.threads;
}

// Makes the next thread of the running block the running one. Null if another block is to run, or no thread of this block
// can run.
Fiber* next_fiber() {
  Block& block = *machine.block;
  if (machine.error || block.left == 0) return nullptr;
  do {
    if ((machine.random() & (machine.steps_of_block - 1)) == 0) return nullptr;
    finish_some();
  } while (block.ready_threads == 0 && !block.work.empty());
  if (block.ready_threads == 0) return nullptr;
  running.thread = take_next();
  Fiber*& fiber = block.fibers[running.thread];
  if (fiber == nullptr) fiber = take_fiber();
  return fiber;
}

// The running thread does not run until next_fiber() chooses it.
void leave(const Wait& wait = {}) {
  Block& block = *machine.block;
  const unsigned thread = running.thread;
  Fiber& own = *block.fibers[thread];
  block.waits[thread] = wait;
  Fiber* const next = is_stuck(block, 4) ? nullptr : next_fiber();
  if (next != &own) switch_fibers(own, next == nullptr ? machine.home : *next);
  block.waits[thread] = {};
}

std::string describe(const Barrier& barrier) {
  return "at barrier " + std::to_string(barrier.number) + ", where " + std::to_string(barrier.arrived) +
         " of " + std::to_string(barrier.threads) + " threads are";
}

// ---- Blocks of a grid

// Variables that are __shared__ exist once: they have the values of the running block if it uses them.
void give_static_shared(Block& block) {
  Block*& owner = machine.owner_of_static_shared;
  if (owner == &block) return;
  if (owner != nullptr) owner->static_shared.assign(__start_emulated_shared, __stop_emulated_shared);
  owner = &block;
  std::ranges::copy(block.static_shared, __start_emulated_shared);
}

void switch_to(Block* block) {
  if (machine.block == block) return;
  if (!block->static_shared.empty()) give_static_shared(*block);
  machine.block = block;
  running.block = block->number;
  start_of_shared = block->shared;
  end_of_shared = block->shared + machine.grid.shared_bytes;
}

void no_block() {
  machine.block = nullptr;
  start_of_shared = end_of_shared = nullptr;
}

Block* start_block() {
  Block& block = *machine.blocks.emplace_back(std::make_unique<Block>());
  block.number = machine.order.back();
  machine.order.pop_back();
  block.left = machine.grid.threads;
  block.fibers.assign(block.left, nullptr);
  block.waits.assign(block.left, {});
  for (std::size_t i = 0; i < block.barriers.size(); ++i) block.barriers[i].number = i;
  block.ready.assign((block.left + 31) / 32, {});
  block.of_warps.resize(block.left / 32);
  block.of_warpgroups.resize(block.left / 128);
  for (unsigned i = 0; i < block.left; ++i) block.ready[i / 32].push_back(i);
  block.ready_threads = block.left;
  for (unsigned& slowness : block.slowness) slowness = 1U << 4U * (machine.random() % 4);
  const auto shared_bytes = static_cast<std::size_t>(machine.grid.shared_bytes);
  block.memory = std::make_unique_for_overwrite<std::byte[]>(shared_bytes + guard_bytes);
  const auto start = reinterpret_cast<std::uintptr_t>(block.memory.get());
  block.shared = block.memory.get() + (1024 - start % 1024) % 1024;
  std::memset(block.shared, poison, shared_bytes + guard_bytes - 1024);
  return &block;
}

void end_block() {
  Block* const block = machine.block;
  while (!block->work.empty()) finish_one(block->work.begin()->first);
  const std::byte* const guard = block->shared + machine.grid.shared_bytes;
  if (!std::all_of(guard, guard + guard_bytes - 1024, [](std::byte x) { return x == std::byte{poison}; }))
    fail("a thread has written behind the shared memory");
  if (machine.owner_of_static_shared == block) machine.owner_of_static_shared = nullptr;
  no_block();
  std::erase_if(machine.blocks, [&](const auto& other) { return other.get() == block; });
}

// How many blocks fit on all multiprocessors, by their threads and shared memory.
unsigned most_resident() {
  constexpr unsigned most_blocks = 32, most_threads = 2048, most_bytes = 228 * 1024, reserved = 1024;
  const unsigned bytes = static_cast<unsigned>(machine.grid.shared_bytes) + reserved;
  const unsigned fit = std::min({most_blocks, most_threads / machine.grid.threads, most_bytes / bytes});
  return options().multiprocessors * std::max(fit, 1U);
}

[[noreturn]] void fail_without_progress() {
  std::string text = "no thread can continue";
  for (const auto& block : machine.blocks) {
    if (block != machine.blocks.front()) text += ",";
    text += "\n  thread " + std::to_string(block->waiting_thread) + " of block " +
            std::to_string(block->number) + " waits for something that never happens at " +
            block->waits_at.file_name() + ":" + std::to_string(block->waits_at.line());
    if (&block - machine.blocks.data() < 8) continue;
    text += ", ...";
    break;
  }
  if (!machine.order.empty())
    text += "\n  " + std::to_string(machine.order.size()) +
            " blocks have not started: " + std::to_string(most_resident()) + " fit";
  fail(text);
}

bool can_start() { return !machine.order.empty() && machine.blocks.size() < most_resident(); }

// A few blocks are in progress, and others start when these wait for them.
Block* another_block() {
  constexpr std::size_t few = 3;
  if (can_start() && machine.blocks.size() < few) return start_block();
  const std::size_t first = machine.blocks.empty() ? 0 : machine.random() % machine.blocks.size();
  for (std::size_t i = 0; i < machine.blocks.size(); ++i) {
    Block& block = *machine.blocks[(first + i) % machine.blocks.size()];
    if (!is_stuck(block)) return &block;
  }
  if (!can_start()) fail_without_progress();
  return start_block();
}

// "threads 0-31, 40 wait": those that wait as thread `first` does.
std::string threads_that_wait(const std::vector<Wait>& waits, std::size_t first) {
  std::string text;
  for (std::size_t end = first; first < waits.size(); first = end) {
    while (end < waits.size() && waits[end] == waits[first]) ++end;
    text += std::to_string(first) + (end - first > 1 ? "-" + std::to_string(end - 1) : "");
    const Wait& wait = waits[first];
    while (end < waits.size() && waits[end] != wait) ++end;
    if (end < waits.size()) text += ", ";
  }
  return text.find_first_of("-,") == std::string::npos ? "thread " + text + " waits"
                                                       : "threads " + text + " wait";
}

[[noreturn]] void fail_all_waiting(const Block& block) {
  std::string text = "all threads of block " + std::to_string(block.number) + " wait for each other:";
  const std::vector<Wait>& waits = block.waits;
  for (auto at = waits.begin(); at != waits.end(); ++at) {
    if (at->what == nullptr || std::find(waits.begin(), at, *at) != at)
      continue;  // has returned, or is in a line above
    text += "\n  " + threads_that_wait(waits, static_cast<std::size_t>(at - waits.begin())) + " " +
            at->what(at->of);
    if (at->where.line() > 0)
      text += std::string(": ") + at->where.file_name() + ":" + std::to_string(at->where.line());
  }
  fail(text);
}

void run_blocks() {
  while (!machine.order.empty() || !machine.blocks.empty()) {
    switch_to(another_block());
    if (Fiber* const next = next_fiber()) switch_fibers(machine.home, *next);
    if (machine.error) std::rethrow_exception(machine.error);
    const Block& block = *machine.block;
    if (block.left == 0)
      end_block();
    else if (block.ready_threads == 0 && block.work.empty())
      fail_all_waiting(block);
  }
}

// After an error: fibers in the middle of a thread are not used again.
void abandon() {
  no_block();
  machine.owner_of_static_shared = nullptr;
  machine.blocks.clear();
  machine.fibers.clear();
  machine.free_fibers.clear();
  machine.error = nullptr;
}

}  // namespace

std::mutex& in_use() {
  static std::mutex mutex;
  return mutex;
}

std::uint64_t first_seed() {
  static const char* const seed = std::getenv("EMULATED_SEED");
  return seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10);
}

bool tensor_cores_truncate() {
  static const char* const given = std::getenv("EMULATED_TRUNCATION");
  return given != nullptr && std::string_view(given) == "1";
}

Options& options() {
  static Options options;
  return options;
}

std::vector<SourceLine>& places() {
  static std::vector<SourceLine> places;
  return places;
}

bool ignored(const std::source_location& where) {
  static std::mutex mutex;  // threads of the host wait, too
  const std::lock_guard lock(mutex);
  const SourceLine place{where.file_name(), where.line()};
  if (std::ranges::find(places(), place) == places().end()) places().push_back(place);
  return options().ignore == place;
}

void fail(const std::string& what) { throw Error("emulator: " + what); }
unsigned random_below(unsigned n) { return static_cast<unsigned>(machine.random() % n); }
unsigned threads_of_running_block() { return machine.grid.threads; }
std::byte* shared_memory() { return machine.block->shared; }
void progress() { ++machine.progress; }

std::size_t new_slot() { return machine.slots++; }
std::shared_ptr<void>& slot_of_block(std::size_t number) {
  auto& slots = machine.block->slots;
  if (slots.size() <= number) slots.resize(machine.slots);
  return slots[number];
}

std::byte* shared_at(unsigned address, unsigned bytes, unsigned alignment) {
  if (address < first_address ||
      address - first_address + bytes > static_cast<unsigned>(machine.grid.shared_bytes))
    fail("address " + std::to_string(address) + " is outside of the shared memory");
  if (address % alignment != 0) fail("address " + std::to_string(address) + " is not aligned");
  return machine.block->shared + (address - first_address);
}

void use_static_shared() {
  Block& block = *machine.block;
  if (block.static_shared.empty())
    block.static_shared.assign(static_cast<std::size_t>(__stop_emulated_shared - __start_emulated_shared),
                               std::byte{poison});
  give_static_shared(block);
}

unsigned shared_address(const void* pointer) {
  const std::ptrdiff_t offset = static_cast<const std::byte*>(pointer) - machine.block->shared;
  if (offset < 0 || offset > machine.grid.shared_bytes)
    fail("a pointer does not point to dynamic shared memory");
  return first_address + static_cast<unsigned>(offset);
}

void poll(const std::source_location& where) {
  Block& block = *machine.block;
  if (block.seen_progress != machine.progress) block.polls = 0;
  block.seen_progress = machine.progress;
  ++block.polls;
  block.waits_at = where;
  block.waiting_thread = running.thread;
  make_ready(running.thread);
  leave();
}

void wait_in(Waiting& waiting, const Wait& wait) {
  machine.block->waits_at = wait.where;
  machine.block->waiting_thread = running.thread;
  waiting.push_back(running.thread);
  leave(wait);
}

void wake(Waiting& waiting) {
  for (const unsigned thread : waiting) make_ready(thread);
  waiting.clear();
  progress();
}

void barrier_arrive(int id, unsigned threads) {
  Barrier& barrier = barrier_of(id);
  arrive(barrier, threads);
  complete(barrier);
  pause();
}

void pause() {
  if (!options().pauses || machine.random() % 2 == 0) return;
  make_ready(running.thread);
  leave();
}

void barrier_sync(int id, unsigned threads, const std::source_location& where) {
  Barrier& barrier = barrier_of(id);
  arrive(barrier, threads);
  barrier.waiting.push_back(running.thread);
  complete(barrier);
  leave({[](const void* of) { return describe(*static_cast<const Barrier*>(of)); }, &barrier, where});
}

void start_work(unsigned owner, Work work) { machine.block->work[owner].push_back(std::move(work)); }

void finish_work(unsigned owner, std::size_t may_remain) {
  for (;;) {
    const auto at = machine.block->work.find(owner);
    if (at == machine.block->work.end() || at->second.size() <= may_remain) return;
    finish_one(owner);
  }
}

void meet(unsigned size, void* arguments, const std::type_info& what, void (*all)(void* const*)) {
  const unsigned group = running.thread / size;
  if ((group + 1) * size > machine.grid.threads) fail("a warp is not complete");
  Meeting& meeting = size == 32 ? machine.block->of_warps[group] : machine.block->of_warpgroups[group];
  meeting.arguments.resize(size);
  if (meeting.arrived > 0 && *meeting.what != what)
    fail(std::string("threads of one group call different instructions: ") + what.name() + " and " +
         meeting.what->name());
  meeting.what = &what;
  meeting.arguments[running.thread % size] = arguments;
  if (++meeting.arrived < size) {
    meeting.waiting.push_back(running.thread);
    leave({[](const void*) { return std::string("for the other threads of a warp or warpgroup"); },
           &meeting,
           {}});
    return;
  }
  all(meeting.arguments.data());
  meeting.arrived = 0;
  wake(meeting.waiting);
}

void run_grid(const Grid& grid, const std::function<void()>& body) {
  machine.grid = grid;
  machine.body = &body;
  machine.home.begun = true;
  machine.random.state = options().seed;
  machine.steps_of_block = 16U << 4U * (machine.random() % 3);
  machine.order.resize(grid.blocks);
  std::iota(machine.order.begin(), machine.order.end(), 0U);
  if (grid.blocks > most_resident()) {
    std::ranges::reverse(machine.order);
  } else {
    for (std::size_t i = machine.order.size(); i > 1; --i)
      std::swap(machine.order[i - 1], machine.order[machine.random() % i]);
  }
  try {
    run_blocks();
  } catch (...) {
    abandon();
    throw;
  }
}

}  // namespace ring_attention::emulator
