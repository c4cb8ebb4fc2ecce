// The program of a GPU lesson in a build without CUDA or NCCL: it says what is missing, and the lesson is skipped.
#include "common/lesson.hpp"

using namespace ring_attention;

namespace {

int skipped_lesson(int argc, char** argv, const Communicator* comm) {
  Lesson lesson(LESSON_NUMBER, LESSON_NAME,
                "This lesson needs a GPU, and this program was built without " LESSON_MISSES ".", comm);
  lesson.needs_gpu("this program was built without " LESSON_MISSES);
  lesson.offer_mutants({});
  bool share = false;
  if (comm != nullptr) lesson.options().flag("--share-gpu", share, "Has no effect without a GPU");
  return lesson.parse(argc, argv) ? 1 : 0;  // false: it is skipped
}

}  // namespace

int main(int argc, char** argv) {
#if LESSON_NEEDS_NCCL
  return mpi_main(argc, argv, [&](const Communicator& comm) { return skipped_lesson(argc, argv, &comm); });
#else
  return serial_main([&] { return skipped_lesson(argc, argv, nullptr); });
#endif
}
