#include "io/npy_dictionary.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

/// Text of a damaged file, fit for one line of a message.
std::string quoted_for_message(std::string_view text) {
  constexpr std::size_t longest = 24;
  std::string line = "'";
  for (const char c : text.substr(0, longest)) line += c >= ' ' && c <= '~' ? c : '?';
  return line + (text.size() > longest ? "...'" : "'");
}

/// The header's dictionary. This reads one dictionary of three known keys, not Python in general: nothing nests,
/// so nothing recurses, and every loop consumes text or ends.
class DictionaryParser {
 public:
  DictionaryParser(std::string_view text, const std::string& file) : rest_(text), all_(text), file_(file) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      parse_entry();
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip_space();
    if (!rest_.empty()) malformed("text after the dictionary");
    if (!dtype_) malformed("'descr' is missing");
    if (!order_seen_) malformed("'fortran_order' is missing");
    if (!extents_) malformed("'shape' is missing");
    return {*dtype_, *std::move(extents_), 0};
  }

 private:
  void parse_entry() {
    const std::string_view key = quoted();
    const bool twice =
        (key == "descr" && dtype_) || (key == "fortran_order" && order_seen_) || (key == "shape" && extents_);
    if (twice) malformed("the key " + quoted_for_message(key) + " occurs twice");
    expect(':');
    if (key == "descr") {
      parse_dtype();
    } else if (key == "fortran_order") {
      parse_order();
    } else if (key == "shape") {
      parse_extents();
    } else {
      malformed("unknown key " + quoted_for_message(key));
    }
  }

  void parse_dtype() {
    if (next() == '[' || next() == '(')
      throw InputError(file_, "a structured dtype is not supported",
                       "save one field, as in np.save(file, array['x'])");
    const std::string_view text = quoted();
    dtype_ = dtype_named(text);
    if (dtype_) return;
    if (text == "|O" || text == "O")
      throw InputError(file_, "an array of Python objects is not supported",
                       "save it with array.astype('float32')");
    if (text.starts_with('>'))
      throw InputError(file_, "big-endian elements (" + quoted_for_message(text) + ") are not supported",
                       "save it with array.astype(array.dtype.newbyteorder('<'))");
    const bool whole = text.size() == 3 && std::string_view("biu").find(text[1]) != std::string_view::npos;
    throw InputError(file_, "the dtype " + quoted_for_message(text) + " is not supported",
                     whole ? "save it with array.astype('float32'), or with 'int64' where integers are wanted"
                           : "save it with array.astype('float32'), or 'float64'");
  }

  void parse_order() {
    skip_space();
    if (rest_.starts_with("True"))
      throw InputError(file_, "Fortran order is not supported", "save it with np.ascontiguousarray(array)");
    constexpr std::string_view c_order = "False";
    if (!rest_.starts_with(c_order)) malformed("'fortran_order' is neither True nor False");
    rest_.remove_prefix(c_order.size());
    order_seen_ = true;
  }

  /// `()`, `(3,)`, `(3, 4)` or `(3, 4,)`, as Python writes tuples.
  void parse_extents() {
    extents_.emplace();
    bool comma = true;  // "(3)" is a number to Python and not a tuple
    expect('(');
    while (!accept(')')) {
      if (!comma) malformed("expected ',' in 'shape'");
      extents_->push_back(extent());
      comma = accept(',');
    }
    if (extents_->size() == 1 && !comma) malformed("'shape' is not a tuple");
  }

  Index extent() {
    skip_space();
    Index value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error == std::errc::result_out_of_range)
      throw InputError(file_, "an extent is out of range", save_again);
    if (error != std::errc{}) malformed("expected a number in 'shape'");
    if (value < 0)
      throw InputError(file_, "an extent is negative (" + std::to_string(value) + ")", save_again);
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  std::string_view quoted() {
    const char quote = next();
    if (quote != '\'' && quote != '"') malformed("expected a quoted string");
    rest_.remove_prefix(1);
    const std::size_t length = rest_.find(quote);
    if (length == std::string_view::npos) malformed("a quoted string does not end");
    const std::string_view text = rest_.substr(0, length);
    rest_.remove_prefix(length + 1);
    return text;
  }

  void skip_space() {
    const std::size_t space = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(std::min(space, rest_.size()));
  }

  /// The next character that is no space; 0 at the end.
  char next() {
    skip_space();
    return rest_.empty() ? '\0' : rest_.front();
  }

  bool accept(char wanted) {
    if (rest_.empty() || next() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char wanted) {
    if (!accept(wanted)) malformed(std::string("expected '") + wanted + "'");
  }

  [[noreturn]] void malformed(const std::string& what) const {
    throw InputError(
        file_, "malformed header: " + what + " at character " + std::to_string(all_.size() - rest_.size()),
        save_again);
  }

  std::string_view rest_, all_;
  const std::string& file_;
  std::optional<Dtype> dtype_;
  std::optional<std::vector<Index>> extents_;
  bool order_seen_ = false;
};

}  // namespace

NpyHeader parse_npy_dictionary(std::string_view text, const std::string& file) {
  return DictionaryParser(text, file).parse();
}

}  // namespace ring_attention
