/// \file
/// `Search`: which hypotheses explain some arrays of all cases.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "diagnose/hypothesis.hpp"
#include "diagnose/residual.hpp"
#include "diagnose/ring.hpp"

namespace ring_attention::diagnose {

/// What a code returned for one case.
struct Answer {
  const Problem* problem;
  Arrays arrays;
};

/// One hypothesis, and how well it fits.
struct Explanation {
  Hypothesis hypothesis;
  /// Of a backward: does it take the out and lse that the user's forward returned? Else the right ones.
  bool given_own = true;
  /// Of a backward: the gradients are the derivative of the wrong forward, as autograd finds it. No mistake of its own.
  bool is_derivative = false;
  double worst = 0;      ///< the largest row error in tolerances; at most 1: rounding explains what is left
  double explained = 0;  ///< 1 - (squares that are left) / (squares of the distance from the right results)

  [[nodiscard]] bool fits() const { return worst <= 1; }
};

/// An answer with what is needed to judge it, computed once.
struct Evidence {
  explicit Evidence(const Answer& answer);
  /// Another answer to the same problem.
  Evidence(const Evidence& other, const Answer& answer);

  const Problem* problem;
  const Arrays* got;
  std::shared_ptr<const Yardstick> yardstick;
  std::shared_ptr<const Forward> right;  ///< simulated, for its pieces
};

[[nodiscard]] std::vector<Evidence> evidence_of(const std::vector<Answer>& answers);

class Search {
 public:
  /// The arrays of an explanation for one case.
  using Simulate =
      std::function<std::shared_ptr<const Arrays>(const Evidence&, const Explanation&, Precision)>;

  /// \param which  arrays that are to be explained
  /// \param spread  the type is coarser than that of the numbers: only errors that are everywhere are rounding
  Search(std::span<const Evidence> cases, std::span<const Array> which, Precision precision, bool spread,
         Simulate simulate);

  /// Are the arrays right?
  [[nodiscard]] bool right() const { return right_worst_ <= 1 && spreads_; }
  [[nodiscard]] double right_worst() const { return right_worst_; }

  /// How well this one does; after the first case that it does not explain, it looks no further.
  [[nodiscard]] Explanation judged(Explanation explanation) const;
  /// The same over all cases.
  [[nodiscard]] double explained(const Explanation& explanation) const;
  /// Those that fit, the best first, and for each set of mistakes one.
  [[nodiscard]] std::vector<Explanation> fitting(const std::vector<Explanation>& candidates) const;
  /// The best that do not fit, at most `most`.
  [[nodiscard]] std::vector<Explanation> nearest(const std::vector<Explanation>& candidates,
                                                 std::size_t most) const;
  /// Does this one change the arrays of the case that is looked at first?
  [[nodiscard]] bool shows_first(const Explanation& explanation) const { return shows(0, explanation); }
  /// Does it explain that case, whatever it does to the others?
  [[nodiscard]] bool explains_first(const Explanation& explanation) const {
    return residual(0, explanation).worst <= 1;
  }

 private:
  [[nodiscard]] std::shared_ptr<const Arrays> exact(const Evidence& one,
                                                    const Explanation& explanation) const;
  /// Does it change the arrays of a case, or of any?
  [[nodiscard]] bool shows(std::size_t number, const Explanation& explanation) const;
  [[nodiscard]] bool shows_somewhere(const Explanation& explanation) const;
  /// The residual of a case against a hypothesis. Where the wrong results need it, with a wider tolerance: theirs.
  [[nodiscard]] Residual residual(std::size_t number, const Explanation& explanation) const;

  std::vector<const Evidence*> cases_;  // the one that is furthest from right first
  std::span<const Array> which_;
  Precision precision_;
  bool spread_;
  Simulate simulate_;
  std::vector<double> right_squares_;  // by case
  double right_worst_ = 0;
  bool spreads_ = true;
};

}  // namespace ring_attention::diagnose
