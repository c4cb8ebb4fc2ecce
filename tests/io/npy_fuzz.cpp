// Mutated `.npy` files: each is read, or refused with one line.
//
// RING_ATTENTION_MUTANTS says how many; the same number and seed make the same files.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>

#include "io/npy.hpp"
#include "ring_attention/core/error.hpp"
#include "support/npy_bytes.hpp"
#include "support/temporary_directory.hpp"

namespace ring_attention {
namespace {

using test::as_bytes;
using test::npy_bytes;

/// A valid file: a dictionary, its payload's bytes, a version.
std::string sound_file(Dtype dtype, const std::vector<Index>& extents, int version) {
  std::string dictionary = format_npy_header(dtype, extents).substr(10);
  const NpyHeader header{dtype, extents, 0};
  std::string payload(static_cast<std::size_t>(header.payload_bytes()), '\0');
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 37);
  return npy_bytes(dictionary, payload, version);
}

std::vector<std::string> corpus() {
  std::vector<std::string> files;
  for (const int version : {1, 2, 3})
    for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::int64, Dtype::int32})
      for (const std::vector<Index>& extents :
           std::vector<std::vector<Index>>{{}, {7}, {3, 4}, {2, 3, 4}, {2, 1, 3, 2}, {0, 5}, {1, 1, 1, 1, 1}})
        files.push_back(sound_file(dtype, extents, version));
  files.push_back(npy_bytes("{'shape':(2,3),'descr':\"<f4\",'fortran_order':False}", std::string(24, 'x')));
  files.push_back(npy_bytes("{'descr': [('x', '<f4'), ('y', '<f8')], 'fortran_order': True, 'shape': (2,)}"));
  return files;
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed), corpus_(corpus()) {}

  /// A file of the corpus with one to four mutations, most of them in the header. Some are repaired where they
  /// would be refused at once, so that the checks behind are reached too.
  std::string next() {
    std::string file = any_file();
    for (std::size_t n = 1 + below(4); n > 0; --n) mutate(file);
    if (below(2) == 0) mend_length(file);
    if (below(2) == 0) mend_payload(file);
    return file;
  }

 private:
  std::size_t below(std::size_t end) { return end == 0 ? 0 : random_() % end; }
  const std::string& any_file() { return corpus_[below(corpus_.size())]; }

  std::size_t place(const std::string& file) {
    return below(std::min<std::size_t>(file.size(), below(4) ? 80 : 400));
  }

  void mutate(std::string& file) {
    if (file.empty()) return;
    switch (below(9)) {
      case 0: flip_bit(file[place(file)], below(8)); break;
      case 1: file[place(file)] = static_cast<char>(random_()); break;
      case 2: file.resize(below(file.size() + 1)); break;
      case 3: file.append(1 + below(20), static_cast<char>(random_())); break;
      case 4: file.erase(place(file), 1 + below(8)); break;
      case 5: splice(file); break;
      case 6: swap_number(file); break;
      case 7: insert_token(file); break;
      case 8: change_length(file); break;
      default: break;
    }
  }

  static void flip_bit(char& c, std::size_t bit) {
    c = static_cast<char>(static_cast<unsigned char>(c) ^ (1U << bit));
  }

  /// The beginning of this file, the end of another.
  void splice(std::string& file) {
    const std::string& other = any_file();
    file = file.substr(0, place(file)) + other.substr(place(other));
  }

  /// A number in the header becomes one that a careless reader mishandles.
  void swap_number(std::string& file) {
    static const std::vector<std::string> numbers{"0",
                                                  "-1",
                                                  "1",
                                                  "00",
                                                  "2147483648",
                                                  "4294967296",
                                                  "9223372036854775807",
                                                  "9223372036854775808",
                                                  "-9223372036854775808",
                                                  "18446744073709551616",
                                                  "1e9",
                                                  "3.0",
                                                  "0x10",
                                                  "1_000",
                                                  "3L",
                                                  std::string(400, '9')};
    const std::size_t digit = file.find_first_of("0123456789", 10 + place(file));
    if (digit == std::string::npos) return;
    const std::size_t end = file.find_first_not_of("0123456789", digit);
    file.replace(digit, std::min(end, file.size()) - digit, numbers[below(numbers.size())]);
  }

  void insert_token(std::string& file) {
    static const std::vector<std::string> tokens{"'",
                                                 "\"",
                                                 "(",
                                                 ")",
                                                 "{",
                                                 "}",
                                                 ",",
                                                 ":",
                                                 " ",
                                                 "\n",
                                                 "True",
                                                 "False",
                                                 "None",
                                                 "'descr'",
                                                 "'shape'",
                                                 "'<f8'",
                                                 "'>f4'",
                                                 "'|O'",
                                                 "'fortran_order'",
                                                 "[",
                                                 "]",
                                                 std::string(1, '\0'),
                                                 std::string(70'000, '('),
                                                 "# comment",
                                                 "\\'"};
    file.insert(place(file), tokens[below(tokens.size())]);
  }

  /// The header's length field.
  void change_length(std::string& file) {
    for (std::size_t i = 8; i < std::min<std::size_t>(file.size(), 8 + below(5)); ++i)
      file[i] = static_cast<char>(below(3) == 0 ? random_() : random_() % 3);
  }

  /// Magic, version 1 and a header that ends with the first line.
  static void mend_length(std::string& file) {
    const std::size_t end = file.find('\n', 12);
    if (end == std::string::npos) return;
    const std::size_t fixed = file[6] == 1 ? 10 : 12;
    file = npy_bytes(file.substr(fixed, end + 1 - fixed), file.substr(end + 1));
  }

  /// As many bytes after the header as it claims, if they are few.
  static void mend_payload(std::string& file) {
    try {
      const NpyHeader header = parse_npy_header(as_bytes(file), "m.npy");
      if (header.file_bytes() < 100'000) file.resize(static_cast<std::size_t>(header.file_bytes()), 'x');
    } catch (const InputError&) {
      return;
    }
  }

  std::mt19937_64 random_;
  std::vector<std::string> corpus_;
};

/// How the mutants ended.
struct Verdict {
  Index read = 0;
  Index refused = 0;
};

/// \param read returns a tensor, or throws InputError of one line that begins with the file's name.
template <class Read>
void attempt(Read&& read, const std::string& name, Verdict& outcome) {
  try {
    const auto array = read();
    ASSERT_GT(array.size(), 0);
    ++outcome.read;
  } catch (const InputError& error) {
    const std::string line = error.what();
    ASSERT_EQ(line.rfind(name + ": ", 0), 0U) << line;
    ASSERT_EQ(line.find_first_of(std::string("\n\r\0", 3)), std::string::npos) << line;
    ASSERT_LT(line.size(), 300U) << line;
    ++outcome.refused;
  }
}

Index mutants() {
  const char* count = std::getenv("RING_ATTENTION_MUTANTS");
  return count != nullptr ? std::atoll(count) : 20'000;
}

TEST(NpyFuzz, EveryMutantIsReadOrRefused) {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "m.npy";
  Mutator mutator(20'231'003);
  Verdict in_memory;
  Verdict on_disk;
  const Index count = mutants();
  for (Index i = 0; i < count && !HasFatalFailure(); ++i) {
    const std::string mutant = mutator.next();
    const std::vector<char> exact(mutant.begin(), mutant.end());  // a byte too far is seen by the sanitizer
    const std::string_view file(exact.data(), exact.size());
    if (i % 2 == 0) {
      attempt([&] { return parse_npy<float>(as_bytes(file), "m.npy"); }, "m.npy", in_memory);
    } else {
      attempt([&] { return parse_npy<double>(as_bytes(file), "m.npy"); }, "m.npy", in_memory);
    }
    if (i % 16 != 0) continue;
    std::ofstream(path, std::ios::binary) << file;
    const Verdict before = on_disk;
    attempt([&] { return read_npy<double>(path); }, path, on_disk);
    // Both readers agree; one has the whole file, the other its size.
    const bool read_here = on_disk.read > before.read;
    bool read_there = true;
    try {
      (void)parse_npy<double>(as_bytes(file), "m.npy");
    } catch (const InputError&) {
      read_there = false;
    }
    ASSERT_EQ(read_here, read_there);
  }
  RecordProperty("read", static_cast<int>(in_memory.read));
  EXPECT_EQ(in_memory.read + in_memory.refused, count);
  // Some mutants are refused and some are read.
  EXPECT_GT(in_memory.read, count / 100);
  EXPECT_GT(in_memory.refused, count / 2);
}

TEST(NpyFuzz, TheCorpusIsSound) {
  Index read = 0;
  for (const std::string& file : corpus()) {
    Verdict outcome;
    attempt([&] { return parse_npy<float>(as_bytes(file), "m.npy"); }, "m.npy", outcome);
    read += outcome.read;
  }
  EXPECT_EQ(read, 3 * 3 * 3 + 1);  // versions, floating-point dtypes, 2 to 4 dimensions; and the terse one
}

}  // namespace
}  // namespace ring_attention
