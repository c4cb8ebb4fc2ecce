#include "ring_attention/app/run_check.hpp"

#include <algorithm>

namespace ring_attention {
namespace {

/// Which of `rows` rows to compare.
std::vector<Index> chosen_rows(Index rows, Index tokens) {
  const Index wanted = tokens <= check_all_rows_up_to ? rows : std::min(rows, check_sample_rows);
  std::vector<Index> chosen;
  for (Index i = 0; i < wanted; ++i) chosen.push_back(wanted == 1 ? 0 : i * (rows - 1) / (wanted - 1));
  return chosen;
}

/// The chosen tokens of some heads of one batch, in double: [1, heads, rows, dim].
template <class T>
Tensor<double> gather(View<const T> from, Index batch, Index first_head, Index heads,
                      const std::vector<Index>& rows) {
  Tensor<double> to({1, heads, static_cast<Index>(rows.size()), from.shape().dim});
  for (Index h = 0; h < heads; ++h)
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto row = from.row(batch, first_head + h, rows[i]);
      std::copy(row.begin(), row.end(), to.view().row(0, h, static_cast<Index>(i)).begin());
    }
  return to;
}

/// Puts `part` [1, heads, rows, dim] at (batch, first_head, first_row) of `into`.
void scatter(const Tensor<double>& part, View<double> into, Index batch, Index first_head, Index first_row) {
  for (Index h = 0; h < part.shape().heads; ++h)
    for (Index i = 0; i < part.shape().seq; ++i) {
      const auto row = part.view().row(0, h, i);
      std::copy(row.begin(), row.end(), into.row(batch, first_head + h, first_row + i).begin());
    }
}

Runs runs_at(const std::vector<Index>& positions) {
  Runs runs;
  for (const Index position : positions) runs.push_back({position, 1, 1});
  return runs;
}

}  // namespace

template <class T>
RowCheck check_rows(RunInput& input, const Runs& runs, const Tensor<T>& q, const Attended<T>& got,
                    Activity& activity) {
  const std::vector<Index> rows = chosen_rows(q.shape().seq, input.q().seq);
  const std::vector<Index> position = positions(runs);
  const auto all = static_cast<Index>(rows.size());
  const Index group = input.q().heads / input.kv().heads;
  // Enough rows at a time to keep Eigen busy, few enough to keep the dense scores under about 64 MiB.
  const Index chunk = std::clamp<Index>((Index{8} << 20) / (input.kv().seq * group), 1, 512);

  Tensor<double> want_out(q.shape().with_seq(all)), want_lse(want_out.shape().per_row());
  Tensor<double> got_out(want_out.shape()), got_lse(want_lse.shape());
  double max_score = 0;
  double max_value = 0;
  for (Index b = 0; b < input.q().batch; ++b) {
    for (Index kv_head = 0; kv_head < input.kv().heads; ++kv_head) {
      const Tensor<double> k = input.whole_head<T>(false, b, kv_head);
      const Tensor<double> v = input.whole_head<T>(true, b, kv_head);
      const Index head = kv_head * group;
      for (Index first = 0; first < all; first += chunk) {
        const std::vector<Index> some(rows.begin() + first, rows.begin() + std::min(first + chunk, all));
        std::vector<Index> where;
        for (const Index row : some) where.push_back(position[static_cast<std::size_t>(row)]);
        const Tensor<double> some_q = gather<T>(q, b, head, group, some);
        const Reference want = reference_forward(some_q, k, v, input.scoring(), runs_at(where));
        scatter(want.out, want_out, b, head, first);
        scatter(want.lse, want_lse, b, head, first);
        scatter(gather<T>(got.out, b, head, group, some), got_out, b, head, first);
        scatter(gather<T>(got.lse, b, head, group, some), got_lse, b, head, first);
        max_score = std::max(max_score, want.max_abs_score);
        max_value = std::max(max_value, want.max_abs_value);
        activity.beat();
      }
    }
  }
  const Tolerance tolerance = attention_tolerance<T>(input.kv().seq, max_score, max_value);
  // A causal run whose queries stand before all keys is zero by definition, and says so.
  const bool sees_nothing = std::all_of(want_lse.data(), want_lse.data() + want_lse.size(),
                                        [](double lse) { return lse == negative_infinity<double>; });
  return {compare(got_out, want_out, tolerance, {.expect_zero = sees_nothing}),
          compare(got_lse, want_lse, tolerance, {.allow_negative_infinity = true}), all};
}

template RowCheck check_rows(RunInput&, const Runs&, const Tensor<float>&, const Attended<float>&, Activity&);
template RowCheck check_rows(RunInput&, const Runs&, const Tensor<double>&, const Attended<double>&,
                             Activity&);

}  // namespace ring_attention
