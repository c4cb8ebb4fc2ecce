#include "python/diagnose.hpp"

#include <pybind11/stl.h>

#include <algorithm>

#include "diagnose/description.hpp"
#include "diagnose/report.hpp"
#include "python/arrays.hpp"

namespace ring_attention::python {
namespace {

using diagnose::all_arrays;

/// What a code handed back for one case: "dq" and the like, and for each piece its name in errors and its elements.
using GivenInPython = std::map<std::string, std::vector<std::pair<std::string, py::buffer>>>;

/// \param array  of double, C-contiguous
diagnose::RawArray raw_array(const py::buffer& array) {
  const py::buffer_info info = array.request();
  const auto* elements = static_cast<const double*>(info.ptr);
  return {{info.shape.begin(), info.shape.end()}, {elements, elements + info.size}};
}

diagnose::GivenArrays given_arrays(const GivenInPython& given) {
  diagnose::GivenArrays arrays;
  for (const diagnose::Array array : all_arrays) {
    const auto found = given.find(diagnose::name(array));
    if (found == given.end()) continue;
    for (const auto& [name, piece] : found->second)
      arrays[static_cast<std::size_t>(array)].push_back({name, raw_array(piece)});
  }
  return arrays;
}

/// Some cases of the ladder for the ranks of a code.
class Cases {
 public:
  Cases(int ranks, const std::string& placement, const std::string& parallel, int ulysses,
        const std::vector<std::string>& names, std::uint64_t seed)
      : job_(diagnose::job_of(ranks, placement, parallel, ulysses)),
        cases_(diagnose::ladder(job_, names)),
        seed_(seed) {}

  /// For each case its description, JSON, and its inputs by name.
  [[nodiscard]] std::vector<std::pair<std::string, py::dict>> inputs() const {
    std::vector<std::pair<std::string, py::dict>> all;
    for (const diagnose::Problem& problem : problems()) {
      py::dict arrays;
      for (const auto& [name, array] : inputs_of(problem)) arrays[name.c_str()] = Array(array->clone());
      all.emplace_back(description_of(problem), arrays);
    }
    return all;
  }

  /// (right, text, JSON). \param given  for each case
  [[nodiscard]] std::tuple<bool, std::string, std::string> diagnose(
      const std::vector<GivenInPython>& given) const {
    std::vector<diagnose::GivenArrays> arrays(given.size());
    std::ranges::transform(given, arrays.begin(), given_arrays);
    const py::gil_scoped_release unlocked;
    const diagnose::Submission submission = submission_of(problems(), arrays);
    if (submission.answers.empty())
      throw InputError("diagnose", "the function returned nothing for any case", "return out, or (out, lse)");
    diagnose::Options options;
    options.progress = [](const std::string&) {
      const py::gil_scoped_acquire locked;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    };
    const diagnose::Diagnosis found = diagnose::diagnose(submission.answers, options);
    return {found.right(), to_text(found, submission), to_json(found, submission)};
  }

 private:
  [[nodiscard]] std::vector<diagnose::Problem> problems() const {
    std::vector<diagnose::Problem> problems;
    for (const diagnose::Case& one : cases_) problems.emplace_back(one, job_, seed_);
    return problems;
  }

  diagnose::Job job_;
  std::vector<diagnose::Case> cases_;
  std::uint64_t seed_;
};

}  // namespace

void bind_diagnose(py::module_& module) {
  py::class_<Cases>(module, "Cases")
      .def(py::init<int, const std::string&, const std::string&, int, const std::vector<std::string>&,
                    std::uint64_t>())
      .def("inputs", &Cases::inputs)
      .def("diagnose", &Cases::diagnose);
}

}  // namespace ring_attention::python
