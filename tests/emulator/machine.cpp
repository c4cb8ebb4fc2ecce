#include "emulator/machine.hpp"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "ring_attention/core/error.hpp"

// The address sanitizer has to know on which stack a thread runs.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#else
namespace {
void __sanitizer_start_switch_fiber(void**, const void*, std::size_t) {}
void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*) {}
}  // namespace
#endif

// All variables that kernels declare as __shared__ (language.hpp). The linker defines these names if there are any.
extern "C" {
extern std::byte __start_emulated_shared[] __attribute__((weak));
extern std::byte __stop_emulated_shared[] __attribute__((weak));
}

namespace ring_attention::emulator {
namespace {

constexpr std::size_t stack_bytes = 256 * 1024;
constexpr unsigned first_address = 1024;  // of shared memory, so that 0 is never valid
constexpr std::size_t guard_bytes = 4096;
constexpr unsigned char poison = 0xff;  // NaN in every type

// A fiber is started once and then used for one block after the other, because starting a context costs two system
// calls.
struct Fiber {
  std::unique_ptr<char[]> stack;
  ucontext_t start;
  std::jmp_buf at;
  void* of_sanitizer = nullptr;
  bool begun = false;
};

struct Barrier {
  unsigned arrived = 0, threads = 0;
  std::vector<unsigned> waiting;
};

struct Meeting {
  std::vector<void*> arguments;
  unsigned arrived = 0;
  const std::type_info* what = nullptr;
  std::vector<unsigned> waiting;
};

// A block in progress.
struct Block {
  unsigned number = 0, left = 0;
  std::vector<Fiber*> fibers;                // null: the thread has not begun
  std::vector<std::vector<unsigned>> ready;  // threads, by warp
  std::size_t ready_threads = 0;
  std::uint64_t favoured_warp = 0;
  std::array<unsigned, 17> slowness;  // of owners of work
  std::map<int, Barrier> barriers;
  std::map<unsigned, Meeting> meetings;  // by size and group
  std::map<unsigned, std::deque<Work>> work;
  std::unique_ptr<std::byte[]> memory;
  std::byte* shared = nullptr;
  std::vector<std::byte> static_shared;  // while another block runs
  std::vector<std::shared_ptr<void>> slots;

  // Polls since the last progress of any block.
  std::uint64_t polls = 0, seen_progress = 0;
  unsigned polling_thread = 0;
  std::source_location polls_at;
};

struct Machine {
  Grid grid;
  std::vector<unsigned> order;                 // in which blocks start, from the back
  std::vector<std::unique_ptr<Block>> blocks;  // in progress
  Block* block = nullptr;                      // the running one
  unsigned running = 0;                        // its running thread
  unsigned steps_of_block = 0;                 // until another one runs, about
  std::uint64_t progress = 0;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> free_fibers;
  const std::function<void()>* body = nullptr;
  std::exception_ptr error;
  std::jmp_buf home;
  const void* home_stack = nullptr;
  std::size_t home_stack_bytes = 0;
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
  auto at = block.work.begin();
  std::advance(at, machine.random() % block.work.size());
  if (machine.random() % block.slowness[at->first % block.slowness.size()] == 0) finish_one(at->first);
}

// ---- Fibers

// Switches from the running fiber to the scheduler.
__attribute__((noinline)) void leave() {
  Fiber& fiber = *machine.block->fibers[machine.running];
  __sanitizer_start_switch_fiber(&fiber.of_sanitizer, machine.home_stack, machine.home_stack_bytes);
  if (_setjmp(fiber.at) == 0) _longjmp(machine.home, 1);
  __sanitizer_finish_switch_fiber(fiber.of_sanitizer, &machine.home_stack, &machine.home_stack_bytes);
}

void enter() {
  __sanitizer_finish_switch_fiber(nullptr, &machine.home_stack, &machine.home_stack_bytes);
  for (;;) {
    try {
      (*machine.body)();
    } catch (...) {
      machine.error = std::current_exception();
    }
    machine.free_fibers.push_back(machine.block->fibers[machine.running]);
    --machine.block->left;
    progress();
    leave();
  }
}

__attribute__((noinline)) Fiber* new_fiber() {
  Fiber& fiber = *machine.fibers.emplace_back(std::make_unique<Fiber>());
  fiber.stack.reset(new char[stack_bytes]);  // not initialised: most pages are never used
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = stack_bytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, enter, 0);
  return &fiber;
}

Fiber* take_fiber() {
  if (machine.free_fibers.empty()) return new_fiber();
  Fiber* fiber = machine.free_fibers.back();
  machine.free_fibers.pop_back();
  return fiber;
}

__attribute__((noinline)) void resume(unsigned thread) {
  Fiber*& of_thread = machine.block->fibers[thread];
  if (of_thread == nullptr) of_thread = take_fiber();
  Fiber& fiber = *of_thread;
  machine.running = thread;
  void* of_sanitizer = nullptr;
  __sanitizer_start_switch_fiber(&of_sanitizer, fiber.stack.get(), stack_bytes);
  if (_setjmp(machine.home) == 0) {
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    setcontext(&fiber.start);
  }
  __sanitizer_finish_switch_fiber(of_sanitizer, nullptr, nullptr);
}

// ---- Threads of a block

void make_ready(unsigned thread) {
  machine.block->ready[thread / 32].push_back(thread);
  ++machine.block->ready_threads;
}

void make_ready(std::vector<unsigned>& waiting) {
  for (const unsigned thread : waiting) make_ready(thread);
  waiting.clear();
  progress();
}

void arrive(int id, unsigned threads) {
  Barrier& barrier = machine.block->barriers[id];
  if (threads % 32 != 0 || threads > machine.grid.threads) fail("a barrier has an invalid number of threads");
  if (barrier.arrived > 0 && barrier.threads != threads)
    fail("threads use a barrier with different numbers of threads");
  barrier.threads = threads;
  ++barrier.arrived;
}

bool complete(Barrier& barrier) {
  if (barrier.arrived < barrier.threads) return false;
  barrier.arrived = 0;
  make_ready(barrier.waiting);
  return true;
}

// Mostly a thread of the favoured warp, and sometimes another one, so that warps run far ahead of others.
unsigned take_next() {
  Block& block = *machine.block;
  if (machine.random() % 256 == 0) block.favoured_warp = machine.random();
  std::size_t warp = block.favoured_warp % block.ready.size();
  if (machine.random() % 16 == 0) warp = machine.random() % block.ready.size();
  while (block.ready[warp].empty()) warp = (warp + 1) % block.ready.size();
  std::vector<unsigned>& threads = block.ready[warp];
  std::swap(threads[machine.random() % threads.size()], threads.back());
  const unsigned thread = threads.back();
  threads.pop_back();
  --block.ready_threads;
  return thread;
}

// ---- Blocks of a grid

std::size_t static_shared_bytes() {
  return static_cast<std::size_t>(__stop_emulated_shared - __start_emulated_shared);
}

// Makes a block the running one. Variables that are __shared__ exist once: they have the values of the running block.
void switch_to(Block* block) {
  if (machine.block == block) return;
  const std::size_t bytes = static_shared_bytes();
  if (bytes > 0 && machine.block != nullptr)
    machine.block->static_shared.assign(__start_emulated_shared, __stop_emulated_shared);
  if (bytes > 0) std::ranges::copy(block->static_shared, __start_emulated_shared);
  machine.block = block;
}

Block* start_block() {
  Block& block = *machine.blocks.emplace_back(std::make_unique<Block>());
  block.number = machine.order.back();
  machine.order.pop_back();
  block.left = machine.grid.threads;
  block.fibers.assign(block.left, nullptr);
  block.ready.assign((block.left + 31) / 32, {});
  for (unsigned i = 0; i < block.left; ++i) block.ready[i / 32].push_back(i);
  block.ready_threads = block.left;
  for (unsigned& slowness : block.slowness) slowness = 1U << 4U * (machine.random() % 4);
  const auto shared_bytes = static_cast<std::size_t>(machine.grid.shared_bytes);
  block.memory = std::make_unique_for_overwrite<std::byte[]>(shared_bytes + guard_bytes);
  const auto start = reinterpret_cast<std::uintptr_t>(block.memory.get());
  block.shared = block.memory.get() + (1024 - start % 1024) % 1024;
  std::memset(block.shared, poison, shared_bytes + guard_bytes - 1024);
  block.static_shared.assign(static_shared_bytes(), std::byte{poison});
  return &block;
}

void end_block() {
  Block* const block = machine.block;
  while (!block->work.empty()) finish_one(block->work.begin()->first);
  const std::byte* const guard = block->shared + machine.grid.shared_bytes;
  if (!std::all_of(guard, guard + guard_bytes - 1024, [](std::byte x) { return x == std::byte{poison}; }))
    fail("a thread has written behind the shared memory");
  machine.block = nullptr;
  std::erase_if(machine.blocks, [&](const auto& other) { return other.get() == block; });
}

// How many blocks fit on all multiprocessors, by their threads and shared memory.
unsigned most_resident() {
  constexpr unsigned most_blocks = 32, most_threads = 2048, most_bytes = 228 * 1024, reserved = 1024;
  const unsigned bytes = static_cast<unsigned>(machine.grid.shared_bytes) + reserved;
  const unsigned fit = std::min({most_blocks, most_threads / machine.grid.threads, most_bytes / bytes});
  return options().multiprocessors * std::max(fit, 1U);
}

// Each thread of the block has polled about so many times, and nothing has changed since then.
bool is_stuck(const Block& block, unsigned times = 100) {
  return block.work.empty() && block.seen_progress == machine.progress &&
         block.polls > std::uint64_t{times} * machine.grid.threads;
}

[[noreturn]] void fail_without_progress() {
  std::string text = "no thread can continue";
  for (const auto& block : machine.blocks) {
    if (block != machine.blocks.front()) text += ",";
    text += "\n  thread " + std::to_string(block->polling_thread) + " of block " +
            std::to_string(block->number) + " waits for something that never happens at " +
            block->polls_at.file_name() + ":" + std::to_string(block->polls_at.line());
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

void run_blocks() {
  while (!machine.order.empty() || !machine.blocks.empty()) {
    if (machine.block == nullptr || machine.random() % machine.steps_of_block == 0 ||
        is_stuck(*machine.block, 4))
      switch_to(another_block());
    Block& block = *machine.block;
    finish_some();
    if (block.ready_threads > 0)
      resume(take_next());
    else if (block.work.empty())
      fail("all threads of block " + std::to_string(block.number) + " wait for each other");
    if (machine.error) std::rethrow_exception(machine.error);
    if (block.left == 0) end_block();
  }
}

// After an error: fibers in the middle of a thread are not used again.
void abandon() {
  machine.block = nullptr;
  machine.blocks.clear();
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

Options& options() {
  static Options options;
  return options;
}

std::vector<Place>& places() {
  static std::vector<Place> places;
  return places;
}

bool ignored(const std::source_location& where) {
  static std::mutex mutex;  // threads of the host wait, too
  const std::lock_guard lock(mutex);
  const Place place{where.file_name(), where.line()};
  if (std::ranges::find(places(), place) == places().end()) places().push_back(place);
  return options().ignore == place;
}

void fail(const std::string& what) { throw Error("emulator: " + what); }
unsigned block() { return machine.block->number; }
unsigned thread() { return machine.running; }
unsigned random_below(unsigned n) { return static_cast<unsigned>(machine.random() % n); }
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
  block.polls_at = where;
  block.polling_thread = machine.running;
  make_ready(machine.running);
  leave();
}

void barrier_arrive(int id, unsigned threads) {
  arrive(id, threads);
  complete(machine.block->barriers[id]);
}

void barrier_sync(int id, unsigned threads) {
  arrive(id, threads);
  machine.block->barriers[id].waiting.push_back(machine.running);
  complete(machine.block->barriers[id]);
  leave();
}

void start_work(unsigned owner, Work work) { machine.block->work[owner].push_back(std::move(work)); }

void finish_work(unsigned owner, std::size_t may_remain) {
  for (;;) {
    const auto at = machine.block->work.find(owner);
    if (at == machine.block->work.end() || at->second.size() <= may_remain) return;
    finish_one(owner);
  }
}

void meet(unsigned size, void* arguments, const std::type_info& what,
          const std::function<void(void* const*)>& all) {
  const unsigned group = machine.running / size;
  if ((group + 1) * size > machine.grid.threads) fail("a warp is not complete");
  Meeting& meeting = machine.block->meetings[size << 16U | group];
  meeting.arguments.resize(size);
  if (meeting.arrived > 0 && *meeting.what != what)
    fail(std::string("threads of one group call different instructions: ") + what.name() + " and " +
         meeting.what->name());
  meeting.what = &what;
  meeting.arguments[machine.running % size] = arguments;
  if (++meeting.arrived < size) {
    meeting.waiting.push_back(machine.running);
    leave();
    return;
  }
  all(meeting.arguments.data());
  meeting.arrived = 0;
  make_ready(meeting.waiting);
}

void run_grid(const Grid& grid, const std::function<void()>& body) {
  machine.grid = grid;
  machine.body = &body;
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
