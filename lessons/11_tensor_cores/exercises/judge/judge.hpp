// The judge of an exercise of lesson 11: runs its kernel on the emulator, with one schedule after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../exercises.hpp"

namespace ring_attention::lesson_11 {

/// What a run of the kernel showed.
struct Finding {
  std::string wrong;           ///< what is wrong in the results; empty: nothing
  std::string race;            ///< the same if the results depend on the schedule
  std::vector<double> result;  ///< all numbers that the kernel has written

  [[nodiscard]] bool right() const { return wrong.empty(); }
};

/// What it means when the emulator stops the kernel with a text that has `said`.
struct Hint {
  std::string said, means;
};
constexpr const char* only_sometimes = "";  ///< `said` of any text, if other schedules end

/// The main function of a judge. Runs examine() with 20 schedules, or with that of EMULATED_SEED. The last line is
/// `lesson 11a running_softmax: PASS | error - | ...`; before it is a line that tells a wrong number from a race and
/// from a deadlock. \returns the exit code
int judge(const std::string& number, const std::string& name, const std::function<Finding()>& examine,
          const std::vector<Hint>& hints = {});

/// The number as it stands in a sentence.
std::string in_words(double number);

/// Whole numbers from -3 to 3 from a seed: sums of their products are exact.
std::vector<__nv_bfloat16> small_numbers(std::size_t count, std::uint64_t seed);

}  // namespace ring_attention::lesson_11
