/// \file
/// One `ring-attention decode`: a prompt on a ring, then one token after the other.
#pragma once

#include <cstdio>

#include "program/cpu_backend.hpp"
#include "program/decode/report.hpp"
#include "program/run/check.hpp"
#include "program/run/job.hpp"
#include "program/run/results.hpp"
#include "ring_attention/parallel/decode.hpp"
#include "ring_attention/parallel/mpi_all_to_all.hpp"

namespace ring_attention {

/// Every function is collective. \tparam T  of all arrays
template <class T>
class DecodeJob {
  using Cache = ShardedCache<T>;

 public:
  /// \param prompt  tokens: less than q has
  DecodeJob(const Communicator& comm, const DecodeOptions& options, const RunInput& input, Index prompt,
            Activity& activity)
      : comm_(comm),
        options_(options),
        input_(input),
        activity_(activity),
        prompt_(placement_kind_named(options.placement), prompt, comm.size()),
        new_tokens_{{prompt, 1, input.q().seq - prompt}},
        cpu_(cpu_options(comm, options)) {
    report_.q = input.q();
    report_.kv = input.kv();
    report_.prompt = prompt;
    report_.dtype = sizeof(T) == sizeof(double) ? "float64" : "float32";
    report_.scale = input.scoring().scale;
    report_.backend = {.engine = fast_ ? "fast" : "readable",
                       .isa = fast_ ? name_of(cpu_.isa) : "",
                       .wire = report_.dtype,
                       .transport = is_odd_even() ? "odd-even" : "overlapped",
                       .warning = {},
                       .threads = cpu_.threads};
    mine_.threads = cpu_.threads;
  }

  int operator()() {
    require_memory();
    std::optional<RunResults> results;
    if (!options_.out.empty()) open(results.emplace(comm_, options_.out));
    allocation::reset_peak();
    Stopwatch watch(comm_);
    Cache cache = attend_to_prompt(watch);
    decode_tokens(cache, watch);
    mine_.tensor_bytes = allocation::peak();
    mine_.tokens = cache.own_capacity();
    if (options_.check) check(cache, watch);
    mine_.process_bytes = allocation::process_peak();
    report_.ranks = gather(comm_, mine_);
    if (results && report_.ok()) write(*results, cache);
    print(results);
    return report_.ok() ? 0 : 1;
  }

 private:
  [[nodiscard]] bool is_odd_even() const { return options_.transport == "odd-even"; }

  /// The cache and the results of this rank; for the prompt its queries and the K,V of a ring; q, k and v of all new
  /// tokens.
  void require_memory() const {
    const Index tokens = prompt_.tokens(comm_.rank()) + new_tokens_[0].count / comm_.size() + 1;
    const auto values = [](const Shape& all, Index seq) { return all.with_seq(seq).size(); };
    const Index q = values(input_.q(), tokens + prompt_.max_tokens() + new_tokens_[0].count),
                kv = values(input_.kv(), 2 * tokens + 4 * prompt_.max_tokens() + 2 * new_tokens_[0].count);
    require_host_memory(comm_, (q + kv) * static_cast<Index>(sizeof(T)));
  }

  void open(RunResults& results) const {
    const std::size_t n = input_.dimensions();
    const Shape& q = input_.q();
    results.add("out", q, array_extents(q, n), dtype_of<T>());
    results.add("lse", q.per_row(), row_extents(q.per_row(), n), dtype_of<T>());
  }

  [[nodiscard]] Tensor<T> read(InputArray array, const TokenRanges& ranges) {
    Tensor<T> shard = input_.template read<T>(array, ranges);
    activity_.beat();
    // All ranks have the new tokens: rank 0 counts their elements.
    const bool counts = ranges != new_tokens_ || comm_.rank() == 0;
    const std::string line = input_.template non_finite<T>(
        comm_, array, counts ? shard.view() : View<T>(nullptr, shard.shape().with_seq(0)),
        counts ? ranges : TokenRanges{});
    if (line.empty()) return shard;
    if (options_.check) throw AgreedError(line + ": --check needs finite arrays");
    report_.warnings.push_back(line);
    if (comm_.rank() == 0) std::fprintf(stderr, "warning: %s\n", line.c_str());
    return shard;
  }

  /// The forward of `run`, over the prompt.
  [[nodiscard]] Cache attend_to_prompt(Stopwatch& watch) {
    activity_.enter(Phase::read);
    const TokenRanges own = prompt_.ranges(comm_.rank());
    const Tensor<T> q = read(InputArray::q, own);
    KvParcel<T> kv(input_.kv(), prompt_, comm_.rank(), HostMemory{},
                   kv_hops(input_.scoring().mask, prompt_, prompt_));
    std::ranges::copy(read(InputArray::k, own).view().elements(), kv.k().data());
    std::ranges::copy(read(InputArray::v, own).view().elements(), kv.v().data());
    Cache cache(input_.q().seq, prompt_, comm_.rank(), kv.k(), kv.v());
    new_q_ = read(InputArray::q, new_tokens_);
    new_k_ = read(InputArray::k, new_tokens_);
    new_v_ = read(InputArray::v, new_tokens_);
    const Shape results = input_.q().with_seq(cache.own_capacity());
    results_ = {Tensor<T>(results), Tensor<T>(results.per_row())};
    report_.read_seconds = watch.lap();

    CpuForward<T> engine(fast_, input_.scoring(), options_.block, cpu_);
    engine.begin(q.view(), own);
    const auto odd_even = [&] { return OddEvenTransport(comm_, Watched::kv); };
    const auto overlapped = [&] { return OverlappedTransport(comm_, Watched::kv); };
    Watched transport = is_odd_even() ? Watched(activity_, odd_even) : Watched(activity_, overlapped);
    ring_forward(engine, transport, kv);
    keep(engine.finish(), 0);
    report_.forward_seconds = watch.lap();
    return cache;
  }

  /// These rows are those of this rank's tokens from the `first` on.
  void keep(const AttentionResult<T>& rows, Index first) {
    copy_tokens(rows.out.view(), 0, rows.out.shape().seq, results_.out.view(), first);
    copy_tokens(rows.lse.view(), 0, rows.lse.shape().seq, results_.lse.view(), first);
  }

  void decode_tokens(Cache& cache, Stopwatch& watch) {
    MpiAllToAll link(comm_);
    Tensor<T> q(new_q_.shape().with_seq(1)), k(new_k_.shape().with_seq(1)), v(k.shape());
    for (Index token = 0; token < new_tokens_[0].count; ++token) {
      copy_tokens(new_q_.view(), token, 1, q.view(), 0);
      copy_tokens(new_k_.view(), token, 1, k.view(), 0);
      copy_tokens(new_v_.view(), token, 1, v.view(), 0);
      activity_.enter(Phase::exchange, static_cast<int>(token));
      const bool own = cache.append(k, v);
      const View<const T> query = q.view();
      const AttentionResult<T> row =
          fast_ ? decode<CpuEngine<T>>(link, query, cache, input_.scoring(), cpu_)
                : decode<BlockwiseEngine<T>>(link, query, cache, input_.scoring(), cpu_);
      if (own) keep(row, count(cache.ranges()) - 1);
    }
    mine_.messages_sent = link.statistics().messages_sent;
    mine_.bytes_sent = link.statistics().bytes_sent;
    report_.exchange_seconds = max_over_ranks(comm_, link.statistics().exposed_seconds);
    report_.decode_seconds = watch.lap();
    const Index bytes = 2 * static_cast<Index>(sizeof(T)),
                own = input_.kv().with_seq(cache.own_capacity()).size();
    report_.cache_bytes = -min_over_ranks(comm_, -bytes * own);
    report_.ring_bytes = -min_over_ranks(comm_, -bytes * (comm_.size() > 1 ? input_.kv().size() - own : 0));
  }

  void check(const Cache& cache, Stopwatch& watch) {
    activity_.enter(Phase::check);
    const TokenRanges own = cache.ranges();
    const Tensor<T> q = input_.template read<T>(InputArray::q, own), no_bias;
    check_results(comm_, input_, RankResults<T>{own, own, &q, &no_bias, &results_}, mine_, activity_);
    report_.check_seconds = watch.lap();
  }

  void write(RunResults& results, const Cache& cache) {
    activity_.enter(Phase::write);
    results.write<T>("out", results_.out, cache.ranges());
    results.write<T>("lse", results_.lse, cache.ranges());
    results.commit(to_json(report_, options_));
  }

  void print(const std::optional<RunResults>& results) const {
    if (comm_.rank() != 0) return;
    std::fputs((options_.json ? to_json(report_, options_) : to_text(report_, options_)).c_str(), stdout);
    if (!report_.ok())
      std::fprintf(stderr, "error: the check failed%s\n", results ? "; nothing was written" : "");
    else if (results && !options_.json)
      std::printf("\nWrote %s to %s\n", results->names().c_str(), options_.out.c_str());
  }

  const Communicator& comm_;
  const DecodeOptions& options_;
  const RunInput& input_;
  Activity& activity_;
  Placement prompt_;
  TokenRanges new_tokens_;  // one range
  bool fast_ = is_fast(options_);
  CpuOptions cpu_;
  Tensor<T> new_q_, new_k_, new_v_;  // of all ranks
  AttentionResult<T> results_;       // of this rank's tokens, in the order of its cache
  DecodeReport report_;
  RankReport mine_;
};

}  // namespace ring_attention
