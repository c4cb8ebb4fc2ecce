// Any bytes are a .npy file or the beginning of one, or refused with one line.
//
// The seeds in npy_header.seeds come from libFuzzer; the last ones are whole files. To go on from them:
//   mkdir seeds && split -l 1 tests/io/npy_header.seeds seeds/x && for x in seeds/x*; do xxd -r -p $x > $x.bin; rm $x; done
//   clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -DRING_ATTENTION_LIBFUZZER -Isrc -Itests
//     -I/usr/include/eigen3 tests/io/npy_header_fuzz.cpp src/io/npy.cpp src/io/npy_array.cpp src/io/npy_dictionary.cpp
//     src/io/whole_file.cpp src/ring_attention/core/{allocation,error,memory,tensor}.cpp -o npy_header_fuzz
//   ./npy_header_fuzz seeds
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "io/npy.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

static int files_read = 0;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ring_attention;
  const std::span<const std::uint8_t> bytes(data, size);
  try {
    const NpyHeader header = parse_npy_header(std::as_bytes(bytes), "x.npy");
    if (header.file_bytes() < header.payload_offset || header.payload_offset > std::ssize(bytes))
      std::abort();
    check_floating_point(header, "x.npy");
    if (!fits(array_shape(header, "x.npy"))) std::abort();
    if (header.file_bytes() < 100'000) {  // with as many bytes as its header claims
      std::vector<std::uint8_t> whole(data, data + size);
      whole.resize(static_cast<std::size_t>(header.file_bytes()));
      if (parse_npy<float>(std::as_bytes(std::span(whole)), "x.npy").size() != header.elements())
        std::abort();
    }
    (void)parse_npy<double>(std::as_bytes(bytes), "x.npy");
    ++files_read;
  } catch (const InputError& error) {
    const std::string line = error.what();
    if (!line.starts_with("x.npy: ") || line.find('\n') != std::string::npos || line.size() > 400)
      std::abort();
  }
  return 0;
}

#ifndef RING_ATTENTION_LIBFUZZER
#include "support/seeds.hpp"

TEST(NpyHeaderFuzz, TheSeedsOfLibFuzzer) {
  ring_attention::test::replay_seeds("io/npy_header.seeds", LLVMFuzzerTestOneInput);
  EXPECT_GT(files_read, 100);
}
#endif
