#include "ring_attention/attention/scoring_arguments.hpp"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {

std::string fault_of_numbers(const Scoring& scoring, double largest) {
  const double most = largest / 2,
               least = 4 / largest;  // engines multiply by log2(e), and divide by a softcap
  const auto& [scale, softcap] = std::pair(scoring.scale, scoring.softcap);
  if (!(std::abs(scale) <= most))  // also NaN
    return format("scale is %g: it must be finite, and from -%.1e to %.1e in the type of the scores", scale,
                  most, most);
  const bool caps = least <= softcap && softcap <= most;  // false for NaN
  if (softcap != 0 && !caps)
    return format(
        "softcap is %g: it must be positive and finite, and from %.1e to %.1e in the type of the scores; "
        "without "
        "one scores are not capped",
        softcap, least, most);
  if (!scoring.dropout.valid())
    return format("dropout is %g: it must be from 0 to below 1", scoring.dropout.probability);
  return "";
}

std::string fault_of(const Scoring& scoring, Index heads, double largest) {
  const auto& [scale, mask, slopes, sinks, dropout, softcap] = scoring;
  const auto finite = [&](double x) { return std::abs(x) <= largest; };  // also false for NaN
  if (const std::string fault = fault_of_numbers(scoring, largest); !fault.empty()) return fault;
  if (!Mask{mask.left, mask.right}.valid())
    return "mask.left and mask.right are numbers of keys: from 0 to 2^53, or Mask::unlimited";
  if (!mask.valid()) return "mask.offset is beyond 2^53";
  if (!slopes.empty() && std::ssize(slopes) != heads)
    return std::to_string(slopes.size()) + " ALiBi slopes for " + counted(heads, "head");
  if (!std::ranges::all_of(slopes, finite)) return "an ALiBi slope is not finite";
  if (!sinks.empty() && std::ssize(sinks) != heads)
    return counted(std::ssize(sinks), "sink") + " for " + counted(heads, "head");
  if (!std::ranges::all_of(sinks, [&](double x) { return x <= largest; })) return "a sink is NaN or +inf";
  for (const Index number : {dropout.layer, dropout.first_batch, dropout.first_head})
    if (!within(number, 0, largest_count))
      return "dropout.layer, first_batch and first_head are from 0 to 2^31 - 1";
  return "";
}

std::string text_of(const Scoring& scoring, const std::optional<Shape>& bias) {
  const auto& [scale, mask, slopes, sinks, dropout, softcap] = scoring;
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << "scale " << scale << "\nsoftcap "
       << softcap << "\nmask.left " << mask.left << "\nmask.right " << mask.right << "\nmask.offset "
       << mask.offset << (bias ? "\na bias" : "\nno bias");
  if (bias) text << " of batch " << bias->batch << ", heads " << bias->heads << ", keys " << bias->dim;
  text << "\ndropout " << dropout.probability << "\ndropout.seed " << dropout.seed << "\ndropout.step "
       << dropout.step << "\ndropout.layer " << dropout.layer << "\ndropout.first_batch "
       << dropout.first_batch << "\ndropout.first_head " << dropout.first_head << '\n'
       << slopes.size() << " ALiBi slopes\n";
  for (const double slope : slopes) text << "ALiBi slope " << slope << '\n';
  text << sinks.size() << " sinks\n";
  for (const double sink : sinks) text << "a sink " << sink << '\n';
  text << (mask.sets ? mask.sets->text()
                     : "a mask without blocks, sink tokens, global tokens, chunks and intervals")
       << (mask.documents ? "\ndocuments\n" : "\nno documents\n");
  for (Index begin = 0, end = 0; mask.documents && mask.documents->of(begin) >= 0; begin = end) {
    end = mask.documents->end(mask.documents->of(begin));  // empty documents change nothing: `of` skips them
    text << "a document [" << begin << ", " << end << ")\n";
  }
  return text.str() + "no further document\n";
}

}  // namespace ring_attention
