#include "io/npy.hpp"

#include <array>
#include <cstdint>
#include <limits>

#include "io/npy_dictionary.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention {
namespace {

constexpr std::string_view magic{"\x93NUMPY", 6};
constexpr std::size_t header_alignment = 64;

struct DtypeName {
  std::string_view name;
  Index bytes;
};
/// In the order of Dtype.
constexpr std::array<DtypeName, 5> dtypes{{{"<f8", 8}, {"<f4", 4}, {"<f2", 2}, {"<i8", 8}, {"<i4", 4}}};

const DtypeName& entry(Dtype dtype) { return dtypes.at(static_cast<std::size_t>(dtype)); }

/// Sizes are products of extents: one that does not fit is found here, once, for the widest element. The other
/// extents must fit even if one is 0.
void check_extents_fit(const std::vector<Index>& extents, const std::string& file) {
  Index left = (std::numeric_limits<Index>::max() - static_cast<Index>(npy_header_limit)) / 8;
  for (const Index extent : extents) {
    if (extent > 0) left /= extent;
    if (left == 0) throw InputError(file, "the extents multiply to more than 2^63 bytes", save_again);
  }
}

/// `bytes` little-endian bytes from `at` on.
std::size_t little_endian(std::string_view text, std::size_t at, std::size_t bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes; i-- > 0;) value = value << 8U | static_cast<unsigned char>(text[at + i]);
  return value;
}

std::string little_endian_bytes(std::size_t value, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8U * i) & 0xffU);
  return text;
}

}  // namespace

std::string_view name(Dtype dtype) { return entry(dtype).name; }

std::optional<Dtype> dtype_named(std::string_view name) {
  for (std::size_t i = 0; i < dtypes.size(); ++i)
    if (dtypes[i].name == name) return static_cast<Dtype>(i);
  return {};
}

Index element_bytes(Dtype dtype) { return entry(dtype).bytes; }

Index NpyHeader::elements() const {
  Index product = 1;
  for (const Index extent : extents) product *= extent;
  return product;
}

NpyHeader parse_npy_header(std::span<const std::byte> beginning, const std::string& file) {
  const std::string_view text{reinterpret_cast<const char*>(beginning.data()), beginning.size()};
  if (text.starts_with("PK\x03\x04"))
    throw InputError(file, "this is an .npz archive, not a .npy file",
                     "save one array per file with np.save");
  if (text.substr(0, magic.size()) != magic.substr(0, text.size()))
    throw InputError(file, "not a .npy file", "save the array with np.save");
  if (text.size() < magic.size() + 2) throw InputError(file, "truncated in the header", save_again);

  const auto major = static_cast<unsigned char>(text[magic.size()]);
  const auto minor = static_cast<unsigned char>(text[magic.size() + 1]);
  if (major < 1 || major > 3 || minor != 0)
    throw InputError(file,
                     "unknown version " + std::to_string(major) + "." + std::to_string(minor) + " of .npy",
                     save_again);
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t fixed = magic.size() + 2 + length_bytes;
  if (text.size() < fixed) throw InputError(file, "truncated in the header", save_again);
  const std::size_t length = little_endian(text, magic.size() + 2, length_bytes);
  if (fixed + length > npy_header_limit)
    throw InputError(file, "the header claims to be " + std::to_string(length) + " bytes long", save_again);
  if (text.size() < fixed + length) throw InputError(file, "truncated in the header", save_again);

  NpyHeader header = parse_npy_dictionary(text.substr(fixed, length), file);
  header.payload_offset = static_cast<Index>(fixed + length);
  check_extents_fit(header.extents, file);
  return header;
}

std::string format_npy_header(Dtype dtype, const std::vector<Index>& extents) {
  std::string dictionary = "{'descr': '" + std::string(name(dtype)) + "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < extents.size(); ++i)
    dictionary += (i > 0 ? ", " : "") + std::to_string(extents[i]);
  dictionary += extents.size() == 1 ? ",), }" : "), }";

  const auto padded = [&](std::size_t fixed) {  // bytes of spaces and one newline included
    const std::size_t used = fixed + dictionary.size() + 1;
    return (used + header_alignment - 1) / header_alignment * header_alignment - fixed;
  };
  std::size_t length_bytes = 2;
  std::size_t length = padded(magic.size() + 2 + length_bytes);
  if (length > std::numeric_limits<std::uint16_t>::max()) {
    length_bytes = 4;
    length = padded(magic.size() + 2 + length_bytes);
  }
  dictionary.resize(length - 1, ' ');
  const std::string version{length_bytes == 2 ? '\x01' : '\x02', '\0'};
  return std::string(magic) + version + little_endian_bytes(length, length_bytes) + dictionary + '\n';
}

void check_npy_size(const NpyHeader& header, Index file_bytes, const std::string& file) {
  const Index want = header.file_bytes();
  if (file_bytes < want)
    throw InputError(file,
                     "truncated: " + std::to_string(want - file_bytes) + " of its " + std::to_string(want) +
                         " bytes are missing",
                     save_again);
  if (file_bytes > want)
    throw InputError(file, std::to_string(file_bytes - want) + " bytes follow the array",
                     "a file holds one array: save it again with np.save");
}

void check_floating_point(const NpyHeader& header, const std::string& file) {
  if (header.dtype == Dtype::int64 || header.dtype == Dtype::int32)
    throw InputError(file, "the elements are integers ('" + std::string(name(header.dtype)) + "')",
                     "save it with array.astype('float32'), or 'float64'");
}

Shape array_shape(const NpyHeader& header, const std::string& file) {
  const std::vector<Index>& e = header.extents;
  std::string text = "(";
  for (std::size_t i = 0; i < e.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(e[i]);
  text += e.size() == 1 ? ",)" : ")";
  if (e.size() < 2 || e.size() > 4)
    throw InputError(file, "the shape " + text.substr(0, 80) + " is not [S, D], [H, S, D] or [B, H, S, D]",
                     "reshape the array before np.save");
  for (const Index extent : e)
    if (extent == 0)
      throw InputError(file, "the shape " + text + " has an extent of 0", "save an array with elements");
  const std::size_t n = e.size();
  const Shape shape{n > 3 ? e[n - 4] : 1, n > 2 ? e[n - 3] : 1, e[n - 2], e[n - 1]};
  if (!fits(shape) || std::max({shape.batch, shape.heads, shape.dim}) > largest_count)
    throw InputError(file, "the shape " + text + " has more than 2^48 elements, or B, H or D above 2^31 - 1",
                     "save a smaller array");
  return shape;
}

std::vector<Index> array_extents(const Shape& shape, std::size_t dimensions) {
  require(dimensions >= 2 && dimensions <= 4, "an array file has 2, 3 or 4 dimensions");
  require((dimensions > 3 || shape.batch == 1) && (dimensions > 2 || shape.heads == 1),
          to_string(shape) + " needs more than " + std::to_string(dimensions) + " dimensions");
  const std::vector<Index> all{shape.batch, shape.heads, shape.seq, shape.dim};
  return {all.end() - static_cast<std::ptrdiff_t>(dimensions), all.end()};
}

std::vector<Index> row_extents(const Shape& shape, std::size_t dimensions) {
  std::vector<Index> extents = array_extents(shape, dimensions);
  extents.pop_back();
  return extents;
}

}  // namespace ring_attention
