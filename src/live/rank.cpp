// One rank of a run in a page: an instance of this module. The page writes an address to text(), and calls run() on each.
#include <cmath>

#include "live/check.hpp"
#include "mistakes/mistaken_ring.hpp"
#include "ring_attention/attention/visible_pairs.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/trace.hpp"

namespace ring_attention::live {
namespace {

/// Calls a function of the page with a text.
void write(void (*to)(const char* text, int size), const std::string& text) {
  to(text.data(), static_cast<int>(text.size()));
}

/// Moves the rank's time by what a step costs at the chosen speed.
class ModelClock : public Observer {
 public:
  explicit ModelClock(const Choice& choice) : choice_(choice) {}

  [[nodiscard]] double computed() const { return computed_; }

  void shares(const SharedAttention& shared) override {
    heads_ = static_cast<double>(shared.q.heads / shared.grid.ulysses.size);
    steps_ = shared.grid.ring.size * (choice_.backward ? 2 : 1);
  }
  void computes(const Pass& pass) override {
    mask_ = pass.mask;
    queries_ = pass.queries;
    operations_ = choice_.operations(*pass.name == 'b') * heads_;
  }
  void step(int, const TokenRanges& keys) override {
    cost_ = static_cast<double>(visible_pairs(mask_, queries_, keys)) * operations_ / choice_.flops;
    ++step_;
  }
  void ends() override {
    time_of_rank += cost_;
    computed_ += cost_;
    cost_ = 0;
  }
  void beats() override { page_rest(static_cast<double>(step_) / steps_); }

 private:
  const Choice& choice_;
  Mask mask_;
  TokenRanges queries_;
  int step_ = 0, steps_ = 1;
  double heads_ = 0, operations_ = 0, cost_ = 0, computed_ = 0;
};

/// The parts of all ranks, on rank 0.
Tensor<float> collected(PagePeers& peers, const Choice& choice, const Tensor<float>& part) {
  peers.send(std::as_bytes(part.view().elements()), 0, Peers::collective_tag)->wait();
  if (peers.rank() > 0) return {};
  Tensor<float> array(part.shape().with_seq(choice.q.seq));
  for (int rank = 0; rank < peers.size(); ++rank) {
    const SharedAttention theirs = choice.shared(rank);
    const std::vector<Index> tokens = positions(theirs.grid.slice(theirs.tokens.queries));
    Tensor<float> rows(part.shape().with_seq(std::ssize(tokens)));
    peers.receive(std::as_writable_bytes(rows.view().elements()), rank, Peers::collective_tag)->wait();
    for (Index h = 0; h < rows.shape().heads; ++h)
      for (std::size_t i = 0; i < tokens.size(); ++i)
        std::ranges::copy(rows.view().row(0, h, static_cast<Index>(i)),
                          array.view().row(0, h, tokens[i]).begin());
  }
  return array;
}

void tell_check(const char* name, const Comparison& found, double bound, Index tokens) {
  const std::string error = std::isfinite(found.got) ? format("%.3g", found.max_error) : "null";
  write(page_tell, format(R"({"check":"%s","right":%s,"error":%s,"bound":%.3g,"tokens":%d})", name,
                          found.ok ? "true" : "false", error.c_str(), bound, static_cast<int>(tokens)));
}

void run(int rank, const Choice& choice) {
  PagePeers peers(rank, choice.ranks, choice.link);
  const SharedAttention shared = choice.shared(rank);
  const RankGrid& grid = shared.grid;
  PeerLinks page_links(peers, grid.ulysses, grid.ring);
  const CpuDevice<float> cores;
  Trace trace(rank, choice.ranks, [](const std::string& text) { write(page_trace, text); });
  TraceObserver tracing(trace);
  ModelClock time(choice);
  const RingMistake& mistake = ring_mistake(choice.mistake);
  const MistakenDevice device(cores, mistake, grid.ring.ring(rank), shared.tokens.keys, {&time, &tracing});
  MistakenLinks links(page_links, mistake, grid, {&time, &tracing});
  ContextParallel<float> attention(device, links, shared);

  const TokenRanges mine = grid.slice(shared.tokens.queries);
  Arrays arrays;
  std::uint64_t stream = 0;  // as in `ring-attention run --random`
  for (const auto& [name, shape] :
       {std::pair("q", &choice.q), {"k", &choice.kv}, {"v", &choice.kv}, {"dout", &choice.q}}) {
    Tensor<float>& array = arrays[name] = Tensor<float>(shape->with_seq(count(mine)));
    fill_random(array.view(), {.seed = 1, .stream = stream++}, *shape, mine);
  }
  const Tensor<float>&q = arrays["q"], &k = arrays["k"], &v = arrays["v"];
  allocation::reset_peak();
  AttentionResult<float> result = attention.forward(q, k, v);
  if (choice.backward) {
    Gradients<float> gradients = attention.backward({q, result.out, result.lse, arrays["dout"], {}}, k, v);
    arrays["dq"] = std::move(gradients.q);
    arrays["dk"] = std::move(gradients.k);
    arrays["dv"] = std::move(gradients.v);
  }
  arrays["out"] = std::move(result.out);
  arrays["lse"] = std::move(result.lse);
  TransportStatistics sent = exchanged(links);
  sent += attention.hops();
  write(
      page_tell,
      format(
          R"({"rank":%d,"tokens":%d,"computes":%.9g,"waits":%.9g,"ends":%.9g,"bytes":%.0f,"messages":%.0f,"peak":%.0f})",
          rank, static_cast<int>(count(mine)), time.computed(), sent.exposed_seconds, time_of_rank,
          static_cast<double>(sent.bytes_sent), static_cast<double>(sent.messages_sent),
          static_cast<double>(allocation::peak())));

  for (auto& [name, array] : arrays) array = collected(peers, choice, array);
  if (rank > 0) return;
  for (const auto& [name, array] : arrays)
    page_array(name.data(), static_cast<int>(name.size()), array.data(), static_cast<int>(array.size()));
  page_rest(1);
  check(choice, arrays, tell_check);
}

std::string address;  // NOLINT: the page writes it

}  // namespace
}  // namespace ring_attention::live

/// Where the page writes an address.
extern "C" __attribute__((export_name("text"))) char* live_text(int size) {
  ring_attention::live::address.resize(static_cast<std::size_t>(size));
  return ring_attention::live::address.data();
}

extern "C" __attribute__((export_name("run"))) void live_run(int rank) {
  using namespace ring_attention::live;  // NOLINT
  try {
    run(rank, Choice(address));
  } catch (const std::bad_alloc&) {
    write(page_fail, "There is too little memory.");
  } catch (const std::exception& error) {
    write(page_fail, error.what());
  }
}
