#include "program/diagnose/files.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "diagnose/description.hpp"
#include "io/npy.hpp"
#include "io/whole_file.hpp"
#include "program/json_numbers.hpp"
#include "program/output_directory.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

using diagnose::all_arrays;
using diagnose::Array;
using diagnose::Case;
using diagnose::Given;
using diagnose::GivenArrays;
using diagnose::Job;
using diagnose::Problem;
using Json = nlohmann::ordered_json;

const std::vector<std::string> explanations{
    // NOLINTNEXTLINE(bugprone-suspicious-missing-comma): some sentences take two lines
    "A query of head h uses the K,V of head h / (heads / kv_heads). score = scale q.k + bias; out = "
    "softmax(score) v.",
    "causal: a query sees keys at its position and before. window: it sees only this many of them, the "
    "last ones, its own included.",
    "cu_seqlens: where packed documents begin; a query sees only keys of its own document.",
    "hidden_keys: this many keys at the start are padding that no query sees. A query that sees nothing: "
    "out 0, lse -inf.",
    "alibi_slopes: one per head; bias -slope |position of the key - position of the query|.",
    "sinks: one logit per head, which takes part in the softmax and has no value.",
    "lse: the logarithm of the sum of e^score, sinks included, [1, heads, tokens].",
    "dq, dk, dv: the gradients of sum(out * dout).",
    "tokens_of_rank: the positions that a rank holds, in the order of its memory."};

[[noreturn]] void refuse(const std::string& culprit, const std::string& problem, const std::string& remedy) {
  throw InputError(culprit, problem, remedy);
}

/// \param most  elements: a file with more of them is refused by its header
diagnose::RawArray read_raw(const std::string& path, Index most) {
  const NpyHeader header = read_npy_header(path);
  check_floating_point(header, path);
  if (header.elements() > most)
    refuse(path,
           "the shape " + diagnose::shape_text(header.extents) + " has more than the elements of the case",
           "reshape the array before it is handed back");
  const std::string bytes = read_file(path, header.file_bytes()).bytes;
  check_npy_size(header, std::ssize(bytes), path);  // again: the file may have changed meanwhile
  diagnose::RawArray raw{header.extents, std::vector<double>(static_cast<std::size_t>(header.elements()))};
  const auto payload =
      std::as_bytes(std::span(bytes)).subspan(static_cast<std::size_t>(header.payload_offset));
  decode_elements<double>(header.dtype, payload, raw.elements);
  return raw;
}

std::string path_of(const std::string& folder, Array array, const std::string& rank) {
  return folder + "/" + name(array) + rank + ".npy";
}

/// The files with results of a case.
GivenArrays read_results(const Problem& problem, const std::string& folder) {
  GivenArrays given;
  const Index most = 2 * problem.q.size();  // rows behind the last token are cut off
  for (const Array array : all_arrays) {
    std::vector<Given>& pieces = given[static_cast<std::size_t>(array)];
    const std::string whole = path_of(folder, array, "");
    if (std::filesystem::exists(whole)) {
      pieces.push_back({whole, read_raw(whole, most)});
      continue;
    }
    std::string missing;
    for (int rank = 0; rank < problem.job.ranks; ++rank) {
      const std::string file = path_of(folder, array, "." + std::to_string(rank));
      if (std::filesystem::exists(file))
        pieces.push_back({file, read_raw(file, most)});
      else
        missing = file;
    }
    if (!pieces.empty() && !missing.empty())
      refuse(missing, "is missing; other ranks wrote theirs", "every rank has to write its rows");
  }
  return given;
}

bool has_results(const GivenArrays& given) {
  return std::ranges::any_of(given, [](const auto& pieces) { return !pieces.empty(); });
}

/// The file of an input that is not the array of the problem; empty if all are, or there is none.
std::string other_input(const Problem& problem, const std::string& folder) {
  for (const auto& [input, array] : inputs_of(problem)) {
    std::string path = folder + "/" + input + ".npy";
    if (!std::filesystem::exists(path)) continue;
    if (array_shape(read_npy_header(path), path) != array->shape()) return path;
    const Tensor<double> got = read_npy<double>(path);
    if (!std::ranges::equal(got.view().elements(), array->view().elements())) return path;
  }
  return "";
}

Json read_json(const std::string& path) {
  const char* remedy =
      "`ring-attention diagnose cases --out DIR` makes a directory of cases; `diagnose DIR` reads it";
  Json json = Json::parse(read_file(path, std::numeric_limits<Index>::max(), remedy).bytes, nullptr, false);
  if (json.is_discarded()) refuse(path, "is no JSON", "write the cases again");
  return json;
}

PlacementKind placement_in(const Json& cases) {
  const std::string word = cases.at("placement");
  for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag})
    if (name(kind) == word) return kind;
  throw InputError("placement is none that there is");
}

/// The problems of cases.json, made again.
std::vector<Problem> problems_of(const std::string& path) {
  const Json json = read_json(path);
  try {
    const Index ranks = integer_of(json, "ranks", any_ranks),
                ulysses = integer_of(json, "ulysses", {1, ranks});
    if (ranks % ulysses != 0)
      throw InputError("ulysses is " + std::to_string(ulysses) + ", which does not divide the " +
                       std::to_string(ranks) + " ranks");
    const Job job{static_cast<int>(ranks), placement_in(json), static_cast<int>(ulysses)};
    const auto seed = static_cast<std::uint64_t>(integer_of(json, "seed", any_seed));
    const std::vector<Case> ladder = diagnose::ladder(job);
    std::vector<Problem> problems;
    for (const Json& entry : json.at("cases")) {
      const auto found = std::ranges::find(ladder, entry.at("name").get<std::string>(), &Case::name);
      if (found == ladder.end()) throw InputError("a case is unknown");
      problems.emplace_back(*found, job, seed);
    }
    return problems;
  } catch (const Json::exception&) {
    refuse(path, "is not a file of `diagnose cases`", "write the cases again");
  } catch (const InputError& error) {
    refuse(path, error.what(), "write the cases again");
  }
}

}  // namespace

void write_cases(const DiagnoseCasesOptions& options) {
  const Job job = options.job();
  Json json{{"ranks", job.ranks},           {"placement", options.placement},
            {"parallel", options.parallel}, {"ulysses", job.ulysses},
            {"seed", options.seed},         {"hand_back", {"out", "lse", "dq", "dk", "dv"}},
            {"explanations", explanations}, {"cases", Json::array()}};
  std::vector<Problem> problems;
  for (const Case& one : options.cases()) {
    const Problem& problem = problems.emplace_back(one, job, static_cast<std::uint64_t>(options.seed));
    const std::string folder = options.out + "/" + one.name;
    if (!other_input(problem, folder).empty() && has_results(read_results(problem, folder)))
      refuse(folder, "has results for other arrays", "remove them, or give another --out");
  }
  make_output_directory(options.out);
  for (const Problem& problem : problems) {
    const std::string folder = options.out + "/" + problem.the_case.name;
    make_output_directory(folder);
    for (const auto& [input, array] : inputs_of(problem))
      write_npy<float>(folder + "/" + input + ".npy", converted<float>(*array));
    json["cases"].push_back(Json::parse(description_of(problem)));
  }
  write_file(options.out + "/cases.json", json.dump(1), "\n");
}

diagnose::Submission read_submission(const std::string& directory) {
  std::vector<Problem> problems = problems_of(directory + "/cases.json");
  std::vector<GivenArrays> given;
  for (const Problem& problem : problems) {
    const std::string folder = directory + "/" + problem.the_case.name;
    given.push_back(read_results(problem, folder));
    if (!has_results(given.back())) continue;
    if (const std::string path = other_input(problem, folder); !path.empty())
      refuse(path, "is not the array of this case",
             "write the cases again; was it made with another --seed?");
  }
  if (std::ranges::none_of(given, has_results))
    refuse(directory, "no case has out.npy, lse.npy, dq.npy, dk.npy or dv.npy (or out.0.npy, out.1.npy, ...)",
           "let your code write its results into the folders of the cases");
  return submission_of(std::move(problems), given);
}

}  // namespace ring_attention
