#include "program/example/command.hpp"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cli/table.hpp"
#include "io/npy.hpp"
#include "program/output_directory.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/random.hpp"

namespace ring_attention {
namespace {

std::string read_text(const ExampleOptions& options) {
  std::ifstream file(options.text, std::ios::binary);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(options.text, ignored))
    throw InputError(options.text, "cannot be read", "give a text file with --text");
  std::string text(static_cast<std::size_t>(options.tokens), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.empty())
    throw InputError(options.text, "is empty", "give a text of at least one byte with --text");
  return text;
}

/// The `n` bytes that end before `end`, as a number; bytes outside the text count as 0.
Index context(const std::string& text, Index end, Index n) {
  const auto byte = [&](Index i) -> Index {
    return i >= 0 && i < std::ssize(text) ? static_cast<unsigned char>(text[static_cast<std::size_t>(i)]) : 0;
  };
  Index code = 0;
  for (Index i = end - n; i < end; ++i) code = code * 256 + byte(i);
  return code;
}

/// Fills row t of `head` with gain * P(code(t)).
void project(View<float> array, Index head, double gain, const RandomFill& projection, auto code) {
  const Shape& shape = array.shape();
  const Shape codes{1, 1, Index{1} << 40, shape.dim};  // one row for each context of up to 5 bytes
  for (Index t = 0; t < shape.seq; ++t)
    for (Index d = 0; d < shape.dim; ++d)
      array(0, head, t, d) = static_cast<float>(gain * random_element(projection, codes, 0, 0, code(t), d));
}

/// -log(1 + |i - j|).
Tensor<float> distance_bias(Index tokens) {
  Tensor<float> bias({1, 1, tokens, tokens});
  for (Index i = 0; i < tokens; ++i)
    for (Index j = 0; j < tokens; ++j)
      bias.view()(0, 0, i, j) = -std::log1p(static_cast<float>(std::abs(i - j)));
  return bias;
}

}  // namespace

void declare_example_options(CommandLine& command, ExampleOptions& options) {
  command.option("--text", options.text, "A text; each of its bytes becomes a token");
  command.option("--out", options.out, "Directory for q.npy, k.npy, v.npy and dout.npy; made if missing");
  command.option("--tokens", options.tokens, "Use at most the first N bytes", {1, 1 << 24});
  command.option("--kv-heads", options.kv_heads, "KV heads; head i looks at contexts of i + 2 bytes", {1, 4});
  command.option("--group", options.group, "Query heads that share a KV head", {1, 1 << 10});
  command.option("--dim", options.dim, "Head dim D", {1, 1 << 12});
  command.option("--seed", options.seed, "Seed of the random projections", any_seed);
  command.flag("--bias", options.bias, "Also write bias.npy [S, S], which falls with the distance");
  command.flag("--sink", options.sink, "Also write sink.npy, a logit for each query head");
}

void example_command(const ExampleOptions& options) {
  const std::string text = read_text(options);
  const auto tokens = static_cast<Index>(text.size());
  const Index needed =
      static_cast<Index>(sizeof(float)) * tokens *
      (2 * options.kv_heads * (options.group + 1) * options.dim + (options.bias ? tokens : 0));
  if (!allocation::available(needed))
    throw InputError("--tokens " + std::to_string(tokens),
                     "cannot have " + human_bytes(needed) + " of memory for the arrays", "give fewer tokens");
  Tensor<float> q({1, options.kv_heads * options.group, tokens, options.dim});
  Tensor<float> k({1, options.kv_heads, tokens, options.dim});
  Tensor<float> v(k.shape()), dout(q.shape());
  for (Index i = 0; i < options.kv_heads; ++i) {
    const Index n = i + 2;
    const RandomFill contexts{static_cast<std::uint64_t>(options.seed), static_cast<std::uint64_t>(n)};
    const RandomFill bytes{static_cast<std::uint64_t>(options.seed), 1};
    project(k, i, 1, contexts, [&](Index t) { return context(text, t, n); });
    project(v, i, 1, bytes, [&](Index t) { return context(text, t + 1, 1); });
    for (Index j = 0; j < options.group; ++j) {  // the queries of a group differ in their gain
      const Index head = i * options.group + j;
      project(q, head, static_cast<double>(j + 1), contexts,
              [&](Index t) { return context(text, t + 1, n); });
      project(dout, head, -1, bytes, [&](Index t) { return context(text, t + 2, 1); });
    }
  }
  make_output_directory(options.out);
  remove_leftovers(options.out, {"q.npy", "k.npy", "v.npy", "dout.npy", "bias.npy", "sink.npy"});
  for (const auto& [file, array] :
       {std::pair("q", &q), std::pair("k", &k), std::pair("v", &v), std::pair("dout", &dout)})
    write_npy<float>(options.out + "/" + file + ".npy", array->view());
  if (options.bias) write_npy<float>(options.out + "/bias.npy", distance_bias(tokens), {tokens, tokens});
  if (options.sink) {
    const Tensor<float> sinks({1, 1, q.shape().heads, 1}, 1);
    write_npy<float>(options.out + "/sink.npy", sinks, {q.shape().heads});
  }
  std::printf("%s: the first %lld bytes of %s as q, dout %s and k, v %s, float32%s%s\n", options.out.c_str(),
              static_cast<long long>(tokens), options.text.c_str(), to_string(q.shape()).c_str(),
              to_string(k.shape()).c_str(), options.bias ? ", bias.npy" : "",
              options.sink ? ", sink.npy" : "");
}

}  // namespace ring_attention
