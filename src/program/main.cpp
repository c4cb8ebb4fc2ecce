// ring-attention: the command line. Under mpirun every rank parses, rank 0 prints, all end with one code.
#include <cstdio>

#include "program/bench/command.hpp"
#include "program/example/command.hpp"
#include "program/run/command.hpp"

using namespace ring_attention;

namespace {

struct Program {
  CommandLine words{"ring-attention",
                    "Exact attention over a sequence that is sharded on the ranks of an MPI job.\n"
                    "Each rank keeps its queries; keys and values go round a ring."};
  CommandLine& run_words =
      words.command("run", "Attention of your arrays (or random ones); start with mpirun -n N");
  CommandLine& bench_words =
      words.command("bench", "Times of a ring on these machines, beside what a model says");
  CommandLine& example_words = words.command("example", "Make a small real problem from the bytes of a text");
  RunOptions run;
  BenchOptions bench;
  ExampleOptions example;

  Program() {
    declare_run_options(run_words, run);
    declare_bench_options(bench_words, bench);
    declare_example_options(example_words, example);
  }
};

int ring_attention_main(int argc, char** argv, const Communicator& comm, Activity& activity,
                        Watchdog& watchdog) {
  Program program;
  if (const std::optional<std::string> help = program.words.parse(comm, argc, argv)) {
    if (comm.rank() == 0) std::fputs(help->c_str(), stdout);
    return 0;
  }
  if (program.run_words.chosen()) return run_command(comm, program.run, activity, watchdog);
  if (program.bench_words.chosen()) return bench_command(comm, program.bench, activity, watchdog);
  watchdog.expect(std::chrono::hours(24 * 365), comm.rank());  // rank 0 works, the others only wait
  agree(comm, [&] {
    if (comm.rank() == 0) example_command(program.example);
  });
  return 0;
}

/// Seconds of --timeout. A command line that makes no sense is left to be reported by all ranks together.
double timeout_of(int argc, char** argv) {
  try {
    Program program;
    if (program.words.parse(argc, argv)) return RunOptions{}.timeout;
    if (program.run_words.chosen()) {
      validate(program.run);
      return program.run.timeout;
    }
    if (program.bench_words.chosen()) {
      validate(program.bench);
      return program.bench.timeout;
    }
  } catch (const InputError&) {
  }
  return RunOptions{}.timeout;
}

}  // namespace

int main(int argc, char** argv) {
  Activity activity;
  // From before MPI_Init until after MPI_Finalize: a rank may stop, and its peers wait, in both.
  Watchdog watchdog(activity, std::chrono::duration<double>(timeout_of(argc, argv)), -1);
  return mpi_main(argc, argv, [&](const Communicator& comm) {
    const int code = ring_attention_main(argc, argv, comm, activity, watchdog);
    activity.enter(Phase::end);
    return code;
  });
}
