#include "program/run/mask_flags.hpp"

#include <charconv>

#include "io/npy.hpp"
#include "ring_attention/attention/mask_sets.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {
namespace {

/// The number at the start of `text`, which is cut off; none if there is no number of a position.
std::optional<Index> take_position(std::string_view& text) {
  Index number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !within(number, 0, largest_position)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, char letter) {
  const bool found = text.starts_with(letter);
  if (found) text.remove_prefix(1);
  return found;
}

/// `0:16,32:48` as intervals. \throws InputError
std::vector<Interval> intervals_of(const std::string& flag, const std::string& value) {
  std::vector<Interval> intervals;
  std::string_view rest = value;
  while (!rest.empty()) {
    const auto begin = take_position(rest);
    const bool colon = take(rest, ':');
    const auto end = take_position(rest);
    if (!begin || !colon || !end || (!rest.empty() && (!take(rest, ',') || rest.empty())))
      throw InputError(flag + " " + value +
                       ": give intervals of keys as BEGIN:END with commas between them, for "
                       "example 0:16,32:48, where END is the position after the last key");
    intervals.push_back({*begin, *end});
  }
  return intervals;
}

/// The sets of all flags but --intervals.
MaskSets::Sets named_sets(const MaskFlags& flags) {
  MaskSets::Sets sets;
  sets.blocks = intervals_of("--blocks", flags.blocks);
  if (flags.prefix) sets.blocks.insert(sets.blocks.begin(), {0, *flags.prefix});
  sets.sink_tokens = flags.sink_tokens.value_or(0);
  sets.globals = intervals_of("--global-tokens", flags.global_tokens);
  sets.chunk = flags.chunk.value_or(0);
  return sets;
}

/// The numbers of the file, and in front of them how many intervals a query has. \throws InputError
std::vector<Index> read_intervals(const std::string& file, Index queries) {
  const std::vector<Index> extents = read_npy_header(file).extents;
  if (extents.size() != 3 || extents[0] != queries || extents[1] < 1 || extents[2] != 2) {
    std::string shape;
    for (const Index extent : extents) shape += (shape.empty() ? "" : ", ") + std::to_string(extent);
    throw InputError(
        file, "is [" + shape + "] where [" + std::to_string(queries) + ", m, 2] is due",
        "for each query, save begin and end of m intervals of keys; an empty one is begin = end");
  }
  std::vector<Index> numbers = read_npy_integers(file, 3);
  numbers.insert(numbers.begin(), extents[1]);
  return numbers;
}

/// \param numbers  of the file of --intervals, if there is one
std::shared_ptr<const KeySets> sets_of(const MaskFlags& flags, const std::vector<Index>& numbers,
                                       Index queries, Index keys) {
  std::shared_ptr<const KeySets> sets;
  if (flags.intervals.empty()) {
    sets = std::make_shared<const MaskSets>(named_sets(flags));
  } else {
    std::vector<Interval> rows;
    for (std::size_t i = 1; i < numbers.size(); i += 2) rows.push_back({numbers[i], numbers[i + 1]});
    const auto width = static_cast<int>(std::min(numbers.front(), largest_count));
    sets = std::make_shared<const MaskRows>(std::move(rows), width);
  }
  if (const auto fault = sets->fault(queries, keys))
    throw InputError((flags.intervals.empty() ? "" : flags.intervals + ": ") + *fault);
  return sets;
}

}  // namespace

void declare_band_flags(CommandLine& command, bool& causal, std::vector<Index>& window,
                        std::string& documents) {
  command.flag("--causal", causal, "A query sees no key after its own position");
  command.list("--window", window, "LEFT,RIGHT",
               "A query sees LEFT keys before and RIGHT after its position; -1 means all",
               {-1, largest_position});
  command.option("--documents", documents,
                 "cu_seqlens, .npy of integers 0, end, end, ..., Sk: no query sees another document");
}

Mask band_of(bool causal, const std::vector<Index>& window) {
  Mask mask;
  if (!window.empty()) {
    if (window[0] >= 0) mask.left = window[0];
    if (window[1] >= 0) mask.right = window[1];
  }
  if (causal) mask.right = 0;
  return mask;
}

void declare_mask_flags(CommandLine& command, MaskFlags& flags) {
  command.option("--prefix", flags.prefix,
                 "With --causal, --window or --chunk: the first PREFIX keys see each other in both "
                 "directions (prefix LM, PaliGemma)",
                 any_length);
  command.option("--blocks", flags.blocks,
                 "With --causal, --window or --chunk: tokens of a block see each other in both directions "
                 "(images of Gemma 3), for example 16:272,300:556",
                 "B:E,B:E,...");
  command.option(
      "--sink-tokens", flags.sink_tokens,
      "With --window or --chunk: a query also sees the first keys of its document, so many (StreamingLLM)",
      any_length);
  command.option(
      "--global-tokens", flags.global_tokens,
      "With --window or --chunk: these tokens see all and are seen by all (Longformer), at most two runs; "
      "with --causal, or RIGHT = 0, no token after itself",
      "B:E[,B:E]");
  command.option("--chunk", flags.chunk,
                 "A query sees only keys of its own chunk of so many tokens of its document (Llama 4)",
                 any_length);
  command.option("--intervals", flags.intervals,
                 "Any other mask, .npy of integers [Sq, m, 2]: for each query begin and end of at most four "
                 "intervals of "
                 "keys, ascending; begin = end is an empty one");
}

void validate(const MaskFlags& flags, bool causal, bool window) {
  const MaskSets::Sets sets = named_sets(flags);
  if (!flags.intervals.empty() && sets.any())
    throw InputError(
        "--intervals is a whole mask: it does not go with --prefix, --blocks, --sink-tokens, --global-tokens "
        "and --chunk");
  const bool cut = window || flags.chunk;
  struct Needs {
    const char *flag, *others;
    bool given, met;
  };
  for (const Needs& one :
       {Needs{"--prefix", "--causal, --window or --chunk", flags.prefix.has_value(), causal || cut},
        Needs{"--blocks", "--causal, --window or --chunk", !flags.blocks.empty(), causal || cut},
        Needs{"--sink-tokens", "--window or --chunk", flags.sink_tokens.has_value(), cut},
        Needs{"--global-tokens", "--window or --chunk", !flags.global_tokens.empty(), cut}})
    if (one.given && !one.met)
      throw InputError(std::string(one.flag) + " changes nothing without " + one.others);
}

std::shared_ptr<const KeySets> mask_sets_of(const Communicator& comm, const MaskFlags& flags, Index queries,
                                            Index keys) {
  if (!flags.any()) return nullptr;
  std::vector<Index> numbers;
  if (!flags.intervals.empty()) {
    agree(comm, [&] {
      if (comm.rank() == 0) numbers = read_intervals(flags.intervals, queries);
    });
    broadcast(comm, numbers);
  }
  std::shared_ptr<const KeySets> sets;
  agree(comm, [&] { sets = sets_of(flags, numbers, queries, keys); });
  return sets;
}

std::shared_ptr<const KeySets> mask_sets_of(const MaskFlags& flags, Index queries, Index keys) {
  if (!flags.any()) return nullptr;
  const bool reads = !flags.intervals.empty();
  return sets_of(flags, reads ? read_intervals(flags.intervals, queries) : std::vector<Index>{}, queries,
                 keys);
}

std::string words_of(const MaskFlags& flags) {
  std::string words;
  const auto number = [&](const char* name, const std::optional<Index>& value) {
    if (value) words += std::string(", ") + name + " " + std::to_string(*value);
  };
  const auto text = [&](const char* name, const std::string& value) {
    if (!value.empty()) words += std::string(", ") + name + " " + value;
  };
  number("prefix", flags.prefix);
  text("blocks", flags.blocks);
  number("sink tokens", flags.sink_tokens);
  text("global tokens", flags.global_tokens);
  number("chunks of", flags.chunk);
  text("intervals of", flags.intervals);
  return words;
}

}  // namespace ring_attention
