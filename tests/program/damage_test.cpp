// `--check` of a ring whose messages are damaged: never ok where the results show it, whatever the scores and the values.

#include "program/run/check.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "support/ranks_and_files.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

enum class Damage { none, negated, one_row };
Damage damage = Damage::none;  // of V in all messages of rank 0

constexpr Index seq = 24, columns = 8;
constexpr int ring_size = 3;

class Damages : public LoopbackTransport {
 public:
  Damages(LoopbackWorld& world, int rank, int channel)
      : LoopbackTransport(world, rank, channel),
        damages_(rank == 0 && channel == static_cast<int>(Channel::kv) && damage != Damage::none) {}

  void start(const Hop& hop) override {
    if (!damages_) return LoopbackTransport::start(hop);
    sent_.resize(hop.send.size() / sizeof(float));
    std::memcpy(sent_.data(), hop.send.data(), hop.send.size());
    const std::size_t half = sent_.size() / 2;  // K, then V
    for (std::size_t i = half; i < sent_.size(); ++i)
      if (damage == Damage::negated)
        sent_[i] = -sent_[i];
      else if (i < half + columns)
        sent_[i] *= 1.01F;
    LoopbackTransport::start({std::as_bytes(std::span(sent_)), hop.receive});
  }

 private:
  bool damages_;
  std::vector<float> sent_;  // until the receiver has it
};

/// What the number of a problem makes large or small.
enum class Kind { bias, products, capped, values };

class DamagedRing : public RanksAndFiles {
 protected:
  /// All arrays of a problem, as files and for a ring.
  GradientProblem<float> problem_of(Kind kind, double number, std::uint64_t seed) {
    Case what{.queries = seq, .keys = seq, .dim = columns, .seed = seed};
    what.scoring.scale = 1 / std::sqrt(static_cast<double>(columns));
    if (kind == Kind::capped) what.scoring.softcap = 50;
    if (kind == Kind::bias) what.bias_batch = what.bias_heads = 1;
    auto [q, k, v] = random_inputs<float>(what);
    const auto times = [](Tensor<float>& array, double factor) {
      for (float& x : array.view().elements()) x = static_cast<float>(x * factor);
    };
    if (kind == Kind::products) times(k, std::sqrt(number));
    if (kind == Kind::products) times(q, std::sqrt(number));
    if (kind == Kind::capped) times(q, number / 10);
    if (kind == Kind::values) times(v, 1 / number);
    Tensor<float> bias(what.bias().value_or(Shape{}));
    for (Index i = 0; i < bias.size(); ++i)
      bias.data()[i] = i % seq > i / seq % seq ? -static_cast<float>(number) : 0;
    GradientProblem<float> problem{{what, std::move(q), std::move(k), std::move(v), {}, std::move(bias)},
                                   random_grad_out<float>(what),
                                   {}};
    options_ = {};
    options_.q = at("q.npy"), options_.k = at("k.npy"), options_.v = at("v.npy"),
    options_.dout = at("dout.npy");
    options_.softcap = what.scoring.caps() ? std::optional(what.scoring.softcap) : std::nullopt;
    if (kind == Kind::bias) options_.bias = at("bias.npy");
    wait();
    if (comm_.rank() == 0) {
      const Problem<float>& p = problem.forward;
      write_npy<float>(options_.q, p.q);
      write_npy<float>(options_.k, p.k);
      write_npy<float>(options_.v, p.v);
      write_npy<float>(options_.dout, problem.grad_out);
      if (kind == Kind::bias) write_npy<float>(options_.bias, p.bias);
    }
    wait();
    return problem;
  }

  /// The verdicts of this rank on its rows of the results of a ring.
  RankReport verdicts(const GradientProblem<float>& problem, const TeamRun<float>& got) {
    const RunInput input(comm_, options_);
    const TokenRanges own = contiguous(seq, comm_.rank(), comm_.size());
    const Problem<float>& p = problem.forward;
    const auto rows = [&](const Tensor<float>& all) {
      return all.size() > 0 ? rows_of(all, own) : Tensor<float>();
    };
    const Tensor<float> bias = rows(p.bias);
    const Tensor<float> q = rows(p.q), grad_out = rows(problem.grad_out);
    const AttentionResult<float> forward{rows(got.attended.out), rows(got.attended.lse)};
    const Gradients<float> gradients{rows(got.gradients.q),
                                     rows(got.gradients.k),
                                     rows(got.gradients.v),
                                     {{rows(got.gradients.bias)}, {}}};
    RankReport report;
    Activity activity;
    check_results(comm_, input, RankResults<float>{own, own, &q, &bias, &forward, &grad_out, &gradients},
                  report, activity);
    return report;
  }

  /// True where it holds on all ranks.
  [[nodiscard]] bool everywhere(bool here) const { return min_over_ranks(comm_, here ? 1 : 0) == 1; }

  ring_attention::RunOptions options_;
};

TeamRun<float> ring(const GradientProblem<float>& problem, Damage how) {
  damage = how;
  return run(problem, {.rings = ring_size}, CpuDevice<float>(), links_with<Damages>);
}

/// ||a - b|| / ||b||
double difference(const Tensor<float>& a, const Tensor<float>& b) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  return compare(a, converted<double>(b), {infinite, 0}, {}).relative_error;
}

TEST_F(DamagedRing, IsNeverOk) {
  Index seen = 0, right_ones = 0;
  for_each_case(40, [&](Dice& dice, Index index) {
    const auto kind = static_cast<Kind>(index % 4);
    const double number = std::pow(10, dice.real(3, std::log10(std::numeric_limits<float>::max())));
    const auto problem = problem_of(kind, number, dice.bits());
    const TeamRun<float> right = ring(problem, Damage::none);
    RankReport good = verdicts(problem, right);
    if (kind == Kind::bias || kind == Kind::values) {
      EXPECT_TRUE(good.ok()) << "right, kind " << index % 4 << ", number " << number;
    }
    for (const Damage how : {Damage::negated, Damage::one_row}) {
      const TeamRun<float> wrong = ring(problem, how);
      RankReport bad = verdicts(problem, wrong);
      const auto expect_noticed = [&](Result result, const Tensor<float>& got, const Tensor<float>& due) {
        // Not where all of a gradient is rounding: a saturated softmax has none.
        const double off = good.error(result).relative;
        const bool is_right = everywhere(good.error(result).ok && off > 0 && off < 1e-4);
        if (!is_right || !(difference(got, due) > 1e-3)) return;
        ++seen;
        EXPECT_FALSE(everywhere(bad.error(result).ok))
            << result_name(static_cast<std::size_t>(result)) << ", kind " << index % 4 << ", number "
            << number << ", off by " << difference(got, due);
      };
      expect_noticed(Result::out, wrong.attended.out, right.attended.out);
      expect_noticed(Result::dq, wrong.gradients.q, right.gradients.q);
      expect_noticed(Result::dk, wrong.gradients.k, right.gradients.k);
      if (kind == Kind::bias) expect_noticed(Result::dbias, wrong.gradients.bias, right.gradients.bias);
    }
    right_ones += everywhere(good.ok()) ? 1 : 0;
  });
  EXPECT_GT(seen, 60);
  EXPECT_GE(right_ones, 20);
}

}  // namespace
}  // namespace ring_attention::test
