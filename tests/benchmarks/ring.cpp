// Times and memory of the ring, forward or backward, one thread per rank.
//
//     mpirun -n 8 benchmark_ring REPETITIONS CASE...
//
// A case is ranks,tokens,heads,dim,mask,placement,transport,pass: 2,8192,8,64,causal,zigzag,overlapped,forward. In place
// of the transport a partition (ring, ulysses, hybrid with U = 2, all-gather) measures the library's one call. The cases
// take turns, so that other load of the machine disturbs all of them; ranks that a case does not use sleep. Rank 0
// prints one JSON object a case: the samples of the slowest rank, and bytes of the largest. The forward that comes
// before a backward is in neither its times nor its memory.

#include <chrono>
#include <cstdio>
#include <memory>
#include <sstream>
#include <thread>

#include "ring_attention/core/random.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"
#include "ring_attention/ring_attention.hpp"

namespace ring_attention {
namespace {

struct Case {
  int ranks = 1;
  Shape shape;
  bool causal = false, overlapped = false, backward = false;
  std::optional<Partition> partition;  // none: the loop of a ring
  PlacementKind kind = PlacementKind::contiguous;
  std::string text;
};

Case parse(const std::string& text) {
  Case c;
  c.text = text;
  std::istringstream in(text);
  const auto field = [&] {
    std::string word;
    if (!std::getline(in, word, ',')) throw InputError("bad case " + text);
    return word;
  };
  c.ranks = std::stoi(field());
  c.shape = {1, 1, std::stoll(field()), 1};
  c.shape.heads = std::stoll(field());
  c.shape.dim = std::stoll(field());
  c.causal = field() == "causal";
  c.kind = placement_kind_named(field());
  const std::string moves = field();
  c.overlapped = moves == "overlapped";
  if (!c.overlapped && moves != "odd-even") c.partition = partition_named(moves);
  c.backward = field() == "backward";
  return c;
}

struct Sample {
  double seconds = 0, exposed = 0;
  Index tensor_bytes = 0, process_bytes = 0, messages = 0, bytes_sent = 0;
};

/// One run of a case on one rank.
template <Transport Link>
class TimedCase {
 public:
  TimedCase(const Communicator& comm, const Case& what)
      : comm_(comm),
        shape_(what.shape),
        placement_(what.kind, what.shape.seq, comm.size()),
        ranges_(placement_.ranges(comm.rank())),
        scoring_{1 / std::sqrt(static_cast<double>(what.shape.dim))} {
    if (what.causal) scoring_.mask = Mask::causal();
  }

  Sample forward() {
    allocation::reset_peak();
    q_ = random(0);
    KvParcel<float> kv = random_kv();
    Link transport(comm_);
    return timed({&transport}, [&] {
      CpuEngine<float> engine(scoring_);
      engine.begin(q_, ranges_);
      ring_forward(engine, transport, kv);
      result_ = engine.finish();
    });
  }

  /// After forward().
  Sample backward() {
    allocation::reset_peak();
    const Tensor<float> grad_out = random(3);
    KvParcel<float> kv = random_kv(), kv_gradients(shape_, placement_, comm_.rank());
    Link kv_transport(comm_, 0), gradient_transport(comm_, 1);
    return timed({&kv_transport, &gradient_transport}, [&] {
      CpuBackward<float> engine(scoring_);
      engine.begin({q_, result_.out, result_.lse, grad_out}, ranges_);
      ring_backward(engine, kv_transport, gradient_transport, kv, kv_gradients);
      const Tensor<float> grad_q = engine.finish();
    });
  }

 private:
  Tensor<float> random(std::uint64_t stream) const {
    Tensor<float> tensor(shape_.with_seq(count(ranges_)));
    fill_random(tensor.view(), {.stream = stream}, shape_, ranges_);
    return tensor;
  }

  KvParcel<float> random_kv() const {
    KvParcel<float> kv(shape_, placement_, comm_.rank());
    fill_random(kv.k(), {.stream = 1}, shape_, ranges_);
    fill_random(kv.v(), {.stream = 2}, shape_, ranges_);
    return kv;
  }

  template <class Work>
  Sample timed(const std::vector<const Link*>& transports, Work work) const {
    barrier(comm_);
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    Sample sample;
    for (const Link* transport : transports) {
      sample.exposed += transport->statistics().exposed_seconds;
      sample.messages += transport->statistics().messages_sent;
      sample.bytes_sent += transport->statistics().bytes_sent;
    }
    sample.seconds = max_over_ranks(comm_, seconds.count());
    sample.exposed = max_over_ranks(comm_, sample.exposed);
    sample.tensor_bytes = -min_over_ranks(comm_, -allocation::peak());
    sample.process_bytes = -min_over_ranks(comm_, -allocation::process_peak());
    return sample;
  }

  const Communicator& comm_;
  Shape shape_;
  Placement placement_;
  TokenRanges ranges_;
  Scoring scoring_;
  Tensor<float> q_;
  AttentionResult<float> result_;
};

template <Transport Link>
Sample run(const Communicator& comm, const Case& what) {
  TimedCase<Link> job(comm, what);
  const Sample forward = job.forward();
  return what.backward ? job.backward() : forward;
}

/// The library's one call; messages are not counted.
Sample run_call(const Communicator& comm, const Case& what) {
  Options options;
  options.partition = *what.partition;
  if (what.partition == Partition::hybrid) options.ulysses = 2;
  const HybridPlace place = place_in(options.partition, options.ulysses, comm.rank(), comm.size());
  const Placement placement(what.kind, what.shape.seq, place.ring.size);
  const TokenRanges held = place.slice(placement);
  const auto random = [&](std::uint64_t stream) {
    Tensor<float> tensor(what.shape.with_seq(count(held)));
    fill_random(tensor.view(), {.stream = stream}, what.shape, held);
    return tensor;
  };
  const Tensor<float> q = random(0), k = random(1), v = random(2), grad_out = random(3);
  Scoring scoring{1 / std::sqrt(static_cast<double>(what.shape.dim))};
  if (what.causal) scoring.mask = Mask::causal();
  const auto timed = [&](auto call) {
    barrier(comm);
    const auto begin = std::chrono::steady_clock::now();
    auto result = call();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    return std::pair(std::move(result), Sample{max_over_ranks(comm, seconds.count())});
  };
  const auto attend = [&] { return forward(comm.handle(), q, k, v, placement, scoring, options); };
  auto [result, sample] = timed(attend);
  if (!what.backward) return sample;
  return timed([&, &attended = result] {
           return backward(comm.handle(), q, k, v, attended, grad_out, placement, scoring, options);
         })
      .second;
}

/// Waits for all ranks without taking a core from those that work.
void sleep_until_all_are_here(const Communicator& comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm.handle(), &request));
  for (int done = 0; done == 0;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void print(const Case& what, const std::vector<Sample>& samples) {
  const auto list = [&](const char* name, auto member) {
    std::printf(", \"%s\": [", name);
    for (std::size_t i = 0; i < samples.size(); ++i)
      std::printf("%s%.6f", i == 0 ? "" : ", ", samples[i].*member);
    std::printf("]");
  };
  std::printf("{\"case\": \"%s\"", what.text.c_str());
  list("seconds", &Sample::seconds);
  list("exposed_seconds", &Sample::exposed);
  const Sample& last = samples.back();
  std::printf(
      ", \"tensor_bytes\": %lld, \"process_bytes\": %lld, \"messages\": %lld, \"bytes_sent\": %lld}\n",
      static_cast<long long>(last.tensor_bytes), static_cast<long long>(last.process_bytes),
      static_cast<long long>(last.messages), static_cast<long long>(last.bytes_sent));
}

int run_cases(const Communicator& world, int repetitions, const std::vector<Case>& cases) {
  std::vector<std::vector<Sample>> samples(cases.size());
  for (int repetition = -1; repetition < repetitions; ++repetition)  // the first warms up
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (repetition < 0 && repetitions > 1 && cases[i].shape.seq > 16384) continue;
      const bool mine = world.rank() < cases[i].ranks;
      MPI_Comm part = MPI_COMM_NULL;
      check_mpi(MPI_Comm_split(world.handle(), mine ? 0 : MPI_UNDEFINED, world.rank(), &part));
      if (mine) {
        const Communicator comm(part);
        const Sample sample = cases[i].partition    ? run_call(comm, cases[i])
                              : cases[i].overlapped ? run<OverlappedTransport>(comm, cases[i])
                                                    : run<OddEvenTransport>(comm, cases[i]);
        if (repetition >= 0) samples[i].push_back(sample);
        check_mpi(MPI_Comm_free(&part));
      }
      sleep_until_all_are_here(world);
    }
  if (world.rank() == 0)
    for (std::size_t i = 0; i < cases.size(); ++i) print(cases[i], samples[i]);
  return 0;
}

}  // namespace
}  // namespace ring_attention

int main(int argc, char** argv) {
  using namespace ring_attention;
  return mpi_main(argc, argv, [&](const Communicator& world) {
    std::vector<Case> cases;
    agree(world, [&] {
      if (argc < 3) throw InputError("usage: benchmark_ring REPETITIONS CASE...");
      for (int i = 2; i < argc; ++i) {
        cases.push_back(parse(argv[i]));
        if (cases.back().ranks > world.size()) throw InputError(std::string("too few ranks for ") + argv[i]);
      }
    });
    return run_cases(world, std::stoi(argv[1]), cases);
  });
}
