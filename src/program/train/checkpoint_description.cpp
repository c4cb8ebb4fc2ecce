#include "program/train/checkpoint_description.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "program/json_numbers.hpp"
#include "program/train/report.hpp"

namespace ring_attention {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* format_name = "ring-attention train, 1";

/// Name, place and shape of each matrix.
Json matrices_json(const WholeLayout& whole) {
  Json all = Json::array();
  for (std::size_t array = 0; array < whole.arrays.size(); ++array) {
    const bool layer = array + 1 < whole.arrays.size();
    for (const model::Parameter& p : whole.arrays[array].parameters())
      all.push_back({{"name", (layer ? "layer " + std::to_string(array) + " " : "") + p.name},
                     {"begin", whole.begins[array] + p.begin},
                     {"shape", {p.all_rows, p.all_columns}}});
  }
  return all;
}

/// The first entry of `here` that is another one `there`: "seed is 1 there and 7 here". Nothing if there is none.
/// `there` may be anything: it is not descended into further than `here`.
std::optional<std::string> difference(const Json& there, const Json& here) {
  const Json entries = here.flatten();
  for (const auto& [key, value] : entries.items()) {
    const Json::json_pointer place(key);
    const bool found = there.contains(place);
    if (found && there.at(place) == value) continue;
    std::string name = key.substr(1);
    std::ranges::replace(name, '/', ' ');
    const std::string before = !found                           ? "missing"
                               : there.at(place).is_primitive() ? there.at(place).dump()
                                                                : there.at(place).type_name();
    return name + " is " + before.substr(0, 60) + " there and " + value.dump() + " here";
  }
  return {};
}

[[noreturn]] void refuse(const std::string& checkpoint, const std::string& problem) {
  throw InputError(checkpoint + "/" + description_file, problem, begin_anew(checkpoint));
}

/// What is wrong with the numbers is thrown as InputError without the file.
Curve curve_of(const Json& description) {
  Curve curve;
  for (const Json& point : description.at("curve"))
    curve.push_back({integer_of(point, "step", {0}), integer_of(point, "length", any_length),
                     number_of(point, "loss"), number_of(point, "accuracy")});
  if (std::ssize(curve) != integer_of(description, "steps", {}))
    throw InputError("has a curve of another number of steps");
  return curve;
}

}  // namespace

std::string description_of(const std::string& training, Index steps, const WholeLayout& whole,
                           const Curve& curve) {
  const Json description{{"format", format_name},
                         {"training", Json::parse(training)},
                         {"steps", steps},
                         {"matrices", matrices_json(whole)},
                         {"curve", curve_json(curve)}};
  return description.dump(1) + "\n";
}

Curve described_curve(const std::string& checkpoint, const std::string& text, const std::string& training,
                      const WholeLayout& whole) {
  try {
    const Json found = Json::parse(text);
    if (found.at("format") != format_name) refuse(checkpoint, "is not a checkpoint of `train`");
    if (const auto other = difference(found.at("training"), Json::parse(training)))
      throw InputError(checkpoint, "is of another training: " + *other,
                       "give the flags of that training, or another --checkpoint");
    const Json &there = found.at("matrices"), here = matrices_json(whole);
    if (const auto other = difference(there, here)) refuse(checkpoint, "matrices " + *other);
    if (there.size() != here.size()) refuse(checkpoint, "matrices are more than the model has");
    Curve curve;
    try {
      curve = curve_of(found);
    } catch (const InputError& error) {
      refuse(checkpoint, error.what());
    }
    return curve;
  } catch (const Json::exception&) {
    refuse(checkpoint, "is truncated, or is not a checkpoint of `train`");
  }
}

}  // namespace ring_attention
