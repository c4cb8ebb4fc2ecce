#include <array>

#include "diagnose/json.hpp"
#include "diagnose/report.hpp"

namespace ring_attention::diagnose {
namespace {

std::vector<std::string> ids_of(const std::vector<const Mistake*>& mistakes) {
  std::vector<std::string> ids;
  for (const Mistake* mistake : mistakes) ids.push_back(mistake->id);
  return ids;
}

std::vector<JsonObject> objects_of(const std::vector<Explanation>& explanations) {
  std::vector<JsonObject> objects;
  for (const Explanation& one : explanations)
    objects.push_back(JsonObject()
                          .add("mistakes", ids_of(one.hypothesis.mistakes))
                          .add("sentence", sentence(one))
                          .add("explained", one.explained)
                          .add("given_own_out_and_lse", one.given_own)
                          .add("is_derivative_of_forward", one.is_derivative));
  return objects;
}

JsonObject object_of(const Pass& pass) {
  constexpr std::array states{"absent", "right", "wrong", "unknown"};
  return JsonObject()
      .add("state", states.at(static_cast<std::size_t>(pass.state)))
      .add("numbers", name(pass.returned))
      .add("within_rounding_of", name(pass.precision))
      .add("explanations", objects_of(pass.explanations))
      .add("near", objects_of(pass.near));
}

}  // namespace

std::string to_json(const Diagnosis& diagnosis, const Submission& submission) {
  JsonObject errors;  // null: not finite
  for (const Evidence& one : evidence_of(submission.answers)) {
    const PerArray largest = one.yardstick->largest(*one.got, one.problem->right);
    JsonObject of_case;
    for (const Array array : all_arrays)
      if (one.got->has(array)) of_case.add(name(array), of(largest, array));
    errors.add(one.problem->the_case.name, of_case);
  }
  return JsonObject()
      .add("right", diagnosis.right())
      .add("explained", diagnosis.explained())
      .add("forward", object_of(diagnosis.forward))
      .add("backward", object_of(diagnosis.backward))
      .add("conventions", diagnosis.conventions)
      .add("layouts", submission.layouts)
      .add("errors", errors)
      .add("cases_without_results", submission.without)
      .add("not_tested", ids_of(diagnosis.not_tested))
      .text();
}

}  // namespace ring_attention::diagnose
