/// \file
/// The part of the module that uses MPI: the ranks of the job, the ring, and arrays that travel.
#pragma once

#include <pybind11/stl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "python/arrays.hpp"
#include "python/job.hpp"
#include "python/peers.hpp"
#include "python/scoring.hpp"
#include "ring_attention/observed_call.hpp"
#include "ring_attention/parallel/same_bits_processor.hpp"

namespace ring_attention::python {

/// Adds its functions to the module.
void bind_ranks(py::module_& module);

/// How ranks divide the work of a call that they have begun.
struct Division {
  std::shared_ptr<Ranks> ranks;
  Placements placement;
  ring_attention::Division how;
  std::string transport;  ///< of arrays of a GPU
  int threads;            ///< 0: those of a rank, which `ranks` know when a call has begun
  Seconds timeout;        ///< of a GPU's messages
  Index same_bits;        ///< tokens of a tile; 0: rounding depends on the ranks
  bool sum_numbers;
  Observers observers;

  /// How the next call computes.
  [[nodiscard]] Attention attention(const std::optional<Processor>& given = {}) const {
    const int own = threads > 0 ? threads : ranks->threads();
    const Processor computes = given           ? *given
                               : same_bits > 0 ? ring_attention::same_bits(same_bits, own)
                                               : cores(own);
    return {observed(ranks->attention_ranks(), observers), observed(computes, observers), how, sum_numbers};
  }
  /// \param q  of this rank
  [[nodiscard]] Scoring scoring(const ScoringArguments& arguments, const Shape& q) const;
};

/// The gradients of numbers, a list for each name; empty without such a term.
[[nodiscard]] inline py::dict python_numbers(const TermNumbers& numbers) {
  py::dict lists;
  each_number(
      [&](const char* name, std::span<const double> x) {
        lists[name] = py::cast(std::vector<double>(x.begin(), x.end()));
      },
      numbers);
  return lists;
}

/// (dq, dk, dv, dbias, numbers); dbias is empty without a bias
template <class T>
[[nodiscard]] py::tuple python_gradients(Gradients<T>&& gradients) {
  return py::make_tuple(Array(std::move(gradients.q)), Array(std::move(gradients.k)),
                        Array(std::move(gradients.v)), Array(std::move(gradients.bias)),
                        python_numbers(gradients));
}

}  // namespace ring_attention::python
