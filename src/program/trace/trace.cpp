#include "program/trace/trace.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "cli/command_line.hpp"
#include "io/whole_file.hpp"
#include "program/output_directory.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/mpi/host.hpp"
#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"

namespace ring_attention {
namespace {

constexpr std::array track_names{"job",        "compute",    "K,V",         "dK,dV",
                                 "all-to-all", "all-gather", "other groups"};  // in the order of Track

const char* name_of(Track track) { return track_names.at(static_cast<std::size_t>(track)); }

class MpiTraceRanks : public TraceRanks {
 public:
  explicit MpiTraceRanks(const Communicator& comm) : comm_(comm), all_(comm) {}

  [[nodiscard]] AllToAll& all() override { return all_; }
  void agree(const std::function<void()>& validate) override { ring_attention::agree(comm_, validate); }
  [[nodiscard]] Machine machine() override {
    const HostGroup host = host_group(comm_);
    return {host.rank > 0, clock_offset(comm_, host.first)};
  }

 private:
  const Communicator& comm_;
  MpiAllToAll all_;
};

/// The value of every rank. Collective.
template <class T>
std::vector<T> of_all(AllToAll& ranks, const T& value) {
  std::vector<T> values(static_cast<std::size_t>(ranks.size()));
  Pieces pieces{{values.size(), std::as_bytes(std::span(&value, 1))}, {}};
  for (T& one : values) pieces.receive.push_back(std::as_writable_bytes(std::span(&one, 1)));
  ranks.all_to_all(pieces);
  return values;
}

/// Every rank's text, on rank 0; nothing elsewhere. Collective.
std::vector<std::string> gathered(AllToAll& ranks, const std::string& own) {
  std::vector<std::string> texts;
  const std::vector<std::size_t> sizes = of_all(ranks, own.size());
  Pieces pieces{{sizes.size(), std::span<const std::byte>()}, {sizes.size(), std::span<std::byte>()}};
  pieces.send[0] = std::as_bytes(std::span(own));
  if (ranks.rank() == 0) {
    for (const std::size_t size : sizes) texts.emplace_back(size, ' ');
    for (std::size_t rank = 0; rank < texts.size(); ++rank)
      pieces.receive[rank] = std::as_writable_bytes(std::span(texts[rank]));
  }
  ranks.all_to_all(pieces);
  return texts;
}

InputError cannot_write(const std::string& file) {
  return InputError{"cannot write " + file + ": " + std::strerror(errno)};
}

/// Tokens of one of at most 32 cells; the last may have fewer.
Index cell_of(Index tokens) { return (tokens + 31) / 32; }

std::vector<TokenRange> cells_of(Index tokens) {
  std::vector<TokenRange> all;
  const Index cell = cell_of(tokens);
  for (Index begin = 0; begin < tokens; begin += cell)
    all.push_back({begin, 1, std::min(cell, tokens - begin)});
  return all;
}

}  // namespace

std::string json_of(const TokenRanges& ranges) {
  std::string text = "[";
  for (const TokenRange& range : ranges)
    text += format("%s[%lld,%lld,%lld]", text.size() > 1 ? "," : "", static_cast<long long>(range.begin),
                   static_cast<long long>(range.stride), static_cast<long long>(range.count));
  return text + "]";
}

Trace::Trace(const Communicator& comm, const std::string& file)
    : Trace(std::make_unique<MpiTraceRanks>(comm), file) {}

Trace::Trace(std::unique_ptr<TraceRanks> ranks, const std::string& file)
    : ranks_(std::move(ranks)),
      rank_(ranks_->all().rank()),
      file_(file),
      own_file_(format("%s.rank%d", file.c_str(), rank_)) {
  const TraceRanks::Machine machine = ranks_->machine();
  offset_ = machine.clock;
  ranks_->agree([&] {
    if (!machine.is_of_lower_rank) remove_leftovers();
  });
  ranks_->agree([&] { open(); });
  start_ = of_all(ranks_->all(), clock_seconds()).front();
  metadata("process_name", format("\"name\":\"rank %d\"", rank_));
  metadata("process_sort_index", format("\"sort_index\":%d", rank_));
  metadata("clock", format("\"offset_us\":%.3f,\"round_trip_us\":%.3f", offset_.seconds * 1e6,
                           offset_.round_trip * 1e6));
}

void Trace::remove_leftovers() {
  const Index removed = remove_rank_files(file_);
  if (removed > 0)
    std::fprintf(stderr, "%s: removed %s FILE.rankN, which a killed job left\n", file_.c_str(),
                 counted(removed, "file").c_str());
}

void Trace::open() {
  std::error_code ignored;  // if it cannot be looked at, it cannot be opened
  if (std::filesystem::is_directory(file_, ignored))
    throw InputError(file_, "is a directory where a file has to go", "give another");
  out_.reset(std::fopen(own_file_.c_str(), "wb"));
  if (out_ == nullptr) throw cannot_write(own_file_);
  (void)std::setvbuf(out_.get(), nullptr, _IONBF, 0);  // each event goes to the file when it happens
  (void)std::fputs("[", out_.get());
}

void Trace::write(const char* phase, const std::string& name, double at, Track track,
                  const std::string& rest) {
  if (paused_) return;
  const std::string named = name.empty() ? "" : ",\"name\":\"" + name + "\"";
  const std::string event = format("%s{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f%s%s}", separator_,
                                   phase, rank_, static_cast<int>(track), at, named.c_str(), rest.c_str());
  (void)std::fwrite(event.data(), 1, event.size(), out_.get());
  separator_ = ",\n";
}

void Trace::metadata(const std::string& name, const std::string& arguments) {
  write("M", name, 0, Track::job, ",\"args\":{" + arguments + "}");
}

void Trace::begin(Track track, const std::string& name, const std::string& arguments, double at) {
  name_line(track);
  write("B", name, at, track, arguments.empty() ? "" : ",\"args\":{" + arguments + "}");
}

void Trace::end(Track track, double at) { write("E", "", at, track, ""); }

void Trace::mark(Track track, const std::string& name, const std::string& arguments) {
  name_line(track);
  write("i", name, now(), track, ",\"s\":\"t\",\"args\":{" + arguments + "}");
}

void Trace::name_line(Track track) {
  bool& named = named_.at(static_cast<std::size_t>(track));
  if (!paused_ && !std::exchange(named, true))
    write("M", "thread_name", 0, track, format(",\"args\":{\"name\":\"%s\"}", name_of(track)));
}

void Trace::arrow(const char* end, Track track, int from, int to, double at, Index number) {
  const Index pair = static_cast<Index>(from) * ranks_->all().size() + to, most = Index{1} << 24U;
  const Index id = pair * most + number;
  write(end, "message", at, track,
        format(",\"cat\":\"%s\",\"id\":%lld%s", name_of(track), static_cast<long long>(id),
               *end == 'f' ? ",\"bp\":\"e\"" : ""));
}
void Trace::sends(Track track, int to, double at) { arrow("s", track, rank_, to, at, sent_[{track, to}]++); }
void Trace::receives(Track track, int from, double at) {
  arrow("f", track, from, rank_, at, received_[{track, from}]++);
}

void Trace::describe(const SharedAttention& shared) {
  if (paused_) return;
  const Mask& mask = shared.scoring.mask;
  std::string cells;
  for (const TokenRange& queries : cells_of(shared.q.seq)) {
    cells += cells.empty() ? "\"" : "\",\"";
    for (const TokenRange& keys : cells_of(shared.kv.seq)) {
      const Coverage seen = mask.coverage(queries, keys);
      cells += seen == Coverage::none ? '.' : seen == Coverage::full ? '#' : '+';
    }
  }
  const auto& [ring, ulysses] = std::pair(shared.grid.ring, shared.grid.ulysses);
  const char* partition = shared.all_gathers_kv ? "all-gather"
                          : ulysses.size == 1   ? "ring"
                          : ring.size == 1      ? "ulysses"
                                                : "hybrid";
  metadata(
      "attention",
      format(
          "\"queries\":%lld,\"keys\":%lld,\"heads\":%lld,\"ranks\":%d,\"ring\":%d,\"ulysses\":%d,"
          "\"partition\":\"%s\",\"placement\":\"%s\",\"query_cell\":%lld,\"key_cell\":%lld,\"cells\":[%s\"]",
          static_cast<long long>(shared.q.seq), static_cast<long long>(shared.kv.seq),
          static_cast<long long>(shared.q.heads), ranks_->all().size(), ring.size, ulysses.size, partition,
          name(shared.tokens.queries.kind()).c_str(), static_cast<long long>(cell_of(shared.q.seq)),
          static_cast<long long>(cell_of(shared.kv.seq)), cells.c_str()));
}

void Trace::enters(Phase phase) {
  if (paused_) return;
  if (std::exchange(in_phase_, false)) end(Track::job);
  if (phase != Phase::read && phase != Phase::check && phase != Phase::write) return;
  begin(Track::job, name(phase));
  in_phase_ = true;
}

void Trace::join() {
  if (std::exchange(in_phase_, false)) end(Track::job);
  std::string own;
  ranks_->agree([&] {
    if (std::ferror(out_.get()) != 0) throw cannot_write(own_file_);
    own = read_file(own_file_).bytes;
  });
  out_.reset();
  const std::vector<std::string> texts = gathered(ranks_->all(), own);
  ranks_->agree([&] {
    if (rank_ != 0) return;
    std::string all = "[";
    for (const std::string& text : texts) all += (all.size() > 1 ? "," : "") + text.substr(1);
    write_file(file_, all, "\n]\n");
  });
  std::error_code ignored;
  std::filesystem::remove(own_file_, ignored);
}

namespace {

/// An activity that tells a trace its phases, for as long as this object lives.
class Observed {
 public:
  Observed(Activity& activity, Trace& trace) : activity_(activity) { activity_.observe(&trace); }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;
  ~Observed() { activity_.observe(nullptr); }

 private:
  Activity& activity_;
};

}  // namespace

int with_trace(const Communicator& comm, const std::string& file, Activity& activity,
               const std::function<int(Trace*)>& work) {
  if (file.empty()) return work(nullptr);
  std::optional<Trace> trace;
  name_flag("--trace", [&] { trace.emplace(comm, file); });
  const Observed observed(activity, *trace);
  const auto join = [&] { name_flag("--trace", [&] { trace->join(); }); };
  int code = 0;
  try {
    code = work(&*trace);
  } catch (const AgreedError&) {  // of all ranks
    join();
    throw;
  }
  join();
  return code;
}

}  // namespace ring_attention
