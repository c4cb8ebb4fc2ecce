// ring-attention: the command line. Every rank parses it, rank 0 prints, and all end with one exit code.
#include <cstdio>
#include <exception>

#include "program/bench/options.hpp"
#include "program/example/command.hpp"
#include "program/plan/command.hpp"
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
      words.command("bench", "Times of a ring on these machines, and what a model predicts");
  CommandLine& example_words = words.command("example", "Make a small real problem from the bytes of a text");
  CommandLine& plan_words =
      words.command("plan", "What a model and a context need on machines that are not here");
  RunOptions run;
  BenchOptions bench;
  ExampleOptions example;
  PlanOptions plan;
  std::optional<std::string> help;
  std::exception_ptr bad_input;  // reported by all ranks together, after MPI_Init

  Program(int argc, char** argv) {
    declare_run_options(run_words, run);
    declare_bench_options(bench_words, bench);
    declare_example_options(example_words, example);
    declare_plan_options(plan_words, plan);
    try {
      help = words.parse(argc, argv);
      if (help) return;
      if (run_words.chosen()) validate(run);
      if (bench_words.chosen()) validate(bench);
      if (plan_words.chosen()) validate(plan);
    } catch (const InputError&) {
      bad_input = std::current_exception();
    }
  }

  /// Seconds of --timeout, which the two commands have.
  [[nodiscard]] std::chrono::duration<double> timeout() const {
    if (bad_input) return std::chrono::duration<double>(DeviceOptions{}.timeout);
    return std::chrono::duration<double>(bench_words.chosen() ? bench.timeout : run.timeout);
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
  const bool bench = program.bench_words.chosen();
  require_promised_ranks(comm, bench ? program.bench.ranks : program.run.ranks);
  watchdog.expect(program.timeout(), comm.rank());
  return bench ? bench_command(comm, program.bench, activity) : run_command(comm, program.run, activity);
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
