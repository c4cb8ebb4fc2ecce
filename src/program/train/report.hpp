/// \file
/// What `ring-attention train` did, as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "program/train/checkpoint.hpp"
#include "program/train/options.hpp"

namespace ring_attention {

/// The share of labels that a model answers, and the share that is possible: answers that are in the tokens that it sees,
/// and a guess of the others.
struct Answers {
  double accuracy = 0, possible = 0;
};
/// The answers to sequences that the model has not seen.
struct Evaluation {
  Index length = 0, labels = 0;
  Index window = 0;          ///< tokens
  Answers whole, in_window;  ///< a query sees all tokens before it, or this many
};

/// The whole job. Times are those of rank 0: all ranks wait for each other.
struct TrainReport {
  int ranks = 1;
  ChosenMesh mesh;
  CpuOptions cpu;
  Index parameters = 0;
  Index first_step = 0;      ///< those before it are from a checkpoint
  std::string resumed_from;  ///< that checkpoint; empty: none
  std::string checkpoint;    ///< the last one; empty: none
  double train_seconds = 0, evaluate_seconds = 0;
  Index tokens = 0;        ///< that were trained on in these seconds
  Index tensor_bytes = 0;  ///< the most of a rank
  Curve curve;
  std::vector<Evaluation> evaluations;
};

/// What must be equal for two jobs to do the same training, up to rounding.
[[nodiscard]] nlohmann::ordered_json training_json(const TrainOptions& options);
[[nodiscard]] nlohmann::ordered_json curve_json(const Curve& curve);

/// What is known before the first step; a line of the curve; what is known at the end.
[[nodiscard]] std::string heading(const TrainReport& report, const TrainOptions& options);
[[nodiscard]] std::string line_of(const CurvePoint& point, double seconds);
[[nodiscard]] std::string to_text(const TrainReport& report);
[[nodiscard]] std::string to_json(const TrainReport& report, const TrainOptions& options);

}  // namespace ring_attention
