#include "program/bench/decode.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/median.hpp"
#include "program/cpu_backend.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"
#include "ring_attention/parallel/decode/decode.hpp"

namespace ring_attention {
namespace {

constexpr const char* decode_notes = R"(Examples:
  ring-attention bench decode --threads 1
      One core and a layer of Llama 3 8B in float32: 64 Ki tokens, 512 MiB of keys and values.
  mpirun -n 4 ring-attention bench decode --seq 262144
      A cache over four ranks.

What is measured, for three lengths, each as the median over --repetitions of the slowest rank:
  a token     attention of one query per sequence, and the merge over the ranks: one layer
  messages    the part of it that a rank spends in messages
  read        bytes of K and V that a rank holds, divided by the time of its attention
  plain read  the same bytes read by the same threads, without computing
A cache that fits into the processor's own memory is read faster than one that does not.)";

using Cache = ShardedCache<float>;

/// Medians of the slowest rank.
struct DecodeTimes {
  Index tokens = 0;
  Index cache_bytes = 0;                                  ///< of the rank with the most tokens
  Index sent_bytes = 0;                                   ///< for one token, by the rank that sends most
  Index ring_bytes = 0;                                   ///< what a ring would send
  double token = 0, messages = 0, attend = 0, plain = 0;  ///< seconds

  [[nodiscard]] double read_rate() const { return static_cast<double>(cache_bytes) / attend; }
  [[nodiscard]] double plain_rate() const { return static_cast<double>(cache_bytes) / plain; }
};

struct DecodeBenchReport {
  int ranks = 1;
  CpuOptions cpu;
  std::vector<DecodeTimes> lengths;
};

/// Reads all of it.
std::uint64_t folded(std::span<const float> array) {
  std::array<std::uint64_t, 8> sum{}, line{};
  constexpr std::size_t step = sizeof line / sizeof(float);
  for (std::size_t i = 0; i + step <= array.size(); i += step) {
    std::memcpy(line.data(), array.data() + i, sizeof line);
    for (std::size_t j = 0; j < line.size(); ++j) sum[j] ^= line[j];
  }
  std::uint64_t all = 0;
  for (const std::uint64_t part : sum) all ^= part;
  return all;
}

/// Reads the keys and values of this rank, in the pieces in which attend_to_cache reads them.
std::uint64_t read_cache(const Cache& cache, int threads) {
  std::vector<std::pair<TokenRange, Index>> pieces;
  for_each_block(cache.ranges(), decode_piece,
                 [&](const TokenRange& tokens, Index first) { pieces.emplace_back(tokens, first); });
  const auto count = std::ssize(pieces);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads));
  for_each_task(cache.shape().batch * cache.shape().heads * count, threads, [&](Index task, int worker) {
    const auto& [tokens, first] = pieces[static_cast<std::size_t>(task % count)];
    const Index head = task / count;
    const KeyValue<float> kv =
        cache.keys(head / cache.shape().heads, head % cache.shape().heads, first, tokens);
    sums[static_cast<std::size_t>(worker)] ^= folded(kv.k.elements()) ^ folded(kv.v.elements());
  });
  return std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}, std::bit_xor<>());
}

class DecodeBench {
 public:
  DecodeBench(const Communicator& comm, const BenchDecodeOptions& options, const CpuOptions& cpu,
              Activity& activity)
      : comm_(comm), options_(options), cpu_(cpu), activity_(activity), q_(options.q()) {
    fill_random(q_.view(), {.stream = 0});
  }

  DecodeTimes measure(Index tokens) {
    const Cache cache = filled(tokens);
    const Scoring scoring{1 / std::sqrt(static_cast<double>(options_.dim)), Mask::causal()};
    MpiAllToAll link(comm_);
    std::array<std::vector<double>, 4> seconds;
    for (Index i = -1; i < options_.repetitions; ++i) {  // the first warms up
      const double plain = seconds_of([&] { read_ ^= read_cache(cache, cpu_.threads); });
      const double attend = seconds_of([&] {
        (void)attend_to_cache<CpuEngine<float>>(View<const float>(q_.view()), cache, scoring, cpu_);
      });
      const double waited = link.statistics().exposed_seconds;
      const double token = seconds_of(
          [&] { (void)decode<CpuEngine<float>>(link, View<const float>(q_.view()), cache, scoring, cpu_); });
      if (i < 0) continue;
      seconds[0].push_back(token);
      seconds[1].push_back(max_over_ranks(comm_, link.statistics().exposed_seconds - waited));
      seconds[2].push_back(attend);
      seconds[3].push_back(plain);
    }
    const Index bytes = 2 * sizeof(float), own = cache.shape().size(),
                all = options_.kv().with_seq(tokens).size();
    DecodeTimes times{tokens, most(bytes * own),
                      most(link.statistics().bytes_sent / (options_.repetitions + 1)),
                      most(comm_.size() > 1 ? bytes * (all - own) : 0)};
    std::tie(times.token, times.messages, times.attend, times.plain) =
        std::tuple(median(seconds[0]), median(seconds[1]), median(seconds[2]), median(seconds[3]));
    return times;
  }
  /// So that no read is left out.
  [[nodiscard]] std::uint64_t read() const { return read_; }

 private:
  [[nodiscard]] Index most(Index value) const { return -min_over_ranks(comm_, -value); }

  [[nodiscard]] double seconds_of(auto work) {
    activity_.enter(Phase::compute);
    barrier(comm_);
    const auto begin = std::chrono::steady_clock::now();
    work();
    return max_over_ranks(comm_,
                          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }

  /// Tokens that repeat 64 random ones: random numbers take longer than the reading of memory.
  [[nodiscard]] Cache filled(Index tokens) {
    constexpr Index different = 64;
    const Shape kv = options_.kv();
    Tensor<float> some(kv.with_seq(different)), token(kv.with_seq(1));
    fill_random(some.view(), {.stream = 1});
    const View<const float> none(nullptr, kv.with_seq(0));
    Cache cache(tokens, Placement(PlacementKind::striped, 0, comm_.size()), comm_.rank(), none, none);
    while (cache.size() < tokens) {
      copy_tokens(some.view(), cache.size() % different, 1, token.view(), 0);
      (void)cache.append(token, token);
      activity_.beat();
    }
    return cache;
  }

  const Communicator& comm_;
  const BenchDecodeOptions& options_;
  CpuOptions cpu_;
  Activity& activity_;
  Tensor<float> q_;
  std::uint64_t read_ = 0;
};

std::string to_text(const DecodeBenchReport& report, const BenchDecodeOptions& options) {
  std::string text = "Decoding, one token against a cache, on " + counted(report.ranks, "rank") +
                     "; shapes are [B, H, S, D]\n";
  text += "  q       " + to_string(options.q()) + "\n";
  text += "  k, v    " + to_string(options.kv()) + ", float32, sharded\n";
  text += std::string("  kernel  fast, ") + name_of(report.cpu.isa) + ", " +
          counted(report.cpu.threads, "thread") + " per rank\n\n";
  Table table({"tokens", "a token", "tokens/s", "messages", "read", "GB/s", "plain read", "% of it", "sent",
               "by a ring"});
  for (const DecodeTimes& times : report.lengths)
    table.row({std::to_string(times.tokens), human_seconds(times.token),
               format("%.4g", static_cast<double>(options.batch) / times.token),
               human_seconds(times.messages), human_bytes(times.cache_bytes),
               format("%.2f", times.read_rate() * 1e-9), format("%.2f", times.plain_rate() * 1e-9),
               format("%.0f", 100 * times.plain / times.attend), human_bytes(times.sent_bytes),
               human_bytes(times.ring_bytes)});
  return text + table.text() +
         format(
             "\n  Medians of %lld, of the slowest rank; read and sent by a rank for one token and layer.\n",
             static_cast<long long>(options.repetitions));
}

std::string to_json(const DecodeBenchReport& report, const BenchDecodeOptions& options) {
  nlohmann::ordered_json json{{"batch", options.batch},        {"heads", options.heads},
                              {"kv_heads", options.kv_heads},  {"dim", options.dim},
                              {"ranks", report.ranks},         {"isa", name_of(report.cpu.isa)},
                              {"threads", report.cpu.threads}, {"repetitions", options.repetitions}};
  for (const DecodeTimes& times : report.lengths)
    json["lengths"].push_back({{"tokens", times.tokens},
                               {"token_seconds", times.token},
                               {"message_seconds", times.messages},
                               {"attend_seconds", times.attend},
                               {"plain_read_seconds", times.plain},
                               {"cache_bytes", times.cache_bytes},
                               {"read_bytes_per_second", times.read_rate()},
                               {"plain_bytes_per_second", times.plain_rate()},
                               {"sent_bytes", times.sent_bytes},
                               {"ring_bytes", times.ring_bytes}});
  return json.dump(2) + "\n";
}

}  // namespace

void declare_bench_decode_options(CommandLine& command, BenchDecodeOptions& options) {
  command.section("Problem");
  command.option("--seq", options.seq,
                 "Tokens of the cache, of all ranks together; 1/8 and 1/64 of them are also measured",
                 any_length);
  command.option("--batch", options.batch, "Batch B: one new token of each sequence");
  command.option("--heads", options.heads, "Query heads Hq");
  command.option("--kv-heads", options.kv_heads, "KV heads");
  command.option("--dim", options.dim, "Head dim D");
  command.section("Measurement");
  command.option("--repetitions", options.repetitions, "Tokens of each length", {1, 10000});
  command.flag("--json", options.json, "Print the report as one JSON object instead of text");
  declare_cpu_options(command, options);
  declare_job_options(command, options);
  command.footer(decode_notes);
}

void validate(const BenchDecodeOptions& options) {
  validate_device(options);
  require_countable(options.q().with_seq(options.seq), "the problem has");
  if (options.heads % options.kv_heads != 0)
    throw InputError("--kv-heads " + std::to_string(options.kv_heads) + " must divide --heads, " +
                     std::to_string(options.heads));
}

int bench_decode_command(const Communicator& comm, const BenchDecodeOptions& options, Activity& activity) {
  const Index tokens = Placement(PlacementKind::striped, options.seq, comm.size()).max_tokens();
  require_host_memory(comm, 2 * static_cast<Index>(sizeof(float)) * options.kv().with_seq(tokens).size());
  DecodeBenchReport report{comm.size(), cpu_options(comm, options), {}};
  DecodeBench bench(comm, options, report.cpu, activity);
  for (const Index part : {64, 8, 1})
    if (options.seq >= part) report.lengths.push_back(bench.measure(options.seq / part));
  (void)max_over_ranks(comm, static_cast<double>(bench.read()));
  if (comm.rank() == 0)
    std::fputs((options.json ? to_json(report, options) : to_text(report, options)).c_str(), stdout);
  return 0;
}

}  // namespace ring_attention
