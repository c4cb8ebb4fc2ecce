// The text of a kernel's body: scopes, declarations, labels, statements.
#include "ptx/parser.hpp"

#include <algorithm>
#include <sstream>

namespace ptx {

/// .loc FILE LINE COLUMN [, function_name ..., inlined_at FILE LINE COLUMN]
void Parser::location(const std::string& text) {
  std::istringstream in(text);
  std::string word;
  in >> word >> file_ >> cuda_line_;
  caller_line_ = 0;
  while (in >> word)
    if (word == "inlined_at") in >> caller_file_ >> caller_line_;
}

void Parser::declare(const std::string& text) {
  std::istringstream in(text);
  std::string word, type, name;
  in >> word;
  if (word == ".pragma") return;
  if (word == ".reg") {
    in >> type;
    std::getline(in, name);
    const int size = bytes_of(type.substr(1));
    if (size < 0) bad("a register", text);
    for (const std::string& untrimmed : split(name, ',')) {
      const std::string one = trimmed(untrimmed);
      Scope& scope = scopes_[static_cast<std::size_t>(scope_)];
      if (const auto open = one.find('<'); open != std::string::npos)
        scope.ranges[one.substr(0, open)] = {size, std::stoi(one.substr(open + 1))};
      else
        scope.registers[one] = {space_for(size), size};
    }
    return;
  }
  if (word != ".shared" && word != ".local") bad("a directive", text);
  u32 align = 1, count = 1;
  in >> type;
  if (type == ".align") in >> align >> type;
  in >> name;
  const u32 size = static_cast<u32>(bytes_of(type.substr(1)));
  if (const auto open = name.find('['); open != std::string::npos) {
    count = static_cast<u32>(std::stoul(name.substr(open + 1)));
    name.resize(open);
  }
  align = std::max(align, size);
  const bool is_shared = word == ".shared";
  u32& used = is_shared ? kernel_.static_shared : kernel_.local_bytes;
  used = (used + align - 1) / align * align;
  (is_shared ? shared_symbols_ : local_symbols_)[name] = used + (is_shared ? shared_base : 0);
  used += count * size;
}

void Parser::instruction(const std::string& text, u32 line) {
  Instruction in;
  in.text = text;
  in.line = line;
  in.file = file_, in.cuda_line = cuda_line_;
  in.caller_file = caller_file_, in.caller_line = caller_line_;
  std::string rest = text;
  if (rest[0] == '@') {
    const auto end = rest.find_first_of(" \t");
    in.guard_negated = rest[1] == '!';
    const std::size_t from = in.guard_negated ? 2 : 1;
    const Register* guard = find(rest.substr(from, end - from));
    if (guard == nullptr || guard->size != 0) bad("guard", text);
    in.guard = guard->offset;
    rest = trimmed(rest.substr(end));
  }
  const auto end = rest.find_first_of(" \t\n");
  const std::string name = rest.substr(0, end);
  rest = end == std::string::npos ? "" : trimmed(rest.substr(end));
  const Words words = split(name, '.');
  if (words[0] == "bra") {
    in.kind = Kind::branch;
    jumps_.push_back({kernel_.code.size(), rest, scope_});
  } else if (words[0] == "ret" || words[0] == "exit") {
    in.kind = Kind::exit;
  } else if (words[0] == "trap") {
    in.kind = Kind::trap;
  } else {
    std::vector<Operand> o;
    for (const std::string& one : split_operands(rest)) o.push_back(operand(one, text));
    if (!(decode_move(in, words, o) || decode_arithmetic(in, name, o) || decode_memory(in, words, o) ||
          decode_copy(in, words, o) || decode_mbarrier(in, words, o) || decode_warp(in, words, o) ||
          decode_matrix(in, words, o) || decode_wgmma(in, words, o)))
      bad("instruction", text);
  }
  kernel_.code.push_back(std::move(in));
}

void Parser::statement(const std::string& text, u32 line) {
  if (text.empty()) return;
  if (text[0] == '.')
    declare(text);
  else
    instruction(text, line);
}

void Parser::parse(const std::string& body) {
  std::istringstream lines(body);
  std::string text, statement_text;
  u32 begin = line_;
  int braces = 0;
  for (; std::getline(lines, text); ++line_) {
    text = trimmed(text.substr(0, text.find("//")));
    if (statement_text.empty() && text.starts_with(".loc")) {
      location(text);
      continue;
    }
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      const std::string so_far = trimmed(statement_text);
      if (so_far.empty()) {
        statement_text.clear();
        begin = line_;
        if (c == '{') {
          scopes_.push_back({scope_, {}, {}, {}});
          scope_ = static_cast<int>(scopes_.size()) - 1;
          continue;
        }
        if (c == '}') {
          scope_ = scopes_[static_cast<std::size_t>(scope_)].parent;
          continue;
        }
      }
      braces += (c == '{') - (c == '}');
      if (c == ';' && braces == 0) {
        statement_text.clear();
        statement(so_far, begin);
      } else if (c == ':' && braces == 0 && so_far.find_first_of(" .[@:") == std::string::npos &&
                 text.compare(i, 2, "::") != 0) {
        scopes_[static_cast<std::size_t>(scope_)].labels[so_far] = static_cast<int>(kernel_.code.size());
        statement_text.clear();
      } else {
        statement_text += c;
      }
    }
    if (!statement_text.empty()) statement_text += ' ';
  }
  for (const Jump& jump : jumps_) {
    for (int s = jump.scope; s >= 0 && kernel_.code[jump.at].target < 0;
         s = scopes_[static_cast<std::size_t>(s)].parent) {
      const auto& labels = scopes_[static_cast<std::size_t>(s)].labels;
      if (const auto found = labels.find(jump.label); found != labels.end())
        kernel_.code[jump.at].target = found->second;
    }
    if (kernel_.code[jump.at].target < 0) bad("label " + jump.label, kernel_.code[jump.at].text);
  }
  mark_registers_of_wgmma();
}

void Parser::mark_registers_of_wgmma() {
  std::vector<i32> all;
  for (const Instruction& in : kernel_.code)
    if (in.text.find("wgmma.mma_async") != std::string::npos)
      for (const auto* list : {&in.v, &in.w}) all.insert(all.end(), list->begin(), list->end());
  std::ranges::sort(all);
  const auto is_one = [&](i32 r) { return std::ranges::binary_search(all, r); };
  for (Instruction& in : kernel_.code)
    in.of_wgmma = std::ranges::any_of(in.reads, is_one) || std::ranges::any_of(in.writes, is_one);
}

}  // namespace ptx
