// Loads, stores, copies and mbarriers.
#include "ptx/memory.hpp"
#include "ptx/parser.hpp"

namespace ptx {
namespace {

u8 space_of(const std::vector<std::string>& words) {
  if (has(words, "shared") || has(words, "shared::cta")) return shared;
  return has(words, "global") ? global : has(words, "local") ? local : has(words, "param") ? param : generic;
}

}  // namespace

bool Parser::decode_memory(Instruction& in, const Words& words, const std::vector<Operand>& o) {
  const std::string &name = words[0], &type = words.back();
  if (name == "fence" || name == "membar") {
    // A fence between blocks changes nothing: blocks see each other's writes.
    if (!has(words, "proxy"))
      in.kind = Kind::nothing;
    else if (has(words, "async") || has(words, "async::shared::cta") || words.back() == "shared::cta")
      in.function = fence_proxy_async;
    else
      bad("a proxy fence", in.text);
    return true;
  }
  const bool loads = name == "ld", stores = name == "st", adds = name == "atom" || name == "red";
  if (!loads && !stores && !adds) return false;
  in.size = static_cast<u8>(bytes_of(type));
  in.space = space_of(words);
  if (in.size > 8 || (adds && !has(words, "add"))) bad("a type or an operation", in.text);
  std::size_t at = 0;
  if (name == "atom") in.d = destination(in, o.at(at++), in.size);
  address(in, o.at(loads ? 1 : at));
  const Operand& value = o.at(loads ? 0 : at + 1);
  for (const Operand& part : value.kind == Operand::vector ? value.parts : std::vector{value}) {
    in.w.push_back(size_of(part, in.size));
    in.v.push_back(loads ? destination(in, part, in.w.back()) : source(in, part, in.w.back()));
  }
  in.function = loads ? load : stores ? store : atomic_add;
  in.modifiers = loads ? type[0] == 's' : type[0] == 'f';
  return true;
}

bool Parser::decode_copy(Instruction& in, const Words& words, const std::vector<Operand>& o) {
  if (words[0] != "cp") return false;
  const bool bulk = has(words, "bulk");
  if (has(words, "commit_group")) {
    in.function = bulk ? bulk_commit : cp_async_commit;
  } else if (has(words, "wait_group") || has(words, "wait_all")) {
    in.function = bulk ? bulk_wait : cp_async_wait;
    in.immediate = has(words, "wait_all") ? -1 : static_cast<i64>(o.at(0).bits);
    if (bulk && in.immediate != 0) bad("a bulk group that may stay under way", in.text);
  } else if (!bulk) {
    if (has(words, "mbarrier")) bad("cp.async.mbarrier", in.text);
    in.function = cp_async;
    in.a = address_register(in, o.at(0), 4);
    in.immediate = o[0].offset;
    in.b = address_register(in, o.at(1), 8);
    in.modifiers = static_cast<u32>(o[1].offset);
    in.size = static_cast<u8>(o.at(2).bits);
    if (o.size() > 3) in.c = source(in, o[3], 4);
    if (has(words, "cg") && in.size != 16) bad("cp.async.cg of other than 16 bytes", in.text);
  } else if (has(words, "reduce")) {
    if (!has(words, "add") || words.back() != "f32" || !has(words, "bulk_group")) bad("reduce", in.text);
    in.function = bulk_add;
    in.a = address_register(in, o.at(0), 8);
    in.b = address_register(in, o.at(1), 4);
    in.v = {source(in, o.at(2), 4)};
  } else {
    const bool tensor = has(words, "tensor");
    const bool to_shared = words[3].starts_with("shared") || (tensor && words[5].starts_with("shared"));
    if (!to_shared || !has(words, "mbarrier::complete_tx::bytes") || (tensor && !has(words, "tile")))
      bad("a bulk copy", in.text);
    in.function = tensor ? tma_load : bulk_load;
    in.a = address_register(in, o.at(0), 4);
    in.immediate = o[0].offset;
    in.b = address_register(in, o.at(1), 8);
    in.c = address_register(in, o.at(tensor ? 2 : 3), 4);
    if (tensor)
      for (const Operand& x : o[1].parts.at(0).parts) in.v.push_back(source(in, x, 4));
    else
      in.v = {source(in, o.at(2), 4)};
  }
  if (in.function != cp_async && in.function != tma_load)
    for (const Operand& one : o)
      if (one.offset != 0) bad("an offset", in.text);
  return true;
}

bool Parser::decode_mbarrier(Instruction& in, const Words& words, const std::vector<Operand>& o) {
  if (words[0] != "mbarrier") return false;
  if (has(words, "init")) {
    in.function = mbarrier_init;
    address(in, o.at(0));
    in.b = source(in, o.at(1), 4);
  } else if (has(words, "arrive")) {
    if (has(words, "noComplete") || o.at(0).kind != Operand::sink) bad("arrive with a state", in.text);
    in.function = mbarrier_arrive;
    address(in, o.at(1));
    in.modifiers = has(words, "expect_tx");
    if (in.modifiers)
      in.b = source(in, o.at(2), 4);
    else if (o.size() > 2)
      in.c = source(in, o[2], 4);
  } else if (has(words, "expect_tx")) {
    in.function = mbarrier_arrive;
    in.modifiers = 3;
    address(in, o.at(0));
    in.b = source(in, o.at(1), 4);
  } else if (has(words, "try_wait") && has(words, "parity")) {
    in.kind = Kind::try_wait;
    in.d = destination(in, o.at(0), 0);
    address(in, o.at(1));
    in.b = source(in, o.at(2), 4);
  } else {
    return false;
  }
  return true;
}

}  // namespace ptx
