/// \file
/// `.npy`, NumPy's file of one array: its header, and whole files in one process.
///
/// A file is a magic string, a version, a Python dictionary as text (dtype, order, extents), and the
/// elements as they are in memory. Accepted: versions 1, 2 and 3, little-endian, C order. Everything else
/// is an InputError of one line that names the file and the remedy.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ring_attention/core/shape.hpp"
#include "ring_attention/core/tensor.hpp"
#include "ring_attention/core/view.hpp"

namespace ring_attention {

/// The element types that a header may name. All are little-endian.
enum class Dtype { float64, float32, float16, int64, int32 };

/// As the file spells it: `<f8`, `<f4`, `<f2`, `<i8`, `<i4`.
[[nodiscard]] std::string_view name(Dtype dtype);

/// The inverse of name(); empty for any other spelling.
[[nodiscard]] std::optional<Dtype> dtype_named(std::string_view name);

/// Bytes of one element.
[[nodiscard]] Index element_bytes(Dtype dtype);

/// The type that holds a T: float or double.
template <class T>
[[nodiscard]] constexpr Dtype dtype_of() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  return std::is_same_v<T, double> ? Dtype::float64 : Dtype::float32;
}

/// What a file says before its elements.
struct NpyHeader {
  Dtype dtype = Dtype::float64;
  /// As many as the array has dimensions, none negative. `8 * elements()` fits an Index.
  std::vector<Index> extents;
  /// Bytes before the first element.
  Index payload_offset = 0;

  [[nodiscard]] Index elements() const;
  [[nodiscard]] Index payload_bytes() const { return elements() * element_bytes(dtype); }
  /// The exact size of a whole file.
  [[nodiscard]] Index file_bytes() const { return payload_offset + payload_bytes(); }
};

/// A header that claims to be longer than this is damaged. So this many bytes from the beginning of a file hold
/// its whole header.
inline constexpr std::size_t npy_header_limit = std::size_t{1} << 20U;

/// Reads a header. `beginning` is the file's first bytes: all of it, or at least npy_header_limit.
/// \param file names the culprit in errors.
/// \throws InputError
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> beginning, const std::string& file);

/// The bytes before the elements, as NumPy writes them: version 1 (2 where the header is longer than
/// 65535 bytes), padded so that the elements start at a multiple of 64.
[[nodiscard]] std::string format_npy_header(Dtype dtype, const std::vector<Index>& extents);

/// \throws InputError when the file is truncated or has bytes after its last element.
void check_npy_size(const NpyHeader& header, Index file_bytes, const std::string& file);

/// [S, D], [H, S, D] or [B, H, S, D] as a Shape.
/// \throws InputError for another number of dimensions, an extent of 0, or more than core/index.hpp allows.
[[nodiscard]] Shape array_shape(const NpyHeader& header, const std::string& file);

/// The inverse: the extents of an array with as many dimensions as the input has (2, 3 or 4).
/// \throws Error when the shape has heads or batches without a dimension for them.
[[nodiscard]] std::vector<Index> array_extents(const Shape& shape, std::size_t dimensions);

/// The extents of an array with one number a row (lse): without the last extent, so one dimension less.
[[nodiscard]] std::vector<Index> row_extents(const Shape& shape, std::size_t dimensions);

/// \throws InputError unless the elements are floating point.
void check_floating_point(const NpyHeader& header, const std::string& file);

/// Elements of a file, floating point of any width, to T. A float64 beyond the range of float
/// becomes an infinity. \pre `elements` has the bytes of `to.size()` elements.
template <class T>
void decode_elements(Dtype dtype, std::span<const std::byte> elements, std::span<T> to);

/// T to elements of a file; `dtype` is float32 or float64.
template <class T>
void encode_elements(Dtype dtype, std::span<const T> from, std::span<std::byte> elements);

/// Reads and checks the header of a file, and the file's size against it.
/// \throws InputError, also when the file cannot be opened.
[[nodiscard]] NpyHeader read_npy_header(const std::string& path);

/// Reads a whole file of [S, D], [H, S, D] or [B, H, S, D] elements, floating point of any width, as float
/// or double. For programs of one process; ranks read their shards with NpyReader.
/// \throws InputError
template <class T>
[[nodiscard]] Tensor<T> read_npy(const std::string& path);

/// Reads a whole file of int64 or int32: the boundaries of packed documents, or the intervals of a mask.
/// \param dimensions  of the array, whose elements are returned in their order
/// \throws InputError
[[nodiscard]] std::vector<Index> read_npy_integers(const std::string& path, std::size_t dimensions = 1);

/// Reads a whole file of one dimension of floating-point elements: one number a head.
/// \throws InputError
[[nodiscard]] std::vector<double> read_npy_numbers(const std::string& path);

/// Reads as read_npy does, from a file that is already in memory.
template <class T>
[[nodiscard]] Tensor<T> parse_npy(std::span<const std::byte> whole_file, const std::string& file);

/// The name under which a file is written before it is complete.
[[nodiscard]] inline std::string temporary_name(const std::string& path) { return path + ".part"; }

/// Writes a whole file: first under its temporary name, so that `path` is either complete or unchanged.
/// \pre the product of the extents is the array's size.
/// \throws InputError when the file cannot be written.
template <class T>
void write_npy(const std::string& path, View<const T> array, const std::vector<Index>& extents);

/// Writes an array with all four extents.
template <class T>
void write_npy(const std::string& path, View<const T> array) {
  write_npy(path, array, array_extents(array.shape(), 4));
}

}  // namespace ring_attention
