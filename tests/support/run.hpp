// The one driver: an attention problem on a team of ranks, forward and backward, on any device and over any links.
//
// Ranks are threads of this process, or run_rank() is the part of one rank of a job over MPI or NCCL.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ring_attention/attention/sink_gradient.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/cpu_devices.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "support/engines.hpp"
#include "support/team.hpp"

namespace ring_attention::test {

/// What is computed: a forward, or a forward and a backward.
template <class T>
struct Task {
  Task(const Problem<T>& problem) : forward(problem) {}  // NOLINT: implicit
  Task(const GradientProblem<T>& problem)
      : forward(problem.forward), grad_out(&problem.grad_out) {}  // NOLINT
  const Problem<T>& forward;
  const Tensor<T>* grad_out = nullptr;
};

/// Makes the links of a thread.
using MakeLinks = std::function<std::unique_ptr<Links>(LoopbackWorld& world, const RankGrid& grid)>;
std::unique_ptr<Links> thread_links(LoopbackWorld& world, const RankGrid& grid);

/// The links of a ring over all ranks whose transport is a Link.
template <class Link>
std::unique_ptr<Links> links_with(LoopbackWorld& world, const RankGrid& grid) {
  struct Own : PeerLinks {
    Own(LoopbackWorld& all, const RankGrid& own)
        : PeerLinks(all.peers(own.rank), own.ulysses, own.ring), world_of(all), rank(own.rank) {}
    [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t) override {
      return std::make_unique<Link>(world_of, rank, static_cast<int>(channel));
    }
    LoopbackWorld& world_of;
    int rank;
  };
  return std::make_unique<Own>(world, grid);
}

/// The part of rank `rank`, as a program does it that keeps arrays in the layout that it computes.
template <class Input, class T>
RankRun<SumOf<Input>> run_rank(const Task<SumOf<Input>>& task, const Team& team,
                               const Device<Input, T>& device, Links& links, int rank);

/// The single device with the fast engines, without a ring.
template <class T>
Whole<T> single_device(const GradientProblem<T>& problem);

/// All ranks, as threads of this process. \param part  of one rank
template <class T>
TeamRun<T> run_threads(const Task<T>& task, const Team& team, LoopbackWorld& world,
                       const std::function<RankRun<T>(const RankGrid& held)>& part);

template <class Input, class T>
TeamRun<SumOf<Input>> run(const Task<SumOf<Input>>& task, const Team& team, const Device<Input, T>& device,
                          const MakeLinks& links_of = thread_links) {
  LoopbackWorld world(team.ranks());
  return run_threads<SumOf<Input>>(task, team, world, [&](const RankGrid& held) {
    const auto links = links_of(world, held);
    return run_rank(task, team, device, *links, held.rank);
  });
}
/// With the fast engines.
template <class T>
TeamRun<T> run(const Problem<T>& problem, const Team& team) {
  return run(problem, team, CpuDevice<T>());
}
template <class T>
TeamRun<T> run(const GradientProblem<T>& problem, const Team& team) {
  return run(problem, team, CpuDevice<T>());
}

// ---- the part of a rank ---------------------------------------------------------------------------------------

template <class Input, class T>
class RankPart {
 public:
  using Value = SumOf<Input>;

  RankPart(const Task<Value>& task, const Team& team, const Device<Input, T>& device, Links& links, int rank)
      : what_(task.forward.what),
        device_(device),
        links_(links),
        rows_(team.grid(rank).slice(team.tokens(what_).queries)),
        columns_(team.grid(rank).slice(team.tokens(what_).keys)),
        shared_{team.grid(rank), team.division(), team.tokens(what_), what_.q(),
                what_.kv(),      what_.scoring,   what_.every_hop,    what_.bias()},
        attention_(device, links, shared_),
        backward_attention_(device, links, shared_),
        q_(queries(task.forward.q)),
        k_(keys(task.forward.k)),
        v_(keys(task.forward.v)),
        bias_rows_(task.forward.bias.size() > 0 ? rows_of(task.forward.bias, rows_) : Tensor<Value>()),
        bias_(layout().to_heads(Held::bias, device.values_to_device(bias_rows_))) {}

  void forward() {
    const Index before = allocation::current();
    allocation::reset_peak();
    auto forward = attention_.begin_forward(q_, attention_.kv(k_, v_), bias_);
    attention_.travel(forward);
    AttentionResult<Value> attended = forward.engine->finish();
    run_.forward_peak = allocation::peak() - before;
    out_ = std::move(attended.out);
    lse_ = std::move(attended.lse);
    run_.attended = {device_.to_host(layout().to_sequence(Held::queries, out_.view())),
                     device_.to_host(layout().to_sequence(Held::queries, lse_.view()))};
    run_.forward_kv = attention_.hops(Channel::kv);
    run_.forward_pieces = exchanged(links_);
  }
  void backward(const Tensor<Value>& all_grad_out) {
    run_.has_backward = true;
    const auto grad_out = queries(all_grad_out);
    const Index before = allocation::current();
    allocation::reset_peak();
    auto backward =
        backward_attention_.begin_backward({q_, out_, lse_, grad_out, bias_}, backward_attention_.kv(k_, v_));
    backward_attention_.travel(backward);
    run_.peak = allocation::peak() - before;
    auto got = backward_attention_.finish(backward);
    const Tensor<Value> own_grad_out = rows_of(all_grad_out, rows_);
    got.numbers.sinks =
        sink_gradient<Value>({{}, run_.attended.out, run_.attended.lse, own_grad_out}, what_.scoring.sinks);
    run_.gradients = {device_.to_host(std::move(got.q)),
                      device_.to_host(std::move(got.k)),
                      device_.to_host(std::move(got.v)),
                      {device_.to_host(std::move(got.bias)), std::move(got.numbers)}};
    run_.kv = backward_attention_.hops(Channel::kv);
    run_.gradient = backward_attention_.hops(Channel::gradients);
    run_.pieces = exchanged(links_);
  }
  [[nodiscard]] RankRun<Value> finish() { return std::move(run_); }

 private:
  [[nodiscard]] const HeadLayout& layout() const { return attention_.layout(); }
  [[nodiscard]] MaybeOwned<Input> on_device(Tensor<Value>&& host) const {
    auto there = device_.to_device(host);
    if constexpr (std::is_same_v<Input, Value>)
      if (!there.is_owned()) return std::move(host);
    return there;
  }
  [[nodiscard]] MaybeOwned<Input> queries(const Tensor<Value>& all) const {
    return layout().to_heads(Held::queries, on_device(rows_of(all, rows_)));
  }
  [[nodiscard]] MaybeOwned<Input> keys(const Tensor<Value>& all) const {
    return layout().to_heads(Held::keys, on_device(rows_of(all, columns_)));
  }

  const Case& what_;
  const Device<Input, T>& device_;
  Links& links_;
  TokenRanges rows_, columns_;  // what it holds
  SharedAttention shared_;
  ContextParallel<Input, T> attention_, backward_attention_;
  MaybeOwned<Input> q_, k_, v_;  // where they are computed, and so are the next ones
  Tensor<Value> bias_rows_;
  MaybeOwned<Value> bias_;
  MaybeOwned<Value> out_, lse_;
  RankRun<Value> run_;
};

template <class Input, class T>
RankRun<SumOf<Input>> run_rank(const Task<SumOf<Input>>& task, const Team& team,
                               const Device<Input, T>& device, Links& links, int rank) {
  RankPart<Input, T> part(task, team, device, links, rank);
  part.forward();
  if (task.grad_out != nullptr) part.backward(*task.grad_out);
  return part.finish();
}

// In run.cpp.
extern template RankRun<float> run_rank(const Task<float>&, const Team&, const Device<float>&, Links&, int);
extern template RankRun<double> run_rank(const Task<double>&, const Team&, const Device<double>&, Links&,
                                         int);
extern template RankRun<float> run_rank(const Task<float>&, const Team&, const Device<float, Bf16>&, Links&,
                                        int);

}  // namespace ring_attention::test
