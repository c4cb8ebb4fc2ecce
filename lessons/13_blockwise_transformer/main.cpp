// Lesson 13: a whole layer, sharded. The idea is in layer.hpp; this program trains a model of one layer with a ring,
// asks it with less in sight, holds the idea's layer against one process on every mesh, and shows which tests pass for
// which mistakes.
#include LESSON_IDEA

#include "cost.hpp"
#include "failure.hpp"
#include "memory.hpp"
#include "weak_tests.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_13;

namespace {

struct Flags {
  std::string train = "short";
  Index rotary = 0;

  [[nodiscard]] bool full() const { return train == "full"; }
  [[nodiscard]] Curriculum stages() const {
    return full() ? line_retrieval_curriculum() : Curriculum{{64, 64, 150}};
  }
  [[nodiscard]] Index labels() const { return full() ? 2048 : 768; }  // answers of an accuracy
};

void show_curves(Lesson& lesson, const Curves& curves) {
  Table table({"steps", "S", "loss", "accuracy"});
  constexpr std::size_t some = 25;
  for (std::size_t begin = 0; begin + some <= curves.loss.size(); begin += some) {
    double loss = 0, accuracy = 0;
    for (std::size_t step = begin; step < begin + some; ++step) {
      loss += curves.loss[step] / some;
      accuracy += curves.accuracy[step] / some;
    }
    table.row({format("%d to %d", static_cast<int>(begin), static_cast<int>(begin + some - 1)),
               std::to_string(curves.lengths[begin]), format("%.4f", loss), format("%.4f", accuracy)});
  }
  lesson.print("training", table);
}

// The training, and the failure that it needs: what cannot be seen cannot be answered.
std::string show_training(Lesson& lesson, const Communicator& comm, const Flags& flags) {
  Trainee trainee(comm, lesson.seed(), flags.rotary);
  lesson.heading("The training: line retrieval, one layer, a ring of " + counted(comm.size(), "rank"));
  const double begin = MPI_Wtime();
  const Curves curves = trainee.train(flags.stages());
  show_curves(lesson, curves);
  lesson.say(format("  %d steps of 4096 tokens: %s", static_cast<int>(curves.loss.size()),
                    human_seconds(MPI_Wtime() - begin).c_str()));

  lesson.heading("The failure: a model that does not see all tokens");
  const std::vector<Index> lengths =
      flags.full() ? std::vector<Index>{64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
                   : std::vector<Index>{64, 256, 1024};
  const std::vector<Index> asked = flags.full() ? std::vector<Index>{1024, 4096} : std::vector<Index>{256};
  show_failure(lesson, trainee, asked, flags.labels());
  const auto contexts = show_contexts(lesson, trainee, lengths, flags.full() ? 1024 : 128, flags.labels());
  const auto answered = [&](Index seq, std::size_t column) {
    for (const std::vector<double>& row : contexts)
      if (row[0] == static_cast<double>(seq)) return row[column];
    return 0.0;
  };
  const auto accuracy_at = [&](Index seq) { return answered(seq, 1); };
  if (flags.full()) {
    lesson.check("at S = 1024 at least 0.995 are right", accuracy_at(1024) >= 0.995);
    lesson.check("at S = 4096 at least 0.99 are right", accuracy_at(4096) >= 0.99);
    lesson.check("at S = 16384, four times the longest of the training, at least 0.97 are right",
                 accuracy_at(16384) >= 0.97);
  } else {
    lesson.check("at S = 256, four times the length of the training, at least 0.97 are right",
                 accuracy_at(256) >= 0.97);
  }
  lesson.heading("Mistakes that this task does not show, S = 256");
  show_blind_spots(lesson, comm, trainee, 256, flags.labels());
  lesson.heading("The cost: throughput of the training");
  show_cost(lesson, comm, trainee, flags.stages(), curves);
  const Index longest = asked.back();
  return format("S = %d: %.3f, alone %.3f", static_cast<int>(longest), accuracy_at(longest),
                answered(longest, 2));
}

int transformer_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "13", "blockwise_transformer",
      "Except in attention, a layer of a transformer treats each token by itself. So a ring of ranks\n"
      "trains on sequences that none of them could hold, and one sum over the ranks makes the gradients\n"
      "right.",
      &comm);
  Flags flags;
  lesson.options().choice(
      "--train", flags.train, {"none", "short", "full"},
      "short: 150 steps of 64 tokens, evaluated up to 1024 (seconds); full: up to 4096 tokens, evaluated "
      "up to 16384 (a minute on two cores)");
  lesson.options().option("--rotary", flags.rotary,
                          "Columns of a head (of 32) that turn with the position; even", {0, 32});
  lesson.offer_mistakes(every_mistake);
  if (!lesson.parse(argc, argv)) return 0;
  if (flags.rotary % 2 == 1) throw AgreedError("--rotary: columns turn in pairs: use an even number");
  const Mistake mistake = lesson.mistake_of(every_mistake);
  const Setup setup{.batch = std::max(4, comm.size()), .seed = lesson.seed()};
  std::string showed = counted(comm.size(), "rank");

  lesson.heading("The idea: a layer on every mesh of these ranks, and one process");
  const bool right = check_meshes(lesson, comm, setup, mistake);
  if (!right || mistake != Lesson::no_mistake)
    return lesson.finish(showed);  // the rest does not use this layer
  if (comm.size() > 1 && comm.size() % 2 == 0) {
    lesson.heading("Mistakes, and tests that pass for them");
    show_mistakes(lesson, comm, setup);
  }
  if (flags.train != "none") showed += ": " + show_training(lesson, comm, flags);
  lesson.heading("The cost: memory");
  show_layer_memory(lesson, comm);
  show_step_memory(lesson, comm);
  return lesson.finish(showed);
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return transformer_lesson(argc, argv, comm); });
}
