// Elements and whole files; the headers are in npy.cpp.

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ring_attention/core/error.hpp"
#include "ring_attention/io/npy.hpp"

namespace ring_attention {
namespace {

static_assert(std::endian::native == std::endian::little, "the elements of a file are copied byte by byte");

constexpr Index staging_bytes = Index{1} << 20U;

/// One element type to another. Elements of a file are aligned to nothing, hence memcpy.
template <class From, class To>
void convert(std::span<const std::byte> bytes, std::span<To> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    From element;
    std::memcpy(&element, bytes.data() + i * sizeof(From), sizeof(From));
    to[i] = static_cast<To>(element);
  }
}

/// The bytes of a half as a float: Eigen knows its subnormals, infinities and NaN.
struct Half {
  std::uint16_t bits;
  explicit operator float() const { return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits)); }
  explicit operator double() const { return static_cast<float>(*this); }
};

Index size_of_file(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) throw InputError(path, "cannot be read: " + error.message(), "check the path");
  return static_cast<Index>(bytes);
}

std::ifstream open_to_read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw InputError(path, "cannot be read: " + std::generic_category().message(errno), "check the path");
  return in;
}

void read_exactly(std::ifstream& in, std::span<std::byte> bytes, const std::string& path) {
  if (!in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
    throw InputError(path, "cannot be read to its end",
                     "check the disk, and that nothing is writing the file");
}

template <class T>
void write_whole(const std::string& path, const std::string& header, View<const T> array) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  out.write(reinterpret_cast<const char*>(array.data()),
            static_cast<std::streamsize>(array.size()) * static_cast<std::streamsize>(sizeof(T)));
  out.close();
  if (!out)
    throw InputError(path, "cannot be written: " + std::generic_category().message(errno),
                     "check the directory and the space on the disk");
}

}  // namespace

template <class T>
void decode_elements(Dtype dtype, std::span<const std::byte> elements, std::span<T> to) {
  require(elements.size() == to.size() * static_cast<std::size_t>(element_bytes(dtype)),
          "decode_elements: the bytes do not fit the elements");
  switch (dtype) {
    case Dtype::float64: return convert<double>(elements, to);
    case Dtype::float32: return convert<float>(elements, to);
    case Dtype::float16: return convert<Half>(elements, to);
    case Dtype::int64:
    case Dtype::int32: break;
  }
  require(false, "decode_elements: floating point only");
}
template void decode_elements(Dtype, std::span<const std::byte>, std::span<float>);
template void decode_elements(Dtype, std::span<const std::byte>, std::span<double>);

template <class T>
void encode_elements(Dtype dtype, std::span<const T> from, std::span<std::byte> elements) {
  require(elements.size() == from.size() * static_cast<std::size_t>(element_bytes(dtype)),
          "encode_elements: the elements do not fit the bytes");
  require(dtype == Dtype::float64 || dtype == Dtype::float32, "encode_elements: float32 and float64 only");
  const auto store = [&]<class To>(To) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const To element = static_cast<To>(from[i]);
      std::memcpy(elements.data() + i * sizeof(To), &element, sizeof(To));
    }
  };
  if (dtype == Dtype::float64) {
    store(double{});
  } else {
    store(float{});
  }
}
template void encode_elements(Dtype, std::span<const float>, std::span<std::byte>);
template void encode_elements(Dtype, std::span<const double>, std::span<std::byte>);

NpyHeader read_npy_header(const std::string& path) {
  const Index size = size_of_file(path);
  std::ifstream in = open_to_read(path);
  std::vector<std::byte> beginning(std::min(static_cast<std::size_t>(size), npy_header_limit));
  read_exactly(in, beginning, path);
  NpyHeader header = parse_npy_header(beginning, path);
  check_npy_size(header, size, path);
  return header;
}

template <class T>
Tensor<T> read_npy(const std::string& path) {
  const NpyHeader header = read_npy_header(path);
  check_floating_point(header, path);
  Tensor<T> array(array_shape(header, path));
  std::ifstream in = open_to_read(path);
  in.seekg(header.payload_offset);
  const Index element = element_bytes(header.dtype);
  std::vector<std::byte> staging(
      static_cast<std::size_t>(std::min(header.payload_bytes(), staging_bytes / element * element)));
  for (std::span<T> left = array.view().elements(); !left.empty();) {
    const std::size_t n = std::min(left.size(), staging.size() / static_cast<std::size_t>(element));
    const std::span<std::byte> bytes = std::span(staging).first(n * static_cast<std::size_t>(element));
    read_exactly(in, bytes, path);
    decode_elements<T>(header.dtype, bytes, left.first(n));
    left = left.subspan(n);
  }
  return array;
}
template Tensor<float> read_npy(const std::string&);
template Tensor<double> read_npy(const std::string&);

namespace {

/// The elements of a file of one dimension, which must be.
std::vector<std::byte> read_one_dimension(const NpyHeader& header, const std::string& path) {
  if (header.extents.size() != 1)
    throw InputError(path, "has " + std::to_string(header.extents.size()) + " dimensions where one is wanted",
                     "save it with .reshape(-1)");
  std::ifstream in = open_to_read(path);
  in.seekg(header.payload_offset);
  std::vector<std::byte> bytes(static_cast<std::size_t>(header.payload_bytes()));
  read_exactly(in, bytes, path);
  return bytes;
}

}  // namespace

std::vector<Index> read_npy_integers(const std::string& path) {
  const NpyHeader header = read_npy_header(path);
  if (header.dtype != Dtype::int64 && header.dtype != Dtype::int32)
    throw InputError(path, "holds " + std::string(name(header.dtype)) + " where integers are wanted",
                     "save it with .astype(np.int64)");
  const std::vector<std::byte> bytes = read_one_dimension(header, path);
  std::vector<Index> integers(static_cast<std::size_t>(header.elements()));
  if (header.dtype == Dtype::int64)
    convert<std::int64_t>(bytes, std::span(integers));
  else
    convert<std::int32_t>(bytes, std::span(integers));
  return integers;
}

std::vector<double> read_npy_numbers(const std::string& path) {
  const NpyHeader header = read_npy_header(path);
  check_floating_point(header, path);
  const std::vector<std::byte> bytes = read_one_dimension(header, path);
  std::vector<double> numbers(static_cast<std::size_t>(header.elements()));
  decode_elements<double>(header.dtype, bytes, numbers);
  return numbers;
}

template <class T>
Tensor<T> parse_npy(std::span<const std::byte> whole_file, const std::string& file) {
  const NpyHeader header = parse_npy_header(whole_file, file);
  check_npy_size(header, static_cast<Index>(whole_file.size()), file);
  check_floating_point(header, file);
  Tensor<T> array(array_shape(header, file));
  decode_elements<T>(header.dtype, whole_file.subspan(static_cast<std::size_t>(header.payload_offset)),
                     array.view().elements());
  return array;
}
template Tensor<float> parse_npy(std::span<const std::byte>, const std::string&);
template Tensor<double> parse_npy(std::span<const std::byte>, const std::string&);

template <class T>
void write_npy(const std::string& path, View<const T> array, const std::vector<Index>& extents) {
  require(NpyHeader{dtype_of<T>(), extents, 0}.elements() == array.size(),
          "write_npy: the extents do not multiply to the size of " + to_string(array.shape()));
  const std::string temporary = temporary_name(path);
  std::error_code error;
  try {
    write_whole(temporary, format_npy_header(dtype_of<T>(), extents), array);
    std::filesystem::rename(temporary, path, error);
    if (error) throw InputError(path, "cannot be written: " + error.message(), "check the directory");
  } catch (const InputError&) {
    std::filesystem::remove(temporary, error);
    throw;
  }
}
template void write_npy(const std::string&, View<const float>, const std::vector<Index>&);
template void write_npy(const std::string&, View<const double>, const std::vector<Index>&);

}  // namespace ring_attention
