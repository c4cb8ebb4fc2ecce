/// \file
/// The flags of masks whose queries see several intervals of keys (mask_sets.hpp).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "ring_attention/attention/mask.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

struct MaskFlags {
  std::optional<Index> prefix, sink_tokens, chunk;
  std::string blocks, global_tokens;  ///< begin:end,begin:end,...
  std::string intervals;              ///< a file of [Sq, m, 2]

  [[nodiscard]] bool any() const {
    return prefix || sink_tokens || chunk || !blocks.empty() || !global_tokens.empty() || !intervals.empty();
  }
};

/// Adds --causal, --window and --documents to a command.
void declare_band_flags(CommandLine& command, bool& causal, std::vector<Index>& window,
                        std::string& documents);
/// The mask of --causal and --window. \param window  LEFT, RIGHT, -1: unlimited; or empty
[[nodiscard]] Mask band_of(bool causal, const std::vector<Index>& window);

/// Adds the flags of MaskFlags to a command.
void declare_mask_flags(CommandLine& command, MaskFlags& flags);

/// \param causal, window  whether the command was given these: without them most of the flags change nothing
/// \throws InputError for a flag that changes nothing, and for text that is no list of intervals
void validate(const MaskFlags& flags, bool causal, bool window);

/// What the flags say; null without any. Rank 0 reads the file.
/// \throws AgreedError when it does not fit the numbers of queries and keys. Collective.
[[nodiscard]] std::shared_ptr<const KeySets> mask_sets_of(const Communicator& comm, const MaskFlags& flags,
                                                          Index queries, Index keys);
/// What the flags say, on one process. \throws InputError
[[nodiscard]] std::shared_ptr<const KeySets> mask_sets_of(const MaskFlags& flags, Index queries, Index keys);

/// The flags that were given, as words of a report: ", prefix 16, sink tokens 4".
[[nodiscard]] std::string words_of(const MaskFlags& flags);

}  // namespace ring_attention
