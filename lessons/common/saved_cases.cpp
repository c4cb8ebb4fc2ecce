#include "common/saved_cases.hpp"

#include <filesystem>

#include "io/npy.hpp"
#include "io/whole_file.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {

template <class T>
void SavedCases::add(const std::string& of_case, const Arrays<T>& arrays) {
  if (folder_.empty()) return;
  const std::string here = folder_ + "/" + of_case;
  std::filesystem::create_directories(here);
  const std::string ending = job_.rank < 0 ? ".npy" : format(".%d.npy", job_.rank);
  for (const auto& [name, array] : arrays)
    if (array.shape() != Shape{} && array.shape().heads > 0) write_npy<T>(here + "/" + name + ending, array);
  cases_ += format(R"(%s{"name": "%s"})", cases_.empty() ? "" : ", ", of_case.c_str());
  if (job_.rank > 0) return;
  write_file(folder_ + "/cases.json",
             format(R"({"ranks": %d, "placement": "%s", "ulysses": %d, "seed": 1, "own_arrays": true, )",
                    job_.ranks, name(job_.placement).c_str(), job_.ulysses) +
                 R"("cases": [)" + cases_ + "]}\n",
             "\n");
}

template <class T>
void SavedCases::add(const std::string& of_case, const RandomProblem& problem, const TokenRanges& ranges,
                     Arrays<T> results) {
  if (folder_.empty()) return;
  const Tensor<T> q = problem.make<T>(problem.q, 0, ranges), k = problem.make<T>(problem.kv, 1, ranges),
                  v = problem.make<T>(problem.kv, 2, ranges), dout = problem.make<T>(problem.q, 3, ranges);
  results.insert(results.end(), {{"q", q}, {"k", k}, {"v", v}, {"dout", dout}});
  add<T>(of_case, results);
}

template void SavedCases::add(const std::string&, const Arrays<float>&);
template void SavedCases::add(const std::string&, const Arrays<double>&);
template void SavedCases::add(const std::string&, const RandomProblem&, const TokenRanges&, Arrays<float>);
template void SavedCases::add(const std::string&, const RandomProblem&, const TokenRanges&, Arrays<double>);

}  // namespace ring_attention
