// The machine under the emulator: the threads of one block as fibers of one thread of the CPU.
//
// A fiber runs until it must wait for others; then any fiber that can go on is chosen, by a seeded random number.
// So a program that needs a barrier it does not have gives wrong numbers with some seed. Work that the GPU does on its
// own (cp.async, the copy engine, wgmma) happens at a random moment between its start and the wait for it.
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

// A line of a kernel that orders threads or copies.
struct Place {
  std::string file;
  unsigned line;
  friend bool operator==(const Place&, const Place&) = default;
};

struct Options {
  std::uint64_t seed = 1;       // of the schedule
  std::optional<Place> ignore;  // this line does nothing, as if it were missing
};
Options& options();

// Every barrier and every wait that was met since the list was cleared.
std::vector<Place>& places();

// Notes the place. True: act as if the line were not there.
bool ignored(const std::source_location& where);

// There is one machine: who launches a kernel locks it.
std::mutex& in_use();

// Runs `body` in each of so many threads, with so much shared memory, which starts as NaN.
// Throws Error when a thread throws, when all wait, or when something was written behind the shared memory.
void run_block(unsigned threads, int shared_bytes, const std::function<void(unsigned thread)>& body);

// Begins the sequence of random numbers anew.
void seed_schedule(std::uint64_t seed);

// How many blocks have been started: a change means another block.
std::uint64_t blocks_begun();

// What follows is for the running thread.

unsigned thread();
unsigned random_below(unsigned n);

// The block's dynamic shared memory.
std::byte* shared_memory();
// `bytes` of it at an address as kernels hold it, 32 bits wide. Throws when they are not inside, or not aligned.
std::byte* shared_at(unsigned address, unsigned bytes, unsigned alignment);
unsigned shared_address(const void* pointer);

// Others run; this thread goes on some time later.
void yield();
// Waits for a condition that others make true.
void wait_until(const std::function<bool()>& condition);
// Something happened that others may wait for.
void progress();

// bar.sync and bar.arrive: of `threads` of the block, at barrier `id`.
void barrier_sync(int id, unsigned threads);
void mbarrier_arrive(int id, unsigned threads);

// Work that is under way beside the threads. `done` returns once the work of the given number and all before it of
// the same owner has been done; owners are independent of each other.
using Work = std::function<void()>;
void start_work(unsigned owner, Work work);
void finish_work(unsigned owner, std::size_t may_remain);
constexpr unsigned copy_engine = 1U << 20U;  // an owner whose pieces of work are done in any order

// All threads of an aligned group of `size` (a warp, a warpgroup) come together, each with its arguments. The last one
// calls all(arguments of thread 0 .. size-1 of the group). Throws when they meet in different instructions.
void meet(unsigned size, void* mine, const std::type_info& what,
          const std::function<void(void* const*)>& all);

template <class Arguments, class All>
void together(unsigned size, Arguments& mine, All all) {
  meet(size, &mine, typeid(All), [&](void* const* each) { all(reinterpret_cast<Arguments* const*>(each)); });
}

[[noreturn]] void fail(const std::string& what);

}  // namespace ring_attention::emulator
