/// \file
/// One `ring-attention decode`: a prompt on a ring, then one token after the other.
#pragma once

#include "program/cpu_backend.hpp"
#include "program/decode/report.hpp"
#include "program/run/check.hpp"
#include "program/run/files.hpp"
#include "program/stopwatch.hpp"
#include "ring_attention/attention/visible_pairs.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"
#include "ring_attention/parallel/decode/decode.hpp"
#include "ring_attention/parallel/observed.hpp"

namespace ring_attention {

/// Every function is collective. \tparam T  of all arrays
template <class T>
class DecodeJob {
  using Cache = ShardedCache<T>;

 public:
  /// \param prompt  tokens: less than q has  \param trace  null: none
  DecodeJob(const Communicator& comm, const DecodeOptions& options, const RunInput& input, Index prompt,
            Activity& activity, Trace* trace)
      : comm_(comm),
        options_(options),
        input_(input),
        activity_(activity),
        trace_(trace),
        prompt_(placements_of(options, placement_kind_named(options.placement), prompt, prompt, comm.size(),
                              input.scoring().mask)
                    .keys),
        shared_{{comm.rank(), comm.size(), 1}, ring(), prompt_, input.q(), input.kv(), input.scoring()},
        new_tokens_{{prompt, 1, input.q().seq - prompt}},
        cpu_(cpu_options(comm, options)),
        tiling_(options.same_bits ? std::optional(Tiling(options.tile_of_same_bits())) : std::nullopt),
        files_(comm, options, input, activity, report_) {
    cpu_.same_bits = options.tile_of_same_bits();
    report_.prompt = prompt;
    report_.backend = describe_cpu<T>(options, cpu_);
    mine_.threads = cpu_.threads;
  }

  int operator()() {
    require_memory();
    files_.open();
    allocation::reset_peak();
    Stopwatch watch(comm_);
    Cache cache = attend_to_prompt(watch);
    decode_tokens(cache, watch);
    mine_.tensor_bytes = allocation::peak();
    mine_.tokens = cache.own_capacity();
    if (options_.check) check(cache, watch);
    mine_.process_bytes = allocation::process_peak();
    report_.ranks = all_gather(comm_, mine_);
    if (files_.writes()) write(cache);
    files_.print(options_.json ? to_json(report_, options_) : to_text(report_, options_));
    return report_.ok() ? 0 : 1;
  }

 private:
  void require_memory() const {
    constexpr Index bytes = sizeof(T);
    const Index decoded = new_tokens_[0].count,
                own = prompt_.tokens(comm_.rank()) + decoded / comm_.size() + 1;
    const auto numbers = [](const Shape& all, Index seq) { return all.with_seq(seq).size(); };
    const auto kv = [this](Index seq) { return input_.kv().with_seq(seq).elements(); };
    const Index cache = kv(own), results = numbers(input_.out(), own);
    const Index new_tokens = numbers(input_.q(), decoded) + kv(decoded);
    require_host_memory(
        comm_, context_bytes(shared_, false, {bytes, bytes, bytes}) + (cache + results + new_tokens) * bytes);
  }

  /// All ranks have the new tokens: rank 0 counts their elements.
  [[nodiscard]] Tensor<T> read_new(InputArray array) {
    return files_.read(array, new_tokens_, comm_.rank() == 0);
  }

  /// The forward of `run`, over the prompt.
  [[nodiscard]] Cache attend_to_prompt(Stopwatch& watch) {
    activity_.enter(Phase::read);
    const TokenRanges own = prompt_.ranges(comm_.rank());
    const Tensor<T> q = files_.read(InputArray::q, own);
    const Workload work{shared_};
    const Backend<T> backend = cpu_backend<T>({comm_, options_, activity_, work, trace_});
    ObservedContextParallel<T> attention(*backend.device, *backend.links, shared_, backend.observers->all());
    auto kv = attention.empty_kv();
    backend.device->stage_kv(kv->k(), files_.read(InputArray::k, own));
    backend.device->stage_kv(kv->v(), files_.read(InputArray::v, own));
    Cache cache(input_.q().seq, prompt_, comm_.rank(), kv->k(), kv->v(), tiling_);
    new_q_ = read_new(InputArray::q);
    new_k_ = read_new(InputArray::k);
    new_v_ = read_new(InputArray::v);
    const Shape results = input_.out().with_seq(cache.own_capacity());
    results_ = {Tensor<T>(results), Tensor<T>(results.per_row())};
    report_.read_seconds = watch.lap();

    auto forward = attention.begin_forward(q, std::move(kv));
    attention.travel(forward);
    keep(attention.finish(forward), 0);
    report_.forward_seconds = watch.lap();
    return cache;
  }

  /// These rows are those of this rank's tokens from the `first` on.
  void keep(const AttentionResult<T>& rows, Index first) {
    copy_tokens(rows.out.view(), 0, rows.out.shape().seq, results_.out.view(), first);
    copy_tokens(rows.lse.view(), 0, rows.lse.shape().seq, results_.lse.view(), first);
  }

  void decode_tokens(Cache& cache, Stopwatch& watch) {
    CommandObservers observers(activity_, trace_, RankGrid(comm_.rank(), comm_.size(), comm_.size()));
    const Group group = observed(std::make_shared<MpiAllToAll>(comm_), observers.of_trace(),
                                 PieceExchange::Along::ulysses, {1, comm_.size()});
    AllToAll& link = *group;
    Tensor<T> q(new_q_.shape().with_seq(1)), k(new_k_.shape().with_seq(1)), v(new_v_.shape().with_seq(1));
    for (Index token = 0; token < new_tokens_[0].count; ++token) {
      copy_tokens(new_q_.view(), token, 1, q.view(), 0);
      copy_tokens(new_k_.view(), token, 1, k.view(), 0);
      copy_tokens(new_v_.view(), token, 1, v.view(), 0);
      activity_.enter(Phase::exchange, static_cast<int>(token));
      const bool own = cache.append(k, v);
      const View<const T> query = q.view();
      const AttentionResult<T> row = attend(link, query, cache);
      if (own) keep(row, count(cache.ranges()) - 1);
    }
    mine_.messages_sent = link.statistics().messages_sent;
    mine_.bytes_sent = link.statistics().bytes_sent;
    report_.exchange_seconds = max_over_ranks(comm_, link.statistics().exposed_seconds);
    report_.decode_seconds = watch.lap();
    const Index bytes = sizeof(T), own = input_.kv().with_seq(cache.own_capacity()).elements();
    report_.cache_bytes = -min_over_ranks(comm_, -bytes * own);
    report_.ring_bytes =
        -min_over_ranks(comm_, -bytes * (comm_.size() > 1 ? input_.kv().elements() - own : 0));
  }

  /// Attention of the newest token's query to the keys of all ranks.
  [[nodiscard]] AttentionResult<T> attend(AllToAll& link, View<const T> query, const Cache& cache) const {
    const Scoring& scoring = input_.scoring();
    if constexpr (std::is_same_v<T, float>)
      if (cpu_.same_bits > 0) {
        ExactPartial local = attend_here(cache, [&] { return attend_to_cache(query, cache, scoring, cpu_); });
        return merge_over_ranks(link, local, scoring);
      }
    return merge_over_ranks(
        link,
        attend_here(cache,
                    [&] {
                      return fast_ ? attend_to_cache<CpuEngine<T>>(query, cache, scoring, cpu_)
                                   : attend_to_cache<BlockwiseEngine<T>>(query, cache, scoring, cpu_);
                    }),
        scoring);
  }
  /// The state over the keys of this rank.
  [[nodiscard]] auto attend_here(const Cache& cache, const auto& attend) const {
    if (trace_ == nullptr) return attend();
    const TokenRanges keys = cache.ranges(), query{{cache.size() - 1, 1, 1}};
    trace_->begin(
        Track::compute, "own K,V",
        format("\"queries\":%s,\"keys\":%s,\"pairs\":%lld", json_of(query).c_str(), json_of(keys).c_str(),
               static_cast<long long>(visible_pairs(input_.scoring().mask, query, keys))));
    auto state = attend();
    trace_->end(Track::compute);
    return state;
  }

  void check(const Cache& cache, Stopwatch& watch) {
    activity_.enter(Phase::check);
    const TokenRanges own = cache.ranges();
    const Tensor<T> q = input_.template read<T>(InputArray::q, own);
    const Tensor<T> none;
    check_results(comm_, input_, RankResults<T>{own, own, &q, &none, &results_}, mine_, activity_);
    report_.check_seconds = watch.lap();
  }

  void write(const Cache& cache) {
    activity_.enter(Phase::write);
    files_.write(results_, cache.ranges());
    files_.commit(to_json(report_, options_));
  }

  const Communicator& comm_;
  const DecodeOptions& options_;
  const RunInput& input_;
  Activity& activity_;
  Trace* trace_;
  Placement prompt_;
  SharedAttention shared_;  // of the prompt
  TokenRanges new_tokens_;  // one range
  bool fast_ = is_fast(options_);
  CpuOptions cpu_;
  std::optional<Tiling> tiling_;     // for the same bits
  Tensor<T> new_q_, new_k_, new_v_;  // of all ranks
  AttentionResult<T> results_;       // of this rank's tokens, in the order of its cache
  DecodeReport report_;
  RunFiles<T> files_;
  RankReport mine_;
};

}  // namespace ring_attention
