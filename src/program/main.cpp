// ring-attention: the command line. Every rank parses it, rank 0 prints, and all end with one exit code.
#include <concepts>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "program/bench/decode.hpp"
#include "program/bench/options.hpp"
#include "program/decode/options.hpp"
#include "program/diagnose.hpp"
#include "program/example/command.hpp"
#include "program/plan/command.hpp"
#include "program/plan/placements.hpp"
#include "program/run/command.hpp"
#include "program/train/options.hpp"
#include "ring_attention/mpi/collectives.hpp"

using namespace ring_attention;

namespace {

struct Verb {
  CommandLine* words;
  std::function<int(const Communicator&, Activity&)> run;
  // of a verb for all ranks; for the others rank 0 works alone
  const JobOptions* job = nullptr;
  std::function<void()> validate = [] {};
};

/// What only rank 0 does. Its exit code, if it has one, is that of the job.
template <class Result, class Options>
auto on_rank_0(Result (*command)(const Options&)) {
  return [command](const Communicator& comm, const Options& options, Activity&) {
    int code = 0;
    agree(comm, [&] {
      if (comm.rank() != 0) return;
      if constexpr (std::is_void_v<Result>)
        command(options);
      else
        code = command(options);
    });
    broadcast(comm, code);
    return code;
  };
}

/// The verbs, each with its options, and what the command line asked for.
class Program {
 public:
  Program(int argc, char** argv) {
    add(words_, "run", "Attention of your arrays (or random ones); start with mpirun -n N",
        declare_run_options, run_command);
    CommandLine& bench = add(words_, "bench", "Times of a ring on these machines, and what a model predicts",
                             declare_bench_options, bench_command);
    add(bench, "decode", "One token against a cache, next to a plain read of the same memory",
        declare_bench_decode_options, bench_decode_command);
    add(words_, "example", "Make a small real problem from the bytes of a text", declare_example_options,
        on_rank_0(example_command));
    CommandLine& plan =
        add(words_, "plan", "What a model and a context need on machines that you do not have",
            declare_plan_options, on_rank_0(plan_command));
    add(plan, "placements", "How well each placement of tokens balances a mask, and how much it sends",
        declare_placements_options, on_rank_0(placements_command));
    add(words_, "decode", "A prompt, then its next tokens one by one against a sharded cache",
        declare_decode_options, decode_command);
    (void)words_.command("diagnose", "Find the mistake in the results of another ring");  // for --help
    add(words_, "train", "Train a small transformer, sharded four ways, on a long-context task",
        declare_train_options, train_command);
    try {
      help_ = words_.parse(argc, argv);
      if (help_) return;
      for (const Verb& verb : verbs_)
        if (verb.words->chosen()) verb_ = &verb;  // bench decode comes after bench
      verb_->validate();
    } catch (const InputError&) {
      bad_input_ = std::current_exception();
    }
  }

  [[nodiscard]] int run(const Communicator& comm, Activity& activity, Watchdog& watchdog) const {
    agree(comm, [&] {
      if (bad_input_) std::rethrow_exception(bad_input_);
    });
    words_.require_same_on_ranks(comm, help_.has_value());
    if (help_) {
      if (comm.rank() == 0) std::fputs(help_->c_str(), stdout);
      return 0;
    }
    if (comm.rank() == 0) std::fputs(words_.old_names().c_str(), stderr);
    if (verb_->job != nullptr) {
      require_promised_ranks(comm, verb_->job->ranks);
      watchdog.expect(timeout(), comm.rank());
    } else {
      watchdog.expect(std::chrono::hours(24 * 365), comm.rank());
    }
    return verb_->run(comm, activity);
  }

  /// The time-out of the verb, or the default.
  [[nodiscard]] std::chrono::duration<double> timeout() const {
    const bool has_job = !bad_input_ && verb_ != nullptr && verb_->job != nullptr;
    return std::chrono::duration<double>(has_job ? verb_->job->timeout : JobOptions().timeout);
  }

 private:
  template <class Options>
  CommandLine& add(CommandLine& parent, const std::string& name, const std::string& description,
                   void (*declare)(CommandLine&, Options&), auto command) {
    CommandLine& words = parent.command(name, description);
    const auto options = std::make_shared<Options>();
    declare(words, *options);
    Verb verb{&words, [=](const Communicator& comm, Activity& activity) {
                return command(comm, *options, activity);
              }};
    if constexpr (std::derived_from<Options, JobOptions>) {
      verb.job = options.get();
      verb.validate = [options] { validate(*options); };
    }
    verbs_.push_back(verb);
    return words;
  }

  CommandLine words_{"ring-attention",
                     "Exact attention over a sequence that is sharded over the ranks of an MPI job.\n"
                     "Each rank keeps its queries; keys and values travel around a ring."};
  std::vector<Verb> verbs_;
  const Verb* verb_ = nullptr;  // that was chosen
  std::optional<std::string> help_;
  std::exception_ptr bad_input_;  // reported by all ranks together, after MPI_Init
};

/// Rank 0 does it all; the words are not those of a C++ program.
int diagnose(int& argc, char**& argv) {
  const std::vector<std::string> words(argv + 2, argv + argc);
  return mpi_main(argc, argv, [&](const Communicator& comm) {
    int code = 0;
    agree(comm, [&] {
      if (comm.rank() == 0) code = diagnose_command(words);
    });
    broadcast(comm, code);
    return code;
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "diagnose") return diagnose(argc, argv);
  const Program program(argc, argv);
  Activity activity;
  // Starts before MPI_Init and ends after MPI_Finalize: a peer can stop in both, and this rank then waits.
  Watchdog watchdog(activity, program.timeout(), -1);
  return mpi_main(argc, argv, [&](const Communicator& comm) {
    const int code = program.run(comm, activity, watchdog);
    activity.enter(Phase::end);
    return code;
  });
}
