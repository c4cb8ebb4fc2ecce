#include "io/trace_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>

#include "io/whole_file.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/mpi/agreement.hpp"

namespace ring_attention {
namespace {

namespace fs = std::filesystem;

/// The value of every rank. Collective.
template <class T>
std::vector<T> of_all(AllToAll& all, const T& value) {
  std::vector<T> values(static_cast<std::size_t>(all.size()));
  Pieces pieces{{values.size(), std::as_bytes(std::span(&value, 1))}, {}};
  for (T& one : values) pieces.receive.push_back(std::as_writable_bytes(std::span(&one, 1)));
  all.all_to_all(pieces);
  return values;
}

/// Every rank's text, on rank `to`, or on all; nothing elsewhere. Collective.
std::vector<std::string> texts_of_all(AllToAll& all, const std::string& own, std::optional<int> to = {}) {
  const std::vector<std::size_t> sizes = of_all(all, own.size());
  std::vector<std::string> texts;
  Pieces pieces;
  for (int rank = 0; rank < all.size(); ++rank) {
    const bool gets = !to || *to == rank;
    pieces.send.push_back(gets ? std::as_bytes(std::span(own)) : std::span<const std::byte>());
    if (!to || *to == all.rank()) texts.emplace_back(sizes[static_cast<std::size_t>(rank)], ' ');
  }
  pieces.receive.resize(sizes.size());
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    pieces.receive[rank] = std::as_writable_bytes(std::span(texts[rank]));
  all.all_to_all(pieces);
  return texts;
}

void agree(AllToAll& all, const std::function<void()>& validate) {
  const auto unite = [&all](std::span<std::byte> bytes) {
    const std::string own(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (const std::string& text : texts_of_all(all, own))
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] |= static_cast<std::byte>(text[i]);
  };
  ring_attention::agree(all.rank(), all.size(), unite, validate);
}

/// Moves a value from one rank to another. Collective.
template <class T>
void pass(AllToAll& all, T& value, int from, int to) {
  const auto ranks = static_cast<std::size_t>(all.size());
  Pieces pieces{{ranks, std::span<const std::byte>()}, {ranks, std::span<std::byte>()}};
  const std::span one(&value, 1);
  if (all.rank() == from) pieces.send[static_cast<std::size_t>(to)] = std::as_bytes(one);
  if (all.rank() == to) pieces.receive[static_cast<std::size_t>(from)] = std::as_writable_bytes(one);
  all.all_to_all(pieces);
}

/// On rank 0: the offset of the clock of rank `other`. Collective.
ClockOffset offset_of(AllToAll& all, int other, double (*now)()) {
  ClockOffset best{0, std::numeric_limits<double>::infinity()};
  for (int round = 0; round < 64; ++round) {
    double begin = now();
    pass(all, begin, 0, other);
    double theirs = now();
    pass(all, theirs, other, 0);
    const double end = now();
    if (end - begin < best.round_trip) best = {(begin + end) / 2 - theirs, end - begin};
  }
  return best;
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; }) &&
         (text.size() == 1 || text.front() != '0');
}

InputError cannot_write(const std::string& file) {
  return InputError{"cannot write " + file + ": " + std::strerror(errno)};
}

}  // namespace

std::vector<int> machines_of(AllToAll& all) {
  std::array<char, 256> name{};
  (void)gethostname(name.data(), name.size() - 1);
  const auto names = of_all(all, name);
  std::vector<int> lowest;
  for (const auto& one : names)
    lowest.push_back(static_cast<int>(std::ranges::find(names, one) - names.begin()));
  return lowest;
}

ClockOffset clock_offset(AllToAll& all, const std::vector<int>& machines, double (*now)()) {
  std::vector<ClockOffset> offsets(machines.size());
  for (std::size_t rank = 1; rank < machines.size(); ++rank) {
    const int lowest = machines[rank];
    offsets[rank] = lowest == static_cast<int>(rank) ? offset_of(all, lowest, now)
                                                     : offsets[static_cast<std::size_t>(lowest)];
  }
  for (int to = 1; to < all.size(); ++to) pass(all, offsets[static_cast<std::size_t>(to)], 0, to);
  return offsets[static_cast<std::size_t>(all.rank())];
}

TraceFile::TraceFile(std::unique_ptr<AllToAll> all, const std::string& file, std::vector<int> machines)
    : all_(std::move(all)), file_(file), own_file_(format("%s.rank%d", file.c_str(), all_->rank())) {
  const int rank = all_->rank();
  if (machines.empty()) machines = machines_of(*all_);
  const ClockOffset offset = clock_offset(*all_, machines);
  agree(*all_, [&] {
    if (machines[static_cast<std::size_t>(rank)] == rank) remove_leftovers();
  });
  agree(*all_, [&] { open(); });
  const double start = of_all(*all_, clock_seconds()).front();
  const auto write = [this](const std::string& text) {
    (void)std::fwrite(text.data(), 1, text.size(), out_.get());
  };
  trace_.emplace(rank, all_->size(), write, offset, start);
}

void TraceFile::remove_leftovers() const {
  const fs::path path(file_), folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code ignored;
  if (!path.has_filename() || fs::is_directory(path, ignored)) return;
  const std::string prefix = path.filename().string() + ".rank";
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix) && is_number(std::string_view(name).substr(prefix.size())))
      found.push_back(entry.path());
  }
  if (const Index removed = std::ranges::count_if(found, remove_file); removed > 0)
    std::fprintf(stderr, "%s: removed %s FILE.rankN, which a killed job left\n", file_.c_str(),
                 counted(removed, "file").c_str());
}

void TraceFile::open() {
  std::error_code ignored;  // if it cannot be looked at, it cannot be opened
  if (fs::is_directory(file_, ignored))
    throw InputError(file_, "is a directory where a file has to go", "give another");
  out_.reset(std::fopen(own_file_.c_str(), "wb"));
  if (out_ == nullptr) throw cannot_write(own_file_);
  (void)std::setvbuf(out_.get(), nullptr, _IONBF, 0);  // each event goes to the file when it happens
}

void TraceFile::join() {
  std::string own;
  agree(*all_, [&] {
    if (std::ferror(out_.get()) != 0) throw cannot_write(own_file_);
    own = read_file(own_file_).bytes;
  });
  out_.reset();
  const std::vector<std::string> texts = texts_of_all(*all_, own, 0);
  agree(*all_, [&] {
    if (texts.empty()) return;  // not on rank 0
    std::string all = "[";
    for (const std::string& text : texts) all += (all.size() > 1 ? "," : "") + text.substr(1);
    write_file(file_, all, "\n]\n");
  });
  std::error_code ignored;
  fs::remove(own_file_, ignored);
}

}  // namespace ring_attention
