#include "emulator/machine.hpp"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>

#include "ring_attention/core/error.hpp"

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
  bool begun = false, idle = false;  // idle: between two blocks
};

// SplitMix64 (Steele, Lea, Flood 2014): a few instructions per number. The scheduler needs many numbers.
struct Random {
  std::uint64_t state = 0;
  std::uint64_t operator()() {
    state += 0x9e3779b97f4a7c15U;
    std::uint64_t z = state;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }
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

struct Machine {
  std::vector<Fiber> fibers;
  unsigned threads = 0, left = 0, running = 0;
  std::vector<std::vector<unsigned>> ready;  // threads, by warp
  std::size_t ready_threads = 0;
  std::array<unsigned, 17> slowness;  // of owners of work
  std::map<int, Barrier> barriers;
  std::map<unsigned, Meeting> meetings;  // by size and group
  std::map<unsigned, std::deque<Work>> work;
  std::size_t fruitless_polls = 0;
  std::unique_ptr<std::byte[]> memory;
  std::byte* shared = nullptr;
  unsigned shared_bytes = 0;
  const std::function<void(unsigned)>* body = nullptr;
  std::exception_ptr error;
  std::jmp_buf home;
  Random random;
  std::uint64_t blocks = 0;
  unsigned favoured = 0;
};
Machine machine;

void finish_one(unsigned owner) {
  std::deque<Work>& queue = machine.work[owner];
  const std::size_t which = owner == tma ? machine.random() % queue.size() : 0;
  const Work work = std::move(queue[which]);
  queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(which));
  if (queue.empty()) machine.work.erase(owner);
  work();
  progress();
}

// In each block the asynchronous work of each owner is fast or slow at random.
void finish_some() {
  if (machine.work.empty()) return;
  auto at = machine.work.begin();
  std::advance(at, machine.random() % machine.work.size());
  if (machine.random() % machine.slowness[at->first % machine.slowness.size()] == 0) finish_one(at->first);
}

// Switches from the running fiber to the scheduler.
__attribute__((noinline)) void leave() {
  if (_setjmp(machine.fibers[machine.running].at) == 0) _longjmp(machine.home, 1);
}

void enter() {
  for (;;) {
    try {
      (*machine.body)(machine.running);
    } catch (...) {
      machine.error = std::current_exception();
    }
    machine.fibers[machine.running].idle = true;
    --machine.left;
    progress();
    leave();
  }
}

__attribute__((noinline)) void resume(unsigned thread) {
  Fiber& fiber = machine.fibers[thread];
  machine.running = thread;
  if (_setjmp(machine.home) != 0) return;
  fiber.idle = false;
  if (fiber.begun) _longjmp(fiber.at, 1);
  fiber.begun = true;
  setcontext(&fiber.start);
}

void make_ready(unsigned thread) {
  machine.ready[thread / 32].push_back(thread);
  ++machine.ready_threads;
}

void make_ready(std::vector<unsigned>& waiting) {
  for (const unsigned thread : waiting) make_ready(thread);
  waiting.clear();
  progress();
}

void arrive(int id, unsigned threads) {
  Barrier& barrier = machine.barriers[id];
  if (threads % 32 != 0 || threads > machine.threads) fail("a barrier has an invalid number of threads");
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

// Before the first block of a fiber, and after a block that failed.
__attribute__((noinline)) void prepare(Fiber& fiber) {
  if (!fiber.stack) fiber.stack.reset(new char[stack_bytes]);  // not initialised: most pages are never used
  fiber.begun = false;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = stack_bytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, enter, 0);
}

// Mostly a thread of the favoured warp, and sometimes another one, so that warps run far ahead of others.
unsigned take_next() {
  if (machine.random() % 256 == 0) machine.favoured = static_cast<unsigned>(machine.random());
  std::size_t warp = machine.favoured % machine.ready.size();
  if (machine.random() % 16 == 0) warp = machine.random() % machine.ready.size();
  while (machine.ready[warp].empty()) warp = (warp + 1) % machine.ready.size();
  std::vector<unsigned>& threads = machine.ready[warp];
  std::swap(threads[machine.random() % threads.size()], threads.back());
  const unsigned thread = threads.back();
  threads.pop_back();
  --machine.ready_threads;
  return thread;
}

}  // namespace

std::mutex& in_use() {
  static std::mutex mutex;
  return mutex;
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
  const Place place{where.file_name(), where.line()};
  if (std::ranges::find(places(), place) == places().end()) places().push_back(place);
  return options().ignore == place;
}

void fail(const std::string& what) { throw Error("emulator: " + what); }
unsigned thread() { return machine.running; }
unsigned random_below(unsigned n) { return static_cast<unsigned>(machine.random() % n); }
std::byte* shared_memory() { return machine.shared; }
void progress() { machine.fruitless_polls = 0; }

std::byte* shared_at(unsigned address, unsigned bytes, unsigned alignment) {
  if (address < first_address || address - first_address + bytes > machine.shared_bytes)
    fail("address " + std::to_string(address) + " is outside of the shared memory");
  if (address % alignment != 0) fail("address " + std::to_string(address) + " is not aligned");
  return machine.shared + (address - first_address);
}

unsigned shared_address(const void* pointer) {
  const std::ptrdiff_t offset = static_cast<const std::byte*>(pointer) - machine.shared;
  if (offset < 0 || offset > static_cast<std::ptrdiff_t>(machine.shared_bytes))
    fail("a pointer does not point to dynamic shared memory");
  return first_address + static_cast<unsigned>(offset);
}

void yield() {
  make_ready(machine.running);
  leave();
}

void wait_until(const std::function<bool()>& condition) {
  while (!condition()) {
    if (machine.work.empty() && ++machine.fruitless_polls > 100 * machine.threads)
      fail("thread " + std::to_string(machine.running) + " waits for something that never happens");
    yield();
  }
}

void barrier_arrive(int id, unsigned threads) {
  arrive(id, threads);
  complete(machine.barriers[id]);
}

void barrier_sync(int id, unsigned threads) {
  arrive(id, threads);
  machine.barriers[id].waiting.push_back(machine.running);
  complete(machine.barriers[id]);
  leave();
}

void start_work(unsigned owner, Work work) { machine.work[owner].push_back(std::move(work)); }

void finish_work(unsigned owner, std::size_t may_remain) {
  for (;;) {
    const auto at = machine.work.find(owner);
    if (at == machine.work.end() || at->second.size() <= may_remain) return;
    finish_one(owner);
  }
}

void meet(unsigned size, void* arguments, const std::type_info& what,
          const std::function<void(void* const*)>& all) {
  const unsigned group = machine.running / size;
  if ((group + 1) * size > machine.threads) fail("a warp is not complete");
  Meeting& meeting = machine.meetings[size << 16U | group];
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

void run_block(unsigned threads, int shared_bytes, const std::function<void(unsigned)>& body) {
  machine.threads = threads;
  machine.left = threads;
  ++machine.blocks;
  machine.body = &body;
  machine.error = nullptr;
  machine.fruitless_polls = 0;
  machine.ready.assign((threads + 31) / 32, {});
  machine.ready_threads = 0;
  for (unsigned& slowness : machine.slowness) slowness = 1U << 4U * (machine.random() % 4);
  machine.barriers.clear();
  machine.meetings.clear();
  machine.work.clear();
  machine.shared_bytes = static_cast<unsigned>(shared_bytes);
  machine.memory = std::make_unique_for_overwrite<std::byte[]>(machine.shared_bytes + guard_bytes + 1024);
  const auto start = reinterpret_cast<std::uintptr_t>(machine.memory.get());
  machine.shared = machine.memory.get() + (1024 - start % 1024) % 1024;
  std::memset(machine.shared, poison, machine.shared_bytes + guard_bytes - 1024);
  if (machine.fibers.size() < threads) machine.fibers.resize(threads);
  for (unsigned i = 0; i < threads; ++i) {
    make_ready(i);
    if (!machine.fibers[i].idle) prepare(machine.fibers[i]);
  }
  while (machine.left > 0 && !machine.error) {
    finish_some();
    if (machine.ready_threads == 0) {
      if (machine.work.empty()) fail("all threads wait for each other");
      continue;
    }
    resume(take_next());
  }
  if (machine.error) std::rethrow_exception(machine.error);
  while (!machine.work.empty()) finish_one(machine.work.begin()->first);
  for (std::size_t i = 0; i < guard_bytes - 1024; ++i)
    if (machine.shared[machine.shared_bytes + i] != std::byte{poison})
      fail("a thread has written behind the shared memory");
}

std::uint64_t blocks_begun() { return machine.blocks; }
void seed_schedule(std::uint64_t seed) { machine.random.state = seed; }

}  // namespace ring_attention::emulator
