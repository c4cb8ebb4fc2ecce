// Elements and whole files; the headers are in npy.cpp.

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>

#include "io/npy.hpp"
#include "io/whole_file.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

static_assert(std::endian::native == std::endian::little, "the elements of a file are copied byte by byte");

/// One element type to another. Elements of a file are aligned to nothing, hence memcpy.
template <class From, class To>
void convert(std::span<const std::byte> bytes, std::span<To> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    From element;
    std::memcpy(&element, bytes.data() + i * sizeof(From), sizeof(From));
    to[i] = static_cast<To>(element);
  }
}

template <class To, class From>
void store(std::span<const From> from, std::span<std::byte> bytes) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const To element = static_cast<To>(from[i]);
    std::memcpy(bytes.data() + i * sizeof(To), &element, sizeof(To));
  }
}

/// The bytes of a half as a float: Eigen knows its subnormals, infinities and NaN.
struct Half {
  std::uint16_t bits;
  explicit operator float() const { return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits)); }
  explicit operator double() const { return static_cast<float>(*this); }
};

std::span<const std::byte> as_elements(const std::string& bytes) { return std::as_bytes(std::span(bytes)); }

/// Reads the header, and checks the size of the file against it.
NpyHeader checked_header(std::span<const std::byte> beginning, Index size, const std::string& file) {
  NpyHeader header = parse_npy_header(beginning, file);
  check_npy_size(header, size, file);
  return header;
}

/// A whole file.
struct Row {
  NpyHeader header;
  std::string elements;
};

/// A file that cannot be right is refused by its header, however long it is.
Row read_row(const std::string& path, void (*check_type)(const NpyHeader&, const std::string&),
             std::size_t dimensions = 1) {
  NpyHeader header = read_npy_header(path);
  check_type(header, path);
  if (header.extents.size() != dimensions)
    throw InputError(path,
                     "has " + counted(std::ssize(header.extents), "dimension") + " where " +
                         (dimensions == 1 ? "one is" : std::to_string(dimensions) + " are") + " wanted",
                     dimensions == 1 ? "save it with .reshape(-1)" : "save it with another shape");
  std::string elements = read_file(path).bytes;
  check_npy_size(header, std::ssize(elements), path);  // again: the file may have changed meanwhile
  elements.erase(0, static_cast<std::size_t>(header.payload_offset));
  return {std::move(header), std::move(elements)};
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
  if (dtype == Dtype::float64)
    store<double>(from, elements);
  else
    store<float>(from, elements);
}
template void encode_elements(Dtype, std::span<const float>, std::span<std::byte>);
template void encode_elements(Dtype, std::span<const double>, std::span<std::byte>);

NpyHeader read_npy_header(const std::string& path) {
  const FileBytes file = read_file(path, npy_header_limit);
  return checked_header(as_elements(file.bytes), file.size, path);
}

template <class T>
Tensor<T> read_npy(const std::string& path) {
  return parse_npy<T>(as_elements(read_file(path).bytes), path);
}
template Tensor<float> read_npy(const std::string&);
template Tensor<double> read_npy(const std::string&);

std::vector<Index> read_npy_integers(const std::string& path, std::size_t dimensions) {
  const auto check_type = [](const NpyHeader& found, const std::string& file) {
    if (found.dtype != Dtype::int64 && found.dtype != Dtype::int32)
      throw InputError(file, "holds " + std::string(name(found.dtype)) + " where integers are wanted",
                       "save it with .astype(np.int64)");
  };
  const auto [header, elements] = read_row(path, check_type, dimensions);
  std::vector<Index> integers(static_cast<std::size_t>(header.elements()));
  if (header.dtype == Dtype::int64)
    convert<std::int64_t>(as_elements(elements), std::span(integers));
  else
    convert<std::int32_t>(as_elements(elements), std::span(integers));
  return integers;
}

std::vector<double> read_npy_numbers(const std::string& path) {
  const auto [header, elements] = read_row(path, check_floating_point);
  std::vector<double> numbers(static_cast<std::size_t>(header.elements()));
  decode_elements<double>(header.dtype, as_elements(elements), numbers);
  return numbers;
}

template <class T>
Tensor<T> parse_npy(std::span<const std::byte> whole_file, const std::string& file) {
  const NpyHeader header = checked_header(whole_file, std::ssize(whole_file), file);
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
    const auto* elements = reinterpret_cast<const char*>(array.data());
    write_file(temporary, format_npy_header(dtype_of<T>(), extents),
               {elements, static_cast<std::size_t>(array.size()) * sizeof(T)});
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
