// ring-attention: the command line. Under mpirun every rank parses, rank 0 prints, all end with one code.
#include <cstdio>

#include "ring_attention/app/example_command.hpp"
#include "ring_attention/app/run_command.hpp"

using namespace ring_attention;

namespace {

int ring_attention_main(int argc, char** argv, const Communicator& comm) {
  CommandLine program("ring-attention",
                      "Exact attention over a sequence that is sharded on the ranks of an MPI job.\n"
                      "Each rank keeps its queries; keys and values go round a ring.");
  RunOptions run;
  CommandLine& run_words =
      program.command("run", "Attention of your arrays (or random ones); start with mpirun -n N");
  declare_run_options(run_words, run);
  ExampleOptions example;
  CommandLine& example_words =
      program.command("example", "Make a small real problem from the bytes of a text");
  declare_example_options(example_words, example);

  if (const std::optional<std::string> help = program.parse(comm, argc, argv)) {
    if (comm.rank() == 0) std::fputs(help->c_str(), stdout);
    return 0;
  }
  if (run_words.chosen()) return run_command(comm, run);
  agree(comm, [&] {
    if (comm.rank() == 0) example_command(example);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv,
                  [&](const Communicator& comm) { return ring_attention_main(argc, argv, comm); });
}
