#include "live/choice.hpp"

#include <cmath>
#include <cstdlib>
#include <map>

#include "ring_attention/attention/mask_sets.hpp"
#include "ring_attention/attention/visible_pairs.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/parallel/balance/balanced.hpp"
#include "ring_attention/partitions.hpp"

namespace ring_attention::live {
namespace {

std::map<std::string, std::string> words_of(std::string_view address) {
  std::map<std::string, std::string> words;
  while (!address.empty()) {
    const std::string_view word = address.substr(0, address.find('&'));
    const std::size_t equals = std::min(word.find('='), word.size() - 1);
    words[std::string(word.substr(0, equals))] = word.substr(equals + 1);
    address.remove_prefix(std::min(address.size(), word.size() + 1));
  }
  return words;
}

/// \param width  of a window, a prefix or a chunk, in tokens
Mask mask_named(const std::string& name, Index width, Index tokens) {
  Mask mask;
  if (name != "none") mask.right = 0;
  MaskSets::Sets sets;
  if (name == "window" || name == "first-keys") mask.left = width - 1;
  if (name == "documents")
    mask.documents =
        std::make_shared<Documents>(std::vector<Index>{0, tokens / 6, tokens * 2 / 3, tokens});  // uneven
  if (name == "prefix") sets.blocks = {{0, std::min(width, tokens)}};
  if (name == "chunks") sets.chunk = width;
  if (name == "first-keys") sets.sink_tokens = std::min<Index>(4, tokens);
  if (sets.any()) mask.sets = std::make_shared<const MaskSets>(std::move(sets));
  return mask;
}

/// What a run takes on a phone, whose core computes half as fast as that of a laptop of 2024.
struct Estimate {
  double seconds, bytes;

  Estimate(const Choice& choice, Index seq) {
    constexpr double kernels = 6e9, reference = 1.5e9;  // operations a second
    constexpr double of_rank = 3e6, of_element = 228, of_gathered_element = 24, of_score = 160;  // bytes
    const auto tokens = static_cast<double>(seq), heads = static_cast<double>(choice.q.heads),
               pairs = heads * static_cast<double>(visible_pairs(choice.mask, whole(seq), whole(seq))),
               checked = tokens * static_cast<double>(std::min(seq, choice.checked_queries())),
               elements = tokens * heads * static_cast<double>(choice.q.dim),
               operations = choice.operations(false) + (choice.backward ? choice.operations(true) : 0);
    seconds = operations * (pairs / kernels + checked * heads / reference);
    bytes = of_rank * choice.ranks + of_score * checked +
            elements * (of_element + of_gathered_element * choice.division.more_shards(choice.ranks));
  }
  [[nodiscard]] bool fits() const { return seconds <= 10 && bytes <= 1e9; }
};

void require_that_it_fits(const Choice& choice) {
  const Estimate all(choice, choice.q.seq);
  if (all.fits()) return;
  Index fits = 0, too_many = choice.q.seq;
  while (too_many - fits > 1) {
    const Index middle = (fits + too_many) / 2;
    (Estimate(choice, middle).fits() ? fits : too_many) = middle;
  }
  throw InputError(
      format("This would take a phone about %.0f s and %.1f GB; the page goes up to 10 s and 1 GB: ",
             all.seconds, all.bytes / 1e9) +
      (fits > 0 ? format("choose at most %d tokens, or fewer heads.", static_cast<int>(fits))
                : "choose fewer ranks or heads."));
}

}  // namespace

Choice::Choice(std::string_view address) {
  const std::map<std::string, std::string> words = words_of(address);
  const auto number = [&](const char* name) { return std::strtod(words.at(name).c_str(), nullptr); };
  const auto count = [&](const char* name) { return static_cast<Index>(number(name)); };
  ranks = static_cast<int>(count("ranks"));
  q = kv = {1, count("heads"), count("tokens"), count("dim")};
  kv.heads = count("kv_heads");
  mask = mask_named(words.at("mask"), count("width"), q.seq);
  placement = placement_kind_named(words.at("placement"));
  division = division_named(words.at("partition"), static_cast<int>(count("share")));
  backward = words.at("backward") == "yes";
  mistake = words.at("mistake");
  if (mistake == "none") mistake.clear();
  link = {number("latency") * 1e-6, number("link") * 1e9};
  flops = number("gflops") * 1e9;
  if (q.heads % kv.heads != 0)
    throw InputError(format("%d heads cannot share %d K,V heads: choose a divisor.",
                            static_cast<int>(q.heads), static_cast<int>(kv.heads)));
  require_that_it_fits(*this);
}

SharedAttention Choice::shared(int rank) const {
  const RankGrid grid = division.grid(rank, ranks);
  const Placement tokens = placement == PlacementKind::balanced ? balanced(q.seq, grid.ring.size, mask)
                                                                : Placement(placement, q.seq, grid.ring.size);
  const double scale = 1 / std::sqrt(static_cast<double>(q.dim));
  return {grid, division, tokens, q, kv, {scale, mask}, !mistake.empty()};
}

}  // namespace ring_attention::live
