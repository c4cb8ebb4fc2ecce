// The operands of an instruction: registers, constants, symbols, addresses.
#include <cctype>

#include "ptx/parser.hpp"

namespace ptx {

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> all(1);
  for (const char c : text)
    if (c == by)
      all.emplace_back();
    else
      all.back() += c;
  return all;
}

std::string trimmed(const std::string& text) {
  const auto from = text.find_first_not_of(" \t\r\n"), to = text.find_last_not_of(" \t\r\n");
  return from == std::string::npos ? "" : text.substr(from, to - from + 1);
}

int bytes_of(const std::string& type) {
  if (type == "pred") return 0;
  for (const auto& [end, bytes] : {std::pair{"16", 2}, {"32", 4}, {"64", 8}, {"8", 1}})
    if (type.ends_with(end)) return bytes;
  return -1;
}

void Parser::bad(const std::string& what, const std::string& text) const {
  throw Failure("not modelled in " + kernel_.name + ": " + what + " in: " + text);
}

i32 Parser::space_for(int size) {
  const u32 align = size == 0 ? 4 : 64;
  kernel_.register_bytes = (kernel_.register_bytes + align - 1) / align * align;
  const i32 at = static_cast<i32>(kernel_.register_bytes);
  kernel_.register_bytes += size == 0 ? 4U : static_cast<u32>(size) * 32;
  return at;
}

Register* Parser::find(const std::string& name) {
  for (int s = scope_; s >= 0; s = scopes_[static_cast<std::size_t>(s)].parent) {
    Scope& scope = scopes_[static_cast<std::size_t>(s)];
    if (const auto found = scope.registers.find(name); found != scope.registers.end()) return &found->second;
    std::size_t digits = name.size();
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
    if (digits == name.size()) continue;
    const auto range = scope.ranges.find(name.substr(0, digits));
    if (range == scope.ranges.end() || std::stoi(name.substr(digits)) >= range->second.second) continue;
    const int size = range->second.first;
    return &(scope.registers[name] = {space_for(size), size});
  }
  for (const char* special : {"%tid.", "%ntid.", "%ctaid.", "%nctaid.", "%laneid"})
    if (name.starts_with(special)) {
      const Register made{space_for(4), 4};
      kernel_.specials.emplace_back(made.offset, name);
      return &(scopes_[0].registers[name] = made);
    }
  return nullptr;
}

i32 Parser::constant(u64 bits, int size) {
  const auto [known, is_new] = constants_.try_emplace({bits, size}, 0);
  if (!is_new) return known->second;
  known->second = space_for(size);
  std::vector<u8> lanes(size == 0 ? 4 : static_cast<std::size_t>(size) * 32, bits != 0 ? 0xff : 0);
  for (std::size_t i = 0; size != 0 && i < lanes.size(); ++i)
    lanes[i] = static_cast<u8>(bits >> (8 * (i % static_cast<std::size_t>(size))));
  kernel_.constants.emplace_back(known->second, lanes);
  return known->second;
}

std::vector<std::string> Parser::split_operands(const std::string& text) {
  std::vector<std::string> all;
  std::string one;
  int depth = 0;
  for (const char c : text) {
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == ',' && depth == 0) {
      all.push_back(trimmed(one));
      one.clear();
    } else {
      one += c;
    }
  }
  if (!trimmed(one).empty()) all.push_back(trimmed(one));
  return all;
}

Operand Parser::operand(std::string text, const std::string& instruction) {
  Operand o;
  if (text.empty()) bad("an empty operand", instruction);
  if (text == "_") return o;
  if (text[0] == '{') {
    o.kind = Operand::vector;
    for (const auto& part : split_operands(text.substr(1, text.size() - 2)))
      o.parts.push_back(operand(part, instruction));
    return o;
  }
  if (text[0] == '[') {
    o.kind = Operand::memory;
    const auto parts = split_operands(text.substr(1, text.size() - 2));
    if (parts.size() > 1) o.parts.push_back(operand(parts[1], instruction));
    const std::size_t sign = parts[0].find_first_of("+-", 1);
    o.name = trimmed(parts[0].substr(0, sign));
    if (sign != std::string::npos)
      o.offset = std::stoll(parts[0].substr(parts[0][sign] == '+' ? sign + 1 : sign), nullptr, 0);
    return o;
  }
  if (const auto bar = text.find('|'); bar != std::string::npos) {  // a result and a predicate
    o = operand(text.substr(0, bar), instruction);
    o.parts.push_back(operand(text.substr(bar + 1), instruction));
    return o;
  }
  if (text[0] == '!') {
    o = operand(text.substr(1), instruction);
    o.negated = true;
    return o;
  }
  if (text[0] == '-' || std::isdigit(static_cast<unsigned char>(text[0]))) {
    o.kind = Operand::immediate;
    if (text.starts_with("0f") || text.starts_with("0F"))
      o.bits = std::stoull(text.substr(2), nullptr, 16);
    else
      o.bits =
          text[0] == '-' ? static_cast<u64>(std::stoll(text, nullptr, 0)) : std::stoull(text, nullptr, 0);
    return o;
  }
  o.kind = find(text) != nullptr ? Operand::register_name : Operand::symbol;
  const std::size_t sign = o.kind == Operand::symbol ? text.find('+') : std::string::npos;
  o.name = trimmed(text.substr(0, sign));
  if (sign != std::string::npos) o.offset = std::stoll(text.substr(sign + 1), nullptr, 0);
  return o;
}

const u64* Parser::symbol(const std::string& name, Space& space) const {
  for (const auto& [symbols, where] : {std::pair{&shared_symbols_, shared}, {&local_symbols_, local}})
    if (const auto found = symbols->find(name); found != symbols->end()) {
      space = where;
      return &found->second;
    }
  return nullptr;
}

i32 Parser::source(Instruction& in, const Operand& o, int size) {
  if (o.kind == Operand::immediate) return constant(o.bits, size);
  if (o.kind == Operand::symbol) {
    Space space;
    if (const u64* at = symbol(o.name, space)) return constant(*at + static_cast<u64>(o.offset), size);
    for (const Parameter& p : kernel_.parameters)
      if (p.name == o.name) return constant(p.offset + static_cast<u64>(o.offset), size);
    bad("symbol " + o.name, in.text);
  }
  if (o.kind != Operand::register_name) bad("a source operand", in.text);
  const Register* r = find(o.name);
  if (r->size != size)
    bad("register " + o.name + " of " + std::to_string(r->size) + " bytes, not " + std::to_string(size),
        in.text);
  in.reads.push_back(r->offset);
  return r->offset;
}

i32 Parser::destination(Instruction& in, const Operand& o, int size) {
  if (o.kind == Operand::sink) return -1;
  if (o.kind != Operand::register_name) bad("a destination operand", in.text);
  const i32 at = source(in, o, size);
  in.reads.pop_back();
  in.writes.push_back(at);
  return at;
}

int Parser::size_of(const Operand& o, int otherwise) {
  return o.kind == Operand::register_name ? find(o.name)->size : otherwise;
}

/// The address of ld, st and others: [register + immediate] or [symbol + immediate].
void Parser::address(Instruction& in, const Operand& o) {
  if (o.kind != Operand::memory) bad("no memory operand", in.text);
  in.immediate = o.offset;
  if (const Register* r = find(o.name)) {
    in.a = r->offset;
    in.wide_address = r->size == 8;
    in.reads.push_back(r->offset);
    return;
  }
  Space space;
  if (const u64* at = symbol(o.name, space)) {
    in.immediate += static_cast<i64>(*at);
    return;
  }
  for (const Parameter& p : kernel_.parameters)
    if (p.name == o.name) {
      in.immediate += p.offset;
      return;
    }
  bad("address " + o.name, in.text);
}

/// The register of the address [register] of a copy. \param size  its bytes
i32 Parser::address_register(Instruction& in, const Operand& o, int size) {
  const Register* r = o.kind == Operand::memory ? find(o.name) : nullptr;
  if (r == nullptr || r->size != size) bad("an address", in.text);
  in.reads.push_back(r->offset);
  return r->offset;
}

}  // namespace ptx
