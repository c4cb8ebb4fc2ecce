/// \file
/// The flags for what computes and for what moves the parcels, which `run` and `bench` share.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.hpp"

namespace ring_attention {

/// A command that does not declare one of these flags keeps its default.
struct DeviceOptions {
  std::string device = "cpu";
  std::string transport = "auto";
  double timeout = 60;  ///< seconds without progress
  // of the GPU
  std::string type = "fp32";  ///< of q, k, v and dO
  std::string kernel = "auto";
  std::string backward_kernel = "auto";
  bool share_gpu = false;
  // of the CPU
  std::string engine = "auto";
  std::string wire = "same";  ///< type of K,V in messages
  Index threads = 0;          ///< a rank; 0: the cores of the host are shared out over its ranks
  std::string isa = "auto";
  Index block = 64;  ///< of the readable engine
};

/// The words for --isa: "auto", and what this machine has.
[[nodiscard]] std::vector<std::string> isa_choices();

/// Adds --transport under the present heading, then --device, --type, --kernel and --share-gpu under "GPU".
void declare_device_options(CommandLine& command, DeviceOptions& options);

/// \throws InputError, one line, for a flag that has no effect on the device, or a --timeout that is not positive
void validate_device(const DeviceOptions& options);

}  // namespace ring_attention
