// The scheduler of the emulator: the threads of all blocks are fibers of one CPU thread.
//
// A fiber runs until it must wait for others. Then a seeded random number chooses one of the fibers that can continue.
// So a kernel with a missing barrier gives wrong numbers with some seed. Asynchronous work (cp.async, TMA, wgmma) is
// done at a random time between its start and the wait for it. Several blocks are in progress at the same time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace ring_attention::emulator {

// A source line with a barrier or a wait.
struct SourceLine {
  std::string_view file;
  unsigned line;
  friend bool operator==(const SourceLine& a, const SourceLine& b) {
    return a.line == b.line && a.file == b.file;
  }
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

// EMULATED_SEED, or 1.
std::uint64_t first_seed();

// Whether EMULATED_TRUNCATION is set.
bool tensor_cores_truncate();

struct Options {
  std::uint64_t seed = first_seed();  // of the schedule
  std::optional<SourceLine> ignore;   // this line has no effect, as if it were missing
  unsigned multiprocessors = 132;
  bool truncated_sums = tensor_cores_truncate();
  bool pauses = false;  // other threads may run after an arrival and before a wait for an mbarrier
};
Options& options();

// Every barrier and every wait that was executed since the list was cleared.
std::vector<SourceLine>& places();

// Adds the line to places(). Returns true if the line is to have no effect.
bool ignored(const std::source_location& where);

// There is one machine and one GPU, for all threads of the process. Who works on it holds this lock.
std::mutex& in_use();

// The grid of a kernel.
struct Grid {
  unsigned blocks, threads;
  int shared_bytes;
};

// Runs body() in every thread of every block. As many blocks as fit on the GPU may be in progress at the same time. If all
// fit they start in random order, otherwise in the order of their numbers. Shared memory starts as NaN. Throws Error if a thread throws, if no thread can continue, or if a
// thread has written behind the shared memory.
void run_grid(const Grid& grid, const std::function<void()>& body);

// The following functions are called by the running thread.

struct Running {
  unsigned block = 0, thread = 0;
};
inline Running running;
inline unsigned block() { return running.block; }
inline unsigned thread() { return running.thread; }
unsigned random_below(unsigned n);
unsigned threads_of_running_block();

// The running block's own object of a type.
std::shared_ptr<void>& slot_of_block(std::size_t number);
std::size_t new_slot();
template <class T>
T& of_block() {
  static const std::size_t number = new_slot();
  std::shared_ptr<void>& slot = slot_of_block(number);
  if (!slot) slot = std::make_shared<T>();
  return *static_cast<T*>(slot.get());
}

// A kernel calls it before it declares variables as __shared__.
void use_static_shared();
// The block's dynamic shared memory.
std::byte* shared_memory();
// Shared memory at an address as kernels hold it, 32 bits wide. Throws if `bytes` bytes there are not inside or not
// aligned.
std::byte* shared_at(unsigned address, unsigned bytes, unsigned alignment);
unsigned shared_address(const void* pointer);
// For any thread of the host: false where no block runs.
inline std::atomic<const std::byte*> start_of_shared = nullptr, end_of_shared = nullptr;
inline bool is_shared(const void* pointer) {
  const auto* const at = static_cast<const std::byte*>(pointer);
  return at >= start_of_shared.load(std::memory_order_relaxed) &&
         at < end_of_shared.load(std::memory_order_relaxed);
}

// Lets other threads run, of this block or of another one; this thread continues some time later. Throws if no thread of
// any block has made progress for long: all wait for something that never happens.
void poll(const std::source_location& where);
// Waits for a condition that other threads make true.
template <class Condition>
void wait_until(const std::source_location& where, Condition condition) {
  while (!condition()) poll(where);
}
// Reports that something has changed for which other threads may wait.
void progress();

// The same for threads of one block, without polls: threads that wait until another one, or asynchronous work, calls
// wake(). A thread that continues asks again whether its condition is true.
using Waiting = std::vector<unsigned>;
// For what a thread waits: what(of) says it, if no thread can continue.
struct Wait {
  std::string (*what)(const void*) = nullptr;
  const void* of = nullptr;
  std::source_location where;
  friend bool operator==(const Wait& a, const Wait& b) {
    return a.what == b.what && a.of == b.of && a.where.line() == b.where.line();
  }
};
void wait_in(Waiting& waiting, const Wait& wait);
void wake(Waiting& waiting);

// bar.sync and bar.arrive: of `threads` of the block, at barrier `id`.
void barrier_sync(int id, unsigned threads, const std::source_location& where);
void barrier_arrive(int id, unsigned threads);
// With options().pauses: the running thread may stop here for a time.
void pause();

// Asynchronous work. The work of one owner is done in order; owners are independent of each other. finish_work() does
// work of the owner until at most `may_remain` pieces are left.
using Work = std::function<void()>;
void start_work(unsigned owner, Work work);
void finish_work(unsigned owner, std::size_t may_remain);
constexpr unsigned tma = 1U << 20U;  // the one owner whose work is done in any order

// A collective instruction: all threads of an aligned group of `size` (a warp, a warpgroup) call it with their
// arguments. The last one calls all(arguments of thread 0 .. size-1 of the group). Throws if they call different
// instructions.
void meet(unsigned size, void* arguments, const std::type_info& what, void (*all)(void* const*));

// `all` captures nothing.
template <class Arguments, class All>
void together(unsigned size, Arguments& arguments, All) {
  meet(size, &arguments, typeid(All),
       [](void* const* each) { All()(reinterpret_cast<Arguments* const*>(each)); });
}

[[noreturn]] void fail(const std::string& what);

}  // namespace ring_attention::emulator
