/// \file
/// `--trace FILE`, which commands share.
#pragma once

#include "cli/command_line.hpp"

namespace ring_attention {

struct TraceOptions {
  std::string trace;  ///< the file; empty: no trace
};

inline void declare_trace_options(CommandLine& command, TraceOptions& options,
                                  const std::string& what = "What each rank does and when") {
  command.option(
      "--trace", options.trace,
      what +
          ", for Perfetto or Chrome (Trace Event Format, JSON); the FILE.rankN of a killed job are removed",
      "FILE");
}

}  // namespace ring_attention
