// Arithmetic by the full name of the instruction: a table of functions and of the bytes of their operands.
#include <unordered_map>

#include "ptx/arithmetic.hpp"
#include "ptx/parser.hpp"

namespace ptx {
namespace {

struct Row {
  Function function;
  std::vector<int> sizes;  // of the operands; 0 is a predicate
};
using Table = std::unordered_map<std::string, Row>;

template <class T>
constexpr int bytes = sizeof(T);

/// cvt may take the lower bits of a register that is wider than the type.
constexpr const char* wide_source = " of 8 bytes";

template <class T>
void add_comparisons(Table& t, const std::string& type) {
  const std::vector<int> sizes{0, bytes<T>, bytes<T>};
  t["setp.eq." + type] = {compare_lanes<T, [](T a, T b) { return a == b; }>, sizes};
  t["setp.lt." + type] = {compare_lanes<T, [](T a, T b) { return a < b; }>, sizes};
  t["setp.le." + type] = {compare_lanes<T, [](T a, T b) { return a <= b; }>, sizes};
  t["setp.gt." + type] = {compare_lanes<T, [](T a, T b) { return (a > b); }>, sizes};
  t["setp.ge." + type] = {compare_lanes<T, [](T a, T b) { return (a >= b); }>, sizes};
  if constexpr (std::is_integral_v<T>) {
    t["setp.ne." + type] = {compare_lanes<T, [](T a, T b) { return a != b; }>, sizes};
  } else {  // ne is false if there is a NaN; the others with a u are true
    t["setp.ne." + type] = {compare_lanes<T, [](T a, T b) { return (a < b || a > b); }>, sizes};
    t["setp.neu." + type] = {compare_lanes<T, [](T a, T b) { return a != b; }>, sizes};
    t["setp.equ." + type] = {compare_lanes<T, [](T a, T b) { return !(a < b || a > b); }>, sizes};
    t["setp.ltu." + type] = {compare_lanes<T, [](T a, T b) { return !(a >= b); }>, sizes};
    t["setp.leu." + type] = {compare_lanes<T, [](T a, T b) { return !(a > b); }>, sizes};
    t["setp.gtu." + type] = {compare_lanes<T, [](T a, T b) { return !(a <= b); }>, sizes};
    t["setp.geu." + type] = {compare_lanes<T, [](T a, T b) { return !(a < b); }>, sizes};
  }
}

/// The instructions of the types sN and uN, whose sums and products are the same.
template <class T>
void add_integers(Table& t, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  const std::vector<int> two(3, bytes<T>);
  t["add." + type] = {binary<U, [](U a, U b) { return static_cast<U>(a + b); }>, two};
  t["sub." + type] = {binary<U, [](U a, U b) { return static_cast<U>(a - b); }>, two};
  t["mul.lo." + type] = {binary<U, [](U a, U b) { return static_cast<U>(u64{a} * b); }>, two};
  t["mad.lo." + type] = {ternary<U, [](U a, U b, U c) { return static_cast<U>(u64{a} * b + c); }>,
                         std::vector<int>(4, bytes<T>)};
  t["min." + type] = {binary<T, [](T a, T b) { return std::min(a, b); }>, two};
  t["max." + type] = {binary<T, [](T a, T b) { return std::max(a, b); }>, two};
  t["div." + type] = {binary<T, quotient<T>>, two};
  t["rem." + type] = {binary<T, remainder<T>>, two};
  t["neg." + type] = {unary<U, U, [](U a) { return static_cast<U>(0 - a); }>, {bytes<T>, bytes<T>}};
  t["abs." + type] = {
      unary<T, T, [](T a) { return static_cast<T>(a < T{0} ? U{0} - static_cast<U>(a) : a); }>,
      {bytes<T>, bytes<T>}};
  t["shr." + type] = {shift<T, false>, {bytes<T>, bytes<T>, 4}};
  add_comparisons<T>(t, type);
}

/// The instructions of the type bN.
template <class T>
void add_bits(Table& t, const std::string& type) {
  const std::vector<int> one(2, bytes<T>), two(3, bytes<T>);
  t["not." + type] = {unary<T, T, [](T a) { return static_cast<T>(~a); }>, one};
  t["and." + type] = {binary<T, [](T a, T b) { return static_cast<T>(a & b); }>, two};
  t["or." + type] = {binary<T, [](T a, T b) { return static_cast<T>(a | b); }>, two};
  t["xor." + type] = {binary<T, [](T a, T b) { return static_cast<T>(a ^ b); }>, two};
  t["shl." + type] = {shift<T, true>, {bytes<T>, bytes<T>, 4}};
  t["setp.eq." + type] = {compare_lanes<T, [](T a, T b) { return a == b; }>, {0, bytes<T>, bytes<T>}};
  t["setp.ne." + type] = {compare_lanes<T, [](T a, T b) { return a != b; }>, {0, bytes<T>, bytes<T>}};
}

template <class D, class A>
constexpr auto converted = [](A a) { return static_cast<D>(a); };
/// The low bits of a register that is wider than the source.
template <class D, class A>
constexpr auto narrowed = [](u64 a) { return static_cast<D>(static_cast<A>(a)); };

/// mov and selp of all types of one size, and the conversions of integers.
template <class T>
void add_moves(Table& t, const std::string& bits) {
  for (const char* kind : {"b", "u", "s", "f"}) {
    t[std::string("mov.") + kind + bits] = {unary<T, T, [](T a) { return a; }>, {bytes<T>, bytes<T>}};
    t[std::string("selp.") + kind + bits] = {select<T>, {bytes<T>, bytes<T>, bytes<T>, 0}};
  }
  t["cvt.rn.f32.s" + bits] = {unary<float, std::make_signed_t<T>, converted<float, std::make_signed_t<T>>>,
                              {4, bytes<T>}};
  t["cvt.rn.f32.u" + bits] = {unary<float, T, converted<float, T>>, {4, bytes<T>}};
  const auto from = [&]<class A>(A, const std::string& name) {
    for (const char* kind : {"s", "u"}) {  // the bits are the same
      const std::string full = "cvt." + (kind + bits) + "." + name;
      t[full] = {unary<T, A, converted<T, A>>, {bytes<T>, bytes<A>}};
      t[full + wide_source] = {unary<T, u64, narrowed<T, A>>, {bytes<T>, 8}};
    }
  };
  from(i16{}, "s16"), from(u16{}, "u16"), from(i32{}, "s32"), from(u32{}, "u32");
  from(i64{}, "s64"), from(u64{}, "u64");
}

void add_floats(Table& t) {
  constexpr auto add = [](float a, float b, float) { return a + b; };
  constexpr auto fma = [](float a, float b, float c) { return std::fma(a, b, c); };
  t["add.f32"] = t["add.rn.f32"] = {binary<float, [](float a, float b) { return a + b; }>, {4, 4, 4}};
  t["sub.f32"] = t["sub.rn.f32"] = {binary<float, [](float a, float b) { return a - b; }>, {4, 4, 4}};
  t["mul.f32"] = t["mul.rn.f32"] = {binary<float, [](float a, float b) { return a * b; }>, {4, 4, 4}};
  t["div.rn.f32"] = {binary<float, [](float a, float b) { return a / b; }>, {4, 4, 4}};
  t["min.f32"] = {binary<float, minimum>, {4, 4, 4}};
  t["max.f32"] = {binary<float, maximum>, {4, 4, 4}};
  t["neg.f32"] = {unary<float, float, [](float a) { return -a; }>, {4, 4}};
  t["abs.f32"] = {unary<float, float, [](float a) { return std::fabs(a); }>, {4, 4}};
  t["copysign.f32"] = {binary<float, [](float a, float b) { return std::copysign(b, a); }>, {4, 4, 4}};
  t["fma.rn.f32"] = {ternary<float, fma>, {4, 4, 4, 4}};
  t["fma.rm.f32"] = {rounded<FE_DOWNWARD, fma>, {4, 4, 4, 4}};
  t["add.rz.f32"] = {rounded<FE_TOWARDZERO, add>, {4, 4, 4}};
  t["ex2.approx.f32"] = {unary<float, float, exp2_approximately>, {4, 4}};
  t["ex2.approx.ftz.f32"] = {
      unary<float, float, [](float a) { return flushed(exp2_approximately(flushed(a))); }>, {4, 4}};
  t["rcp.approx.ftz.f32"] = {
      unary<float, float, [](float a) { return flushed(reciprocal_approximately(flushed(a))); }>, {4, 4}};
  t["cvt.sat.f32.f32"] = {unary<float, float, saturated>, {4, 4}};
  t["cvt.f32.bf16"] = {unary<float, u16, from_bf16>, {4, 2}};
  t["cvt.f32.f16"] = {unary<float, u16, from_fp16>, {4, 2}};
  t["cvt.rn.bf16.f32"] = {unary<u16, float, to_bf16>, {2, 4}};
  t["cvt.rn.f16.f32"] = {unary<u16, float, to_fp16>, {2, 4}};
  t["cvt.rn.bf16x2.f32"] = {pack_halves<to_bf16>, {4, 4, 4}};
  t["cvt.rn.f16x2.f32"] = {pack_halves<to_fp16>, {4, 4, 4}};
  add_comparisons<float>(t, "f32");
}

Table all_rows() {
  Table t;
  add_integers<i16>(t, "s16"), add_integers<u16>(t, "u16"), add_integers<i32>(t, "s32");
  add_integers<u32>(t, "u32"), add_integers<i64>(t, "s64"), add_integers<u64>(t, "u64");
  add_bits<u16>(t, "b16"), add_bits<u32>(t, "b32"), add_bits<u64>(t, "b64");
  add_moves<u16>(t, "16"), add_moves<u32>(t, "32"), add_moves<u64>(t, "64");
  add_floats(t);
  t["mul.wide.s32"] = {multiply_wide<i64, i32>, {8, 4, 4}};
  t["mul.wide.u32"] = {multiply_wide<u64, u32>, {8, 4, 4}};
  t["brev.b32"] = {unary<u32, u32, reversed_bits>, {4, 4}};
  t["bfind.shiftamt.u32"] = {unary<u32, u32, left_shift_to_highest_bit>, {4, 4}};
  t["mov.pred"] = {of_predicates<[](u32 a, u32) { return a; }>, {0, 0}};
  t["not.pred"] = {of_predicates<[](u32 a, u32) { return ~a; }>, {0, 0}};
  t["and.pred"] = {of_predicates<[](u32 a, u32 b) { return a & b; }>, {0, 0, 0}};
  t["or.pred"] = {of_predicates<[](u32 a, u32 b) { return a | b; }>, {0, 0, 0}};
  t["xor.pred"] = {of_predicates<[](u32 a, u32 b) { return a ^ b; }>, {0, 0, 0}};
  return t;
}

}  // namespace

bool Parser::decode_arithmetic(Instruction& in, const std::string& name, const std::vector<Operand>& o) {
  static const Table table = all_rows();
  const bool is_wide = name.starts_with("cvt.") && o.size() == 2 && size_of(o[1], 0) == 8;
  auto found = table.find(is_wide ? name + wide_source : name);
  if (found == table.end()) found = table.find(name);
  if (found == table.end()) return false;
  const auto& [function, sizes] = found->second;
  if (o.size() != sizes.size()) bad("number of operands", in.text);
  in.function = function;
  in.is_mov = name.starts_with("mov");
  in.d = destination(in, o[0], sizes[0]);
  in.a = source(in, o[1], sizes[1]);
  if (o.size() > 2) in.b = source(in, o[2], sizes[2]);
  if (o.size() > 3) in.c = source(in, o[3], sizes[3]);
  return true;
}

/// mov with a vector, and cvta, which adds or takes away the window of a state space.
bool Parser::decode_move(Instruction& in, const Words& words, const std::vector<Operand>& o) {
  if (words[0] == "cvta") {
    const bool to = words[1] == "to";
    const std::string& space = words[to ? 2 : 1];
    if (space != "shared" && space != "param" && space != "global") bad("state space", in.text);
    in.is_mov = true;
    in.function = to ? binary<u64, [](u64 a, u64 b) { return a - b; }>
                     : static_cast<Function>(binary<u64, [](u64 a, u64 b) { return a + b; }>);
    in.d = destination(in, o[0], 8);
    in.a = source(in, o[1], 8);
    in.b = constant(space == "shared" ? shared_window : space == "param" ? param_window : 0, 8);
    return true;
  }
  if (words[0] != "mov" || o.size() != 2) return false;
  const bool unpacks = o[0].kind == Operand::vector;
  if (!unpacks && o[1].kind != Operand::vector) return false;
  const std::vector<Operand>& parts = o[unpacks ? 0 : 1].parts;
  const int size = bytes_of(words.back());
  in.size = static_cast<u8>(size);
  in.is_mov = true;
  for (const Operand& part : parts) {
    in.w.push_back(size_of(part, size / static_cast<int>(parts.size())));
    in.v.push_back(unpacks ? destination(in, part, in.w.back()) : source(in, part, in.w.back()));
  }
  in.function = unpacks ? unpack : pack;
  if (unpacks)
    in.a = source(in, o[1], size);
  else
    in.d = destination(in, o[0], size);
  return true;
}

}  // namespace ptx
