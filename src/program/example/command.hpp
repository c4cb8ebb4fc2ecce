/// \file
/// `ring-attention example`: a small real problem, made from the bytes of a text.
#pragma once

#include <string>

#include "cli/command_line.hpp"

namespace ring_attention {

struct ExampleOptions {
  std::string text = "README.md";
  std::string out = "example";
  Index tokens = 4096;  ///< the first bytes of the text, at most
  Index kv_heads = 2;
  Index group = 2;
  Index dim = 64;
  Index seed = 1;
  bool bias = false, sink = false;  ///< also write bias.npy, sink.npy
};

void declare_example_options(CommandLine& command, ExampleOptions& options);

/// Writes q.npy, k.npy, v.npy and dout.npy, float32 [1, heads, S, D], one token a byte. One process is enough.
///
/// The arrays form an induction head (Olsson et al., arXiv 2209.11895). With P a fixed random projection
/// from n bytes to D numbers, KV head i has n = i + 2 and
///
///     k[t] = P(the n bytes before t),   v[t] = P(byte t),   q[t] = gain * P(the n bytes up to t)
///
/// A query gives weight to the places where the same bytes occur before, and gets the bytes that follow them.
/// dout[t] = -P(byte t + 1) is the gradient of the loss sum -out[t].P(byte t + 1), which predicts the next byte.
///
/// On request bias.npy [S, S] falls with the distance, bias[i][j] = -log(1 + |i - j|) (Chi et al., KERPLE, arXiv
/// 2205.09921), so that of equal contexts the nearest counts most; and sink.npy [heads] has the logit 1 for each head: it
/// takes the weight where no context matches.
/// \throws InputError when the text cannot be read or the directory cannot be written
void example_command(const ExampleOptions& options);

}  // namespace ring_attention
