/// \file
/// The flags that commands share: the job, the cores of a machine, and for `run` and `bench` what computes and what moves
/// the parcels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.hpp"

namespace ring_attention {

/// What every command on many ranks has.
struct JobOptions {
  double timeout = 60;  ///< seconds without progress
  Index ranks = 0;      ///< promised by --expect-ranks; 0: no promise
};

/// How a rank uses the cores of its machine.
struct CpuFlags {
  Index threads = 0;  ///< a rank; 0: the cores of the host are shared out over its ranks
  std::string isa = "auto";
};

/// Flags for the same bits on any number of ranks.
struct SameBitsFlags {
  bool same_bits = false;
  std::optional<Index> tile;  ///< tokens
  /// The tokens of its tile; 0 without the flag.
  [[nodiscard]] Index tile_of_same_bits() const { return same_bits ? tile.value_or(256) : 0; }
};

/// A command that does not declare one of these flags keeps its default.
struct DeviceOptions : JobOptions, CpuFlags, SameBitsFlags {
  std::string device = "cpu";
  std::string transport = "auto";
  std::string dtype = "float32";  ///< of q, k, v and dO; `run` on a CPU takes it from its files
  // of the GPU
  std::string kernel = "auto";
  std::string backward_kernel = "auto";
  bool share_gpu = false;
  // of the CPU
  std::string engine = "auto";
  std::string kv_dtype = "same";  ///< of K,V in messages
  [[nodiscard]] Index tile_of_readable() const { return tile.value_or(64); }
};

/// Adds --timeout and --expect-ranks under "Job".
void declare_job_options(CommandLine& command, JobOptions& options);

/// Adds --threads and --isa under "CPU".
void declare_cpu_options(CommandLine& command, CpuFlags& options);

/// Adds --transport under the present heading, then --device, --type, --kernel and --share-gpu under "GPU".
/// \param dtypes  the words of --dtype
void declare_device_options(CommandLine& command, DeviceOptions& options,
                            const std::vector<std::string>& dtypes);

/// Adds --same-bits and --tile under the present heading.
/// \param has_readable  the command has --engine readable, which takes --tile, too
/// \param where         the bits are the same: on any number of ranks ...
void declare_same_bits(CommandLine& command, SameBitsFlags& options, bool has_readable = false,
                       const std::string& where =
                           "on any number of ranks and threads, and for every "
                           "placement and partition");

/// \throws InputError, one line, for a --timeout that is not positive
void validate_job(const JobOptions& options);

/// \throws InputError as validate_job() does, and for flags without effect on the device
void validate_device(const DeviceOptions& options);

/// \throws InputError, one line, for a problem with more elements, or a larger B, H or D, than core/index.hpp allows
/// \param has  how the line begins: "the problem has"
void require_countable(const Shape& q, const std::string& has);

}  // namespace ring_attention
