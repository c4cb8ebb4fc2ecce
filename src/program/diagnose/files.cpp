#include "program/diagnose/files.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "diagnose/layout.hpp"
#include "program/output_directory.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/io/npy.hpp"

namespace ring_attention {
namespace {

using diagnose::all_arrays;
using diagnose::Answer;
using diagnose::Array;
using diagnose::Case;
using diagnose::Job;
using diagnose::Problem;
using Json = nlohmann::ordered_json;

/// The inputs of a case, by the names of their files.
std::vector<std::pair<std::string, const Tensor<double>*>> inputs_of(const Problem& problem) {
  std::vector<std::pair<std::string, const Tensor<double>*>> inputs{
      {"q.npy", &problem.q}, {"k.npy", &problem.k}, {"v.npy", &problem.v}, {"dout.npy", &problem.dout}};
  if (problem.bias.size() > 0) inputs.emplace_back("bias.npy", &problem.bias);
  return inputs;
}

Json json_of(const Problem& problem) {
  const Case& c = problem.the_case;
  Json json{{"name", c.name},     {"tests", c.tests}, {"heads", c.heads},   {"kv_heads", c.kv_heads},
            {"tokens", c.tokens}, {"dim", c.dim},     {"scale", c.scale()}, {"causal", c.causal}};
  if (c.window > 0) json["window"] = c.window;
  if (!c.documents.empty()) json["cu_seqlens"] = c.documents;
  if (c.padding > 0) json["hidden_keys"] = c.padding;
  if (c.alibi) json["alibi_slopes"] = problem.slopes;
  if (c.sinks) json["sinks"] = problem.sinks;
  for (int rank = 0; rank < problem.job.ranks; ++rank)
    json["tokens_of_rank"].push_back(positions(problem.job.tokens_of(rank, c.tokens)));
  return json;
}

const std::vector<std::string> explanations{
    "A query of head h uses the K,V of head h / (heads / kv_heads). score = scale q.k + bias; out = "
    "softmax(score) v.",
    "causal: a query sees keys at its position and before. window: the last so many of them, its own "
    "included.",
    "cu_seqlens: where packed documents begin; a query sees keys of its own document only.",
    "hidden_keys: the first so many keys are padding that no query sees. A query that sees nothing: out 0, "
    "lse -inf.",
    "alibi_slopes: one a head; bias -slope |position of the key - position of the query|.",
    "sinks: one logit a head that takes part in the softmax and has no value.",
    "lse: the logarithm of the sum of e^score, sinks included, [1, heads, tokens].",
    "dq, dk, dv: the gradients of sum(out * dout).",
    "tokens_of_rank: the positions that a rank holds, in the order of its memory."};

[[noreturn]] void refuse(const std::string& culprit, const std::string& problem, const std::string& remedy) {
  throw InputError(culprit, problem, remedy);
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

diagnose::RawArray read_raw(const std::string& path) {
  const NpyHeader header = read_npy_header(path);
  check_floating_point(header, path);
  const std::string bytes = bytes_of(path);
  diagnose::RawArray raw{header.extents, std::vector<double>(static_cast<std::size_t>(header.elements()))};
  const auto payload =
      std::as_bytes(std::span(bytes)).subspan(static_cast<std::size_t>(header.payload_offset));
  decode_elements<double>(header.dtype, payload, raw.elements);
  return raw;
}

/// Reads results of one case.
class ResultReader {
 public:
  ResultReader(const Problem& problem, std::string folder, std::vector<std::string>& layouts)
      : problem_(problem), folder_(std::move(folder)), layouts_(layouts) {}

  /// Empty when there is none.
  [[nodiscard]] Tensor<double> read(Array array) const {
    const Index tokens = problem_.the_case.tokens;
    const std::string whole = path(array, "");
    if (std::filesystem::exists(whole)) return part(whole, array, tokens);
    std::vector<Tensor<double>> parts;
    std::string missing;
    for (int rank = 0; rank < problem_.job.ranks; ++rank) {
      const std::string file = path(array, "." + std::to_string(rank));
      if (std::filesystem::exists(file))
        parts.push_back(part(file, array, count(problem_.job.tokens_of(rank, tokens))));
      else
        missing = file;
    }
    if (parts.empty()) return {};
    if (!missing.empty())
      refuse(missing, "is missing; other ranks wrote theirs", "every rank has to write its rows");
    return diagnose::joined(problem_, parts);
  }

 private:
  [[nodiscard]] std::string path(Array array, const std::string& rank) const {
    return folder_ + "/" + name(array) + rank + ".npy";
  }

  [[nodiscard]] Tensor<double> part(const std::string& file, Array array, Index tokens) const {
    const diagnose::RawArray raw = read_raw(file);
    auto found = arranged(problem_.the_case, array, tokens, raw);
    const Shape& wanted = problem_.the_case.shape_of(array);
    if (!found)
      refuse(file,
             "the shape " + diagnose::shape_text(raw.extents) + " is not " +
                 diagnose::shape_text(array == Array::lse
                                          ? std::vector<Index>{wanted.heads, tokens}
                                          : std::vector<Index>{wanted.heads, tokens, wanted.dim}) +
                 " in some order of the axes",
             "reshape the array before np.save");
    const std::string line = name(array) + ": " + found->says;
    if (!found->says.empty() && std::ranges::find(layouts_, line) == layouts_.end()) layouts_.push_back(line);
    return std::move(found->array);
  }

  const Problem& problem_;
  std::string folder_;
  std::vector<std::string>& layouts_;
};

/// Is the file still what `diagnose cases` wrote?
void check_inputs(const Problem& problem, const std::string& folder) {
  for (const auto& [file, array] : inputs_of(problem)) {
    const std::string path = folder + "/" + file;
    const Tensor<double> got = read_npy<double>(path);
    if (!(got.shape() == array->shape()) ||
        !std::ranges::equal(got.view().elements(), array->view().elements()))
      refuse(path, "is not the array of this case",
             "write the cases again; was it made with another --seed?");
  }
}

/// Results that were written into the folder of another case.
void check_case(const Answer& answer, const std::vector<Problem>& problems) {
  if (!answer.arrays.has(Array::out)) return;
  const auto is_right = [&](const Problem& problem) {
    const diagnose::Yardstick yardstick(problem);
    return problem.right[Array::out].shape() == answer.arrays[Array::out].shape() &&
           yardstick
                   .residual(answer.arrays, problem.right, std::array{Array::out},
                             yardstick.tolerances(diagnose::Precision::bf16))
                   .worst <= 1;
  };
  if (is_right(*answer.problem)) return;
  for (const Problem& other : problems)
    if (&other != answer.problem && is_right(other))
      refuse("results of " + answer.problem->the_case.name, "are those of the case " + other.the_case.name,
             "write them into the folder of that case");
}

Json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    refuse(path, "cannot be read",
           "`ring-attention diagnose cases --out DIR` makes a directory of cases; `diagnose DIR` reads it");
  Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded()) refuse(path, "is no JSON", "write the cases again");
  return json;
}

/// The problems of cases.json, made again.
std::vector<Problem> problems_of(const std::string& path) {
  const Json json = read_json(path);
  try {
    const Job job{json.at("ranks"), placement_kind_named(json.at("placement")), json.at("ulysses")};
    const auto seed = json.at("seed").get<std::uint64_t>();
    const std::vector<Case> ladder = diagnose::ladder(job);
    std::vector<Problem> problems;
    for (const Json& entry : json.at("cases")) {
      const auto found = std::ranges::find(ladder, entry.at("name").get<std::string>(), &Case::name);
      if (found == ladder.end()) refuse(path, "a case is unknown", "write the cases again");
      problems.emplace_back(*found, job, seed);
    }
    return problems;
  } catch (const Json::exception&) {
    refuse(path, "is not a file of `diagnose cases`", "write the cases again");
  } catch (const Error&) {
    refuse(path, "is not a file of `diagnose cases`", "write the cases again");
  }
}

}  // namespace

void write_cases(const DiagnoseCasesOptions& options) {
  const Job job = options.job();
  Json json{{"ranks", job.ranks},           {"placement", options.placement},
            {"parallel", options.parallel}, {"ulysses", job.ulysses},
            {"seed", options.seed},         {"hand_back", {"out", "lse", "dq", "dk", "dv"}},
            {"explanations", explanations}, {"cases", Json::array()}};
  make_output_directory(options.out);
  for (const Case& one : options.cases()) {
    const Problem problem(one, job, static_cast<std::uint64_t>(options.seed));
    make_output_directory(options.out + "/" + one.name);
    for (const auto& [file, array] : inputs_of(problem))
      write_npy<float>(options.out + "/" + one.name + "/" + file, converted<float>(*array));
    json["cases"].push_back(json_of(problem));
  }
  std::ofstream file(options.out + "/cases.json");
  file << json.dump(1) << '\n';
  file.close();
  if (!file) refuse(options.out + "/cases.json", "cannot be written", "give another --out");
}

Submission read_submission(const std::string& directory) {
  Submission submission;
  std::vector<Problem> all = problems_of(directory + "/cases.json");
  for (Problem& problem : all) {
    const std::string folder = directory + "/" + problem.the_case.name;
    Answer answer{nullptr, {}};
    const ResultReader reader(problem, folder, submission.layouts);
    for (const Array array : all_arrays) answer.arrays[array] = reader.read(array);
    if (!answer.arrays.has_any(all_arrays)) {
      submission.without.push_back(problem.the_case.name);
      continue;
    }
    check_inputs(problem, folder);
    submission.problems.push_back(std::move(problem));
    submission.answers.push_back(std::move(answer));
  }
  if (submission.answers.empty())
    refuse(directory, "no case has out.npy, lse.npy, dq.npy, dk.npy or dv.npy (or out.0.npy, out.1.npy, ...)",
           "let your code write its results into the folders of the cases");
  for (std::size_t i = 0; i < submission.answers.size(); ++i)
    submission.answers[i].problem = &submission.problems[i];
  for (const Answer& answer : submission.answers) check_case(answer, submission.problems);
  return submission;
}

}  // namespace ring_attention
