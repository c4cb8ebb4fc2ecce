#include "program/train/checkpoint.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "io/npy_file.hpp"
#include "io/whole_file.hpp"
#include "program/output_directory.hpp"
#include "program/train/checkpoint_description.hpp"
#include "program/train/report.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "step_";

/// The arrays of a checkpoint, and where a rank has its part of them.
template <class T>
struct SavedArray {
  const char* file;
  KeptNumbers<T> kept;
};
template <class T>
std::array<SavedArray<T>, 3> saved_arrays(model::Transformer<T>& model, model::AdamW<T>& adam) {
  return {{{"parameters.npy", [&](std::size_t array) { return model.weights().values(array); }},
           {"first_moment.npy", [&](std::size_t array) { return adam.first(array); }},
           {"second_moment.npy", [&](std::size_t array) { return adam.second(array); }}}};
}

/// Waits until a file or a directory is on the disk.
void synchronise(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY);
  const bool done = file >= 0 && (fsync(file) == 0 || errno == EINVAL);  // EINVAL: nothing to wait for
  const std::string reason = std::generic_category().message(errno);
  if (file >= 0) close(file);
  if (!done) throw InputError(path, "cannot be written: " + reason, check_disk);
}

/// The checkpoints in a directory, in the order of their steps.
std::map<Index, std::string> checkpoints_in(const std::string& directory) {
  std::map<Index, std::string> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename();
    Index steps = -1;
    if (!name.starts_with(prefix)) continue;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, steps);
    if (error == std::errc{} && stop == end && steps > 0) found.emplace(steps, entry.path());
  }
  return found;
}

/// Throws unless the file has exactly this many numbers. \returns its header
NpyHeader checked_header(const std::string& checkpoint, const std::string& path, Dtype dtype, Index size) {
  const std::string beginning = format_npy_header(dtype, {size}), remedy = begin_anew(checkpoint);
  NpyHeader header{dtype, {size}, std::ssize(beginning)};
  const FileBytes file = read_file(path, std::ssize(beginning), remedy);
  if (file.size != header.file_bytes())
    throw InputError(path,
                     "has " + std::to_string(file.size) + " bytes where the model has " +
                         std::to_string(header.file_bytes()),
                     remedy);
  if (file.bytes != beginning) throw InputError(path, "is not an array of this model", remedy);
  return header;
}

}  // namespace

Checkpoints::Checkpoints(const Communicator& comm, const TrainOptions& options)
    : comm_(comm),
      directory_(options.checkpoint),
      next_(directory_ + "/step.part"),
      training_(training_json(options).dump()) {
  agree(comm, [&] {
    if (comm.rank() != 0) return;
    make_output_directory(directory_, "--checkpoint");
    lock_.emplace(directory_);
    std::error_code failed;
    fs::remove_all(next_, failed);
    fs::create_directory(next_, failed);
    if (failed)
      throw InputError("--checkpoint " + directory_, "cannot be written: " + failed.message(),
                       "give another, or check what is in the way");
    const std::map<Index, std::string> found = checkpoints_in(directory_);
    if (!found.empty()) last_ = found.rbegin()->second;
  });
  broadcast(comm, last_);
}

Checkpoints::~Checkpoints() {
  std::error_code ignored;
  if (comm_.rank() == 0) fs::remove_all(next_, ignored);
}

std::string Checkpoints::what_stays() const {
  return last_.empty() ? "; there is no checkpoint" : "; the last checkpoint, " + last_ + ", stays";
}

template <class T>
Curve Checkpoints::load(model::Transformer<T>& model, model::AdamW<T>& adam) const {
  const WholeLayout whole(model.shape());
  Curve curve;
  NpyHeader header;  // the same of all three
  agree(comm_, [&] {
    const std::string description =
        read_file(last_ + "/" + description_file, std::numeric_limits<Index>::max(), begin_anew(last_)).bytes;
    curve = described_curve(last_, description, training_, whole);
    for (const SavedArray<T>& saved : saved_arrays(model, adam))
      header = checked_header(last_, last_ + "/" + saved.file, dtype_of<T>(), whole.size);
  });
  for (const SavedArray<T>& saved : saved_arrays(model, adam)) {
    const std::string path = last_ + "/" + saved.file;
    const SavedNumbers<T> own = saved_numbers<T>(model.weights(), whole, saved.kept, Use::read);
    Tensor<T> numbers({1, 1, count(own.there), 1});
    transfer_shard(comm_, {path, header, {1, 1, whole.size, 1}}, numbers.view(), own.there);
    const T* next = numbers.data();
    for (const std::span<T> here : own.here) {
      std::copy_n(next, here.size(), here.begin());
      next += here.size();
    }
  }
  adam.steps() = std::ssize(curve);
  return curve;
}

template <class T>
void Checkpoints::save(model::Transformer<T>& model, model::AdamW<T>& adam, const Curve& curve) {
  const WholeLayout whole(model.shape());
  try {
    agree(comm_, [&] {
      std::error_code failed;
      if (comm_.rank() == 0) fs::create_directory(next_, failed);
      if (failed) throw InputError(next_, "cannot be made: " + failed.message(), "check the disk");
    });
    for (const SavedArray<T>& saved : saved_arrays(model, adam)) {
      const SavedNumbers<T> own = saved_numbers<T>(model.weights(), whole, saved.kept, Use::write);
      Tensor<T> numbers({1, 1, count(own.there), 1});
      T* next = numbers.data();
      for (const std::span<T> here : own.here) next = std::ranges::copy(here, next).out;
      NpyWriter writer(comm_, next_ + "/" + saved.file, {1, 1, whole.size, 1}, {whole.size}, dtype_of<T>());
      writer.write(View<const T>(numbers), own.there);
      commit(comm_, {&writer});
    }
    publish(description_of(training_, adam.steps(), whole, curve),
            std::string(prefix) + std::to_string(adam.steps()));
  } catch (const AgreedError& error) {
    std::error_code ignored;
    if (comm_.rank() == 0) fs::remove_all(next_, ignored);
    throw AgreedError(error.what() + what_stays());
  }
}

void Checkpoints::publish(const std::string& description, const std::string& name) {
  const std::string path = directory_ + "/" + name;
  agree(comm_, [&] {
    if (comm_.rank() != 0) return;
    write_file(next_ + "/" + description_file, description);
    std::error_code failed;
    for (const fs::directory_entry& entry : fs::directory_iterator(next_, failed)) synchronise(entry.path());
    synchronise(next_);
    fs::rename(next_, path, failed);
    if (failed) throw InputError(path, "cannot be written: " + failed.message(), "check the directory");
    synchronise(directory_);
    // A kill may have left one more than the last. Each gets another name first: what is named step_N is complete.
    for (const auto& [steps, earlier] : checkpoints_in(directory_)) {
      if (earlier == path || !fs::exists(earlier + "/" + description_file, failed)) continue;
      fs::rename(earlier, next_, failed);
      fs::remove_all(next_, failed);
    }
  });
  last_ = path;
}

template Curve Checkpoints::load(model::Transformer<float>&, model::AdamW<float>&) const;
template Curve Checkpoints::load(model::Transformer<double>&, model::AdamW<double>&) const;
template void Checkpoints::save(model::Transformer<float>&, model::AdamW<float>&, const Curve&);
template void Checkpoints::save(model::Transformer<double>&, model::AdamW<double>&, const Curve&);

}  // namespace ring_attention
