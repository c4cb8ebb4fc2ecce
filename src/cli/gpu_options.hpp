/// \file
/// The flags about GPUs that `run` and `bench` share.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.hpp"

namespace ring_attention {

struct GpuOptions {
  std::string device = "cpu";
  std::string type = "fp32";    ///< of q, k, v and dO on a GPU
  std::string kernel = "auto";  ///< of the forward's ladder
  std::string ring = "auto";    ///< between GPUs: nccl or staged
  bool share_gpu = false;
};

/// Adds --device, --type, --kernel, --ring and --share-gpu to a command, under a heading of their own.
void declare_gpu_options(CommandLine& command, GpuOptions& options);

/// A flag, whether it was given, and words for the error when it has no effect.
struct DeviceFlag {
  const char* name;
  bool given;
  const char* remark = "";
};

/// Flags that would change nothing on the device that was chosen: those of `cpu` with --device cuda; without it those
/// above, and those of `gpu`. \throws InputError, one line
void validate_device(const GpuOptions& options, const std::vector<DeviceFlag>& cpu,
                     const std::vector<DeviceFlag>& gpu = {});

}  // namespace ring_attention
