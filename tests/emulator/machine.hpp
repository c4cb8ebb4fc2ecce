// The scheduler of the emulator: the threads of one block are fibers of one CPU thread.
//
// A fiber runs until it must wait for others. Then a seeded random number chooses one of the fibers that can continue.
// So a kernel with a missing barrier gives wrong numbers with some seed. Asynchronous work (cp.async, TMA, wgmma) is
// done at a random time between its start and the wait for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <typeinfo>
#include <vector>

namespace ring_attention::emulator {

// A source line with a barrier or a wait.
struct Place {
  std::string file;
  unsigned line;
  friend bool operator==(const Place&, const Place&) = default;
};

struct Options {
  std::uint64_t seed = 1;       // of the schedule
  std::optional<Place> ignore;  // this line has no effect, as if it were missing
};
Options& options();

// Every barrier and every wait that was executed since the list was cleared.
std::vector<Place>& places();

// Adds the line to places(). Returns true if the line is to have no effect.
bool ignored(const std::source_location& where);

// There is one machine. A launch holds this lock.
std::mutex& in_use();

// Runs `body` in `threads` threads with `shared_bytes` of shared memory, which starts as NaN. Throws Error if a thread
// throws, if all threads wait, or if a thread has written behind the shared memory.
void run_block(unsigned threads, int shared_bytes, const std::function<void(unsigned thread)>& body);

// Restarts the sequence of random numbers.
void seed_schedule(std::uint64_t seed);

// The number of blocks that have been started. State of one block is reset when it changes.
std::uint64_t blocks_begun();

// The following functions are called by the running thread.

unsigned thread();
unsigned random_below(unsigned n);

// The block's dynamic shared memory.
std::byte* shared_memory();
// Shared memory at an address as kernels hold it, 32 bits wide. Throws if `bytes` bytes there are not inside or not
// aligned.
std::byte* shared_at(unsigned address, unsigned bytes, unsigned alignment);
unsigned shared_address(const void* pointer);

// Lets other threads run; this thread continues some time later.
void yield();
// Waits for a condition that other threads make true.
void wait_until(const std::function<bool()>& condition);
// Reports that something has changed for which other threads may wait.
void progress();

// bar.sync and bar.arrive: of `threads` of the block, at barrier `id`.
void barrier_sync(int id, unsigned threads);
void barrier_arrive(int id, unsigned threads);

// Asynchronous work. The work of one owner is done in order; owners are independent of each other. finish_work() does
// work of the owner until at most `may_remain` pieces are left.
using Work = std::function<void()>;
void start_work(unsigned owner, Work work);
void finish_work(unsigned owner, std::size_t may_remain);
constexpr unsigned tma = 1U << 20U;  // the one owner whose work is done in any order

// A collective instruction: all threads of an aligned group of `size` (a warp, a warpgroup) call it with their
// arguments. The last one calls all(arguments of thread 0 .. size-1 of the group). Throws if they call different
// instructions.
void meet(unsigned size, void* arguments, const std::type_info& what,
          const std::function<void(void* const*)>& all);

template <class Arguments, class All>
void together(unsigned size, Arguments& arguments, All all) {
  meet(size, &arguments, typeid(All),
       [&](void* const* each) { all(reinterpret_cast<Arguments* const*>(each)); });
}

[[noreturn]] void fail(const std::string& what);

}  // namespace ring_attention::emulator
