// ring-attention: the command line. Every rank parses it, rank 0 prints, and all end with one exit code.
#include <cstdio>
#include <exception>

#include "program/bench/decode.hpp"
#include "program/bench/options.hpp"
#include "program/decode/options.hpp"
#include "program/example/command.hpp"
#include "program/plan/command.hpp"
#include "program/run/command.hpp"
#include "program/train/options.hpp"

using namespace ring_attention;

namespace {

struct Program {
  CommandLine words{"ring-attention",
                    "Exact attention over a sequence that is sharded on the ranks of an MPI job.\n"
                    "Each rank keeps its queries; keys and values go round a ring."};
  CommandLine& run_words =
      words.command("run", "Attention of your arrays (or random ones); start with mpirun -n N");
  CommandLine& bench_words =
      words.command("bench", "Times of a ring on these machines, and what a model predicts");
  CommandLine& example_words = words.command("example", "Make a small real problem from the bytes of a text");
  CommandLine& plan_words =
      words.command("plan", "What a model and a context need on machines that are not here");
  CommandLine& decode_words =
      words.command("decode", "A prompt, then its next tokens one by one against a cache that is sharded");
  CommandLine& train_words =
      words.command("train", "Train a small transformer, sharded four ways, on a task of long contexts");
  RunOptions run;
  BenchOptions bench;
  CommandLine* bench_decode_words = nullptr;
  BenchDecodeOptions bench_decode;
  DecodeOptions decode;
  ExampleOptions example;
  PlanOptions plan;
  TrainOptions train;
  JobOptions defaults;
  std::optional<std::string> help;
  std::exception_ptr bad_input;  // reported by all ranks together, after MPI_Init

  Program(int argc, char** argv) {
    declare_run_options(run_words, run);
    declare_bench_options(bench_words, bench);
    bench_decode_words = &declare_bench_decode_options(bench_words, bench_decode);
    declare_example_options(example_words, example);
    declare_plan_options(plan_words, plan);
    declare_decode_options(decode_words, decode);
    declare_train_options(train_words, train);
    try {
      help = words.parse(argc, argv);
      if (help) return;
      if (run_words.chosen()) validate(run);
      if (bench_decode_words->chosen())
        validate(bench_decode);
      else if (bench_words.chosen())
        validate(bench);
      if (decode_words.chosen()) validate(decode);
      if (plan_words.chosen()) validate(plan);
      if (train_words.chosen()) validate(train);
    } catch (const InputError&) {
      bad_input = std::current_exception();
    }
  }

  /// Those of the command, or the defaults.
  [[nodiscard]] const JobOptions& job() const {
    if (bad_input) return defaults;
    if (bench_decode_words->chosen()) return bench_decode;
    if (bench_words.chosen()) return bench;
    if (decode_words.chosen()) return decode;
    if (train_words.chosen()) return train;
    return run_words.chosen() ? run : defaults;
  }
  [[nodiscard]] std::chrono::duration<double> timeout() const {
    return std::chrono::duration<double>(job().timeout);
  }
};

int ring_attention_main(const Program& program, const Communicator& comm, Activity& activity,
                        Watchdog& watchdog) {
  agree(comm, [&] {
    if (program.bad_input) std::rethrow_exception(program.bad_input);
  });
  program.words.require_same_on_ranks(comm, program.help.has_value());
  if (program.help) {
    if (comm.rank() == 0) std::fputs(program.help->c_str(), stdout);
    return 0;
  }
  if (program.example_words.chosen() || program.plan_words.chosen()) {
    watchdog.expect(std::chrono::hours(24 * 365), comm.rank());  // only rank 0 works
    agree(comm, [&] {
      if (comm.rank() != 0) return;
      if (program.plan_words.chosen())
        plan_command(program.plan);
      else
        example_command(program.example);
    });
    return 0;
  }
  require_promised_ranks(comm, program.job().ranks);
  watchdog.expect(program.timeout(), comm.rank());
  if (program.bench_decode_words->chosen()) return bench_decode_command(comm, program.bench_decode, activity);
  if (program.decode_words.chosen()) return decode_command(comm, program.decode, activity);
  if (program.bench_words.chosen()) return bench_command(comm, program.bench, activity);
  if (program.train_words.chosen()) return train_command(comm, program.train, activity);
  return run_command(comm, program.run, activity);
}

}  // namespace

int main(int argc, char** argv) {
  const Program program(argc, argv);
  Activity activity;
  // Starts before MPI_Init and ends after MPI_Finalize: a peer can stop in both, and this rank then waits.
  Watchdog watchdog(activity, program.timeout(), -1);
  return mpi_main(argc, argv, [&](const Communicator& comm) {
    const int code = ring_attention_main(program, comm, activity, watchdog);
    activity.enter(Phase::end);
    return code;
  });
}
