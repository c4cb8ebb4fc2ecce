#include "program/decode/job.hpp"

namespace ring_attention {
namespace {

/// Tokens of the prompt. \throws AgreedError unless q, k and v have the same tokens, and one is left to be decoded
Index agreed_prompt(const Communicator& comm, const DecodeOptions& options, const RunInput& input) {
  const Index tokens = input.q().seq, prompt = options.prompt.value_or(tokens / 2);
  agree(comm, [&] {
    if (input.kv().seq != tokens)
      throw InputError(options.q + " has " + counted(tokens, "token") + " and " + options.k + " has " +
                       std::to_string(input.kv().seq) + ": a token is decoded with its own q, k and v");
    if (prompt >= tokens)
      throw InputError("--prompt " + std::to_string(prompt) + " leaves no token to be decoded: q has " +
                       counted(tokens, "token") + ", so give at most " + std::to_string(tokens - 1));
  });
  return prompt;
}

/// \param trace  null: none
int decode_traced(const Communicator& comm, const DecodeOptions& options, Activity& activity, Trace* trace) {
  const RunInput input(comm, options);
  agree(comm, [&] {
    if (options.same_bits && input.is_double())
      throw InputError(
          "--same-bits goes with float32, and the arrays are float64: convert them, or leave it out");
  });
  const Index prompt = agreed_prompt(comm, options, input);
  return input.is_double() ? DecodeJob<double>(comm, options, input, prompt, activity, trace)()
                           : DecodeJob<float>(comm, options, input, prompt, activity, trace)();
}

}  // namespace

int decode_command(const Communicator& comm, const DecodeOptions& options, Activity& activity) {
  return with_trace(comm, options.trace, activity,
                    [&](Trace* trace) { return decode_traced(comm, options, activity, trace); });
}

}  // namespace ring_attention
