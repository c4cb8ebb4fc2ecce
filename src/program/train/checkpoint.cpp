#include "program/train/checkpoint.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "program/output_directory.hpp"
#include "program/train/report.hpp"
#include "program/train/saved_numbers.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/io/npy_file.hpp"

namespace ring_attention {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char *format_name = "ring-attention train, 1", *description_file = "checkpoint.json";
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

/// Name, place and shape of each matrix.
Json matrices_json(const WholeLayout& whole) {
  Json all = Json::array();
  for (std::size_t array = 0; array < whole.arrays.size(); ++array) {
    const bool layer = array + 1 < whole.arrays.size();
    for (const model::Parameter& p : whole.arrays[array].parameters())
      all.push_back({{"name", (layer ? "layer " + std::to_string(array) + " " : "") + p.name},
                     {"begin", whole.begins[array] + p.begin},
                     {"shape", {p.all_rows, p.all_columns}}});
  }
  return all;
}

/// Waits until a file or a directory is on the disk.
void synchronise(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY);
  const bool done = file >= 0 && (fsync(file) == 0 || errno == EINVAL);  // EINVAL: nothing to wait for
  const std::string reason = std::generic_category().message(errno);
  if (file >= 0) close(file);
  if (!done)
    throw InputError(path, "cannot be written: " + reason, "check the directory, and the space on the disk");
}

/// The checkpoints in a directory, in the order of their steps.
std::map<Index, std::string> checkpoints_in(const std::string& directory) {
  std::map<Index, std::string> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename();
    Index steps = -1;
    const char* end = name.data() + name.size();
    if (name.starts_with(prefix) && std::from_chars(name.data() + prefix.size(), end, steps).ptr == end)
      found.emplace(steps, entry.path());
  }
  return found;
}

/// What cannot be resumed, and what to do.
[[noreturn]] void refuse(const std::string& checkpoint, const std::string& culprit,
                         const std::string& problem) {
  throw InputError(culprit, problem, "remove " + checkpoint + " to begin anew, or give another --checkpoint");
}

/// Throws unless the file has exactly this many numbers. \returns its header
NpyHeader checked_header(const std::string& checkpoint, const std::string& path, Dtype dtype, Index size) {
  const std::string beginning = format_npy_header(dtype, {size});
  NpyHeader header{dtype, {size}, std::ssize(beginning)};
  std::error_code failed;
  const auto bytes = static_cast<Index>(fs::file_size(path, failed));
  if (failed) refuse(checkpoint, path, "cannot be read: " + failed.message());
  if (bytes != header.file_bytes())
    refuse(
        checkpoint, path,
        "has " + std::to_string(bytes) + " bytes where the model has " + std::to_string(header.file_bytes()));
  std::string found(beginning.size(), '\0');
  std::ifstream(path, std::ios::binary).read(found.data(), std::ssize(found));
  if (found != beginning) refuse(checkpoint, path, "is not an array of this model");
  return header;
}

/// The first entry that differs: its name and its value there.
void require_same_training(const std::string& checkpoint, const Json& there, const Json& here) {
  const Json before = there.flatten(), now = here.flatten();
  for (const auto& [key, value] : now.items()) {
    if (before.contains(key) && before[key] == value) continue;
    std::string name = key.substr(1);
    std::ranges::replace(name, '/', ' ');
    throw InputError(checkpoint,
                     "is of another training: " + name + " is " +
                         (before.contains(key) ? before[key].dump() : "missing") + " there and " +
                         value.dump() + " here",
                     "give the flags of that training, or another --checkpoint");
  }
}

/// The text of checkpoint.json.
std::string description_of(const std::string& training, Index steps, const WholeLayout& whole,
                           const Curve& curve) {
  const Json description{{"format", format_name},
                         {"training", Json::parse(training)},
                         {"steps", steps},
                         {"matrices", matrices_json(whole)},
                         {"curve", curve_json(curve)}};
  return description.dump(1) + "\n";
}

/// The curve in a checkpoint.json, a point a step.
/// \param training  what it must say of the training, as text
Curve described_curve(const std::string& checkpoint, const std::string& training) {
  const std::string path = checkpoint + "/" + description_file;
  std::ifstream file(path);
  if (!file) refuse(checkpoint, path, "cannot be read: " + std::generic_category().message(errno));
  Curve curve;
  Index steps = 0;
  try {
    const Json found = Json::parse(file);
    if (found.at("format") != format_name) refuse(checkpoint, path, "is not a checkpoint of `train`");
    require_same_training(checkpoint, found.at("training"), Json::parse(training));
    steps = found.at("steps");
    for (const Json& point : found.at("curve"))
      curve.push_back({point.at("step"), point.at("length"), point.at("loss"), point.at("accuracy")});
  } catch (const Json::exception&) {
    refuse(checkpoint, path, "is truncated, or is not a checkpoint of `train`");
  }
  if (std::ssize(curve) != steps) refuse(checkpoint, path, "has a curve of another number of steps");
  return curve;
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
    curve = described_curve(last_, training_);
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
    const std::string file = next_ + "/" + description_file;
    std::ofstream out(file, std::ios::trunc);
    out << description << std::flush;
    if (!out)
      throw InputError(file, "cannot be written: " + std::generic_category().message(errno),
                       "check the directory, and the space on the disk");
    out.close();
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
