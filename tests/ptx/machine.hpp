// The data of the interpreter: decoded instructions, kernels, and the state of blocks, warps and barriers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

// Generic addresses: these bits say which state space an address belongs to.
constexpr u64 shared_window = 1ULL << 62U, param_window = 1ULL << 60U;
constexpr u32 shared_base = 1024;  // sm_90 reserves the first KB of shared memory
constexpr int max_warps = 32;

struct Warp;
struct Block;
struct Instruction;

/// What an instruction does for the lanes of `mask`.
using Function = void (*)(Warp&, const Instruction&, u32 mask);

enum class Kind : u8 {
  lanes,           // each lane by itself
  branch,          //
  exit,            //
  trap,            //
  aligned,         // .aligned: all lanes that have not exited
  members,         // .sync with a member mask in w[0]
  barrier_sync,    // bar.sync
  barrier_arrive,  // bar.arrive
  try_wait,        // mbarrier.try_wait
  registers,       // setmaxnreg
  nothing          // what the interpreter has no use for, such as a fence between blocks
};
enum Space : u8 { generic, global, shared, local, param };

/// Registers are named by the byte offset of their first lane in a warp's register file; -1 is none. A predicate is one
/// u32 with a bit for each lane.
struct Instruction {
  Kind kind = Kind::lanes;
  bool guard_negated = false;
  bool of_wgmma = false;  // it names a register that some wgmma uses
  bool is_mov = false;
  bool wide_address = false;  // the register of the address has 64 bits
  Function function = nullptr;
  i32 guard = -1, d = -1, a = -1, b = -1, c = -1;  // destination and sources, in the order of the text
  i64 immediate = 0;
  i32 target = -1;                 // of a branch
  u32 modifiers = 0;               // their meaning is with each function
  u8 size = 0, space = 0;          // of an element in memory
  std::vector<i32> v, w;           // vector operands; the function says which
  std::vector<i32> reads, writes;  // all registers
  u32 line = 0, file = 0, cuda_line = 0, caller_file = 0, caller_line = 0;
  std::string text;
};

struct Parameter {
  std::string name;
  u32 offset, size, align;
};

struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  u32 parameter_bytes = 0, register_bytes = 0, local_bytes = 0, static_shared = 0, max_threads = 0,
      min_blocks = 0;
  std::vector<Instruction> code;
  std::vector<std::pair<i32, std::vector<u8>>> constants;  // register, and its bytes in all lanes
  std::vector<std::pair<i32, std::string>> specials;       // register, and the name of a special register
  std::map<u32, std::string> files;
  int architecture = 0;
  std::string error;  // why it cannot be run
};

/// Lanes of a warp with one program counter.
struct Group {
  u32 mask, pc;
  bool waits = false;            // for other lanes
  u32 mbarrier = 0, parity = 0;  // it waits until the phase of this mbarrier with this parity is over
};

/// What a warp knows of the others: happens-before by vector clocks.
using Clock = std::array<u32, max_warps>;
inline void join(Clock& a, const Clock& b) {
  for (std::size_t i = 0; i < max_warps; ++i) a[i] = a[i] > b[i] ? a[i] : b[i];
}

struct Mbarrier {
  u32 count = 0, pending = 0, phase = 0;
  i64 bytes = 0;            // tx-count: expected and not arrived
  Clock current{}, done{};  // of those that arrive, and of the phase that is over
};

struct NamedBarrier {
  u32 expected = 0, arrived = 0, who = 0;
  bool whole = false, waited_for = false;
  Clock clock{};
};

/// cp.async of one lane.
struct SmallCopy {
  u32 lane, to;
  const u8* from;
  u32 size, from_size;  // the rest is filled with zeros
  u64 group;
};

/// cp.reduce.async.bulk of one lane: it reads shared memory at the latest when it is waited for, and adds at the end.
struct BulkAdd {
  u32 from;
  float* to;
  u32 bytes;
  bool read;
  std::vector<float> data;
};

/// A wgmma that is under way, with the 16-byte lines of shared memory that it reads.
struct Wgmma {
  std::vector<u32> lines;
  std::vector<i32> accumulators, operand_a;
};

enum RegisterFlag : u8 { accumulates = 1, is_operand = 2, changed = 4 };  // changed since wgmma.fence

struct Warp {
  Block* block;
  u32 id;
  int lane = -1;  // whose access is checked; -1: the whole warp
  u8* registers = nullptr;
  std::vector<u8> register_store, local_store, register_flags;
  std::vector<Group> groups;
  u32 exited = 0, live = 0;  // lanes that have exited; that exist
  int waits_at = -1;         // number of a barrier
  u32 wants_registers = 0, own_registers = 0;
  Clock clock{};
  std::vector<SmallCopy> copies;
  std::array<u64, 32> commits{};
  std::array<std::vector<BulkAdd>, 32> adds;
  std::vector<Wgmma> open;
  std::vector<std::vector<Wgmma>> committed;
  bool fenced = false;
  std::size_t wgmma_number = 0;
  std::array<std::vector<std::pair<u32, u32>>, 32> written;  // since the lane's last fence.proxy.async
  template <class T>
  T* at(i32 offset) {
    return reinterpret_cast<T*>(registers + offset);
  }
};

/// When asynchronous copies arrive.
enum class Arrival { late, at_once, random };

struct Launch {
  Kernel* kernel;
  std::array<u32, 3> grid, block;
  u32 dynamic;
  std::vector<u8> parameters;
  u32 threads, warps;
  std::mt19937_64 random;
  Arrival arrival;
  u64 steps = 0;
};

enum ByteFlag : u8 { initialised = 1, under_way = 2, is_mbarrier = 4, unfenced = 8 };

struct Block {
  Launch* launch;
  std::array<u32, 3> index;
  u32 number;
  std::vector<u8> memory, flags;       // shared memory, and a ByteFlag for each byte
  std::vector<u16> owner;              // the thread that wrote a byte
  std::vector<u16> reading;            // by wgmma and bulk copies under way, for each 16 bytes
  std::vector<u32> write_time, reads;  // clocks, for each 4 bytes; reads: of each warp
  std::vector<u8> writer;
  std::unordered_map<u32, Mbarrier> mbarriers;
  std::array<NamedBarrier, 16> barriers;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<std::function<void()>> copies;  // of TMA to shared memory, under way
  u32 free_registers = 0;
  u32 alive = 0;                                           // warps
  std::vector<std::vector<std::array<u64, 3>>> wgmma_log;  // of each warpgroup: instruction and descriptors
  [[nodiscard]] u32 end() const { return shared_base + static_cast<u32>(memory.size()); }
};

/// A violation, or what is not modelled. The text names the place.
struct Failure : std::runtime_error {
  using runtime_error::runtime_error;
};
[[noreturn]] void fail(const Warp& w, const Instruction& in, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

/// What the stand-in for cuTensorMapEncodeTiled writes into the 128 bytes.
struct TensorMap {
  static constexpr u64 the_magic = 0x50414d524f534e54ULL;
  u64 magic = the_magic, address = 0;
  u32 rank = 0, element = 0, swizzle = 0, unused = 0;
  u64 size[4] = {}, stride[4] = {};
  u32 box[4] = {};
};
static_assert(sizeof(TensorMap) <= 128);

/// The end of the allocation that holds this address of global memory, or 0.
u64 end_of_allocation(u64 address);

std::vector<std::unique_ptr<Kernel>> parse_module(const std::string& text, int architecture);

/// Runs all blocks. Returns "" or the error.
std::string run_kernel(Kernel& kernel, std::array<u32, 3> grid, std::array<u32, 3> block, u32 dynamic,
                       std::vector<u8> parameters);

/// An environment variable as a number.
u64 setting(const char* name, u64 otherwise);

}  // namespace ptx
