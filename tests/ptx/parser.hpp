// PTX text to instructions: the parser of one kernel's body, and its operands.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ptx/machine.hpp"

namespace ptx {

/// Is `word` one of the words of an instruction's name?
inline bool has(const std::vector<std::string>& words, const char* word) {
  return std::ranges::find(words, word) != words.end();
}

std::vector<std::string> split(const std::string& text, char by);
std::string trimmed(const std::string& text);
/// The bytes of a fundamental type without its dot: 0 for pred, -1 if there is no such type.
int bytes_of(const std::string& type);

struct Operand {
  enum Kind { register_name, immediate, memory, vector, symbol, sink } kind = sink;
  std::string name;
  u64 bits = 0;
  bool negated = false;
  i64 offset = 0;
  std::vector<Operand> parts;  // of a vector; of memory: the coordinates; of a|b: b
};

struct Register {
  i32 offset;
  int size;  // 0: a predicate
};

class Parser {
 public:
  /// \param first_line  of the body in the text of the module
  /// \param symbols     addresses of dynamic shared memory; variables of the body are added
  Parser(Kernel& kernel, u32 first_line, std::map<std::string, u64> symbols)
      : kernel_(kernel), line_(first_line), shared_symbols_(std::move(symbols)) {}
  void parse(const std::string& body);

 private:
  using Words = std::vector<std::string>;  // of an instruction's name, such as {"add", "s32"}
  struct Scope {
    int parent;
    std::map<std::string, Register> registers;
    std::map<std::string, std::pair<int, int>> ranges;  // %r<10>: size and count
    std::map<std::string, int> labels;
  };
  struct Jump {
    std::size_t at;
    std::string label;
    int scope;
  };

  [[noreturn]] void bad(const std::string& what, const std::string& text) const;
  // operands.cpp
  i32 space_for(int size);
  Register* find(const std::string& name);
  i32 constant(u64 bits, int size);
  Operand operand(std::string text, const std::string& instruction);
  static std::vector<std::string> split_operands(const std::string& text);
  const u64* symbol(const std::string& name, Space& space) const;
  i32 source(Instruction& in, const Operand& o, int size);
  i32 destination(Instruction& in, const Operand& o, int size);
  [[nodiscard]] int size_of(const Operand& o, int otherwise);
  void address(Instruction& in, const Operand& o);
  i32 address_register(Instruction& in, const Operand& o, int size);
  // decode_*.cpp: false if the instruction is not theirs
  bool decode_arithmetic(Instruction& in, const std::string& name, const std::vector<Operand>& o);
  bool decode_move(Instruction& in, const Words& words, const std::vector<Operand>& o);
  bool decode_memory(Instruction& in, const Words& words, const std::vector<Operand>& o);
  bool decode_copy(Instruction& in, const Words& words, const std::vector<Operand>& o);
  bool decode_mbarrier(Instruction& in, const Words& words, const std::vector<Operand>& o);
  bool decode_warp(Instruction& in, const Words& words, const std::vector<Operand>& o);
  bool decode_matrix(Instruction& in, const Words& words, const std::vector<Operand>& o);
  bool decode_wgmma(Instruction& in, const Words& words, const std::vector<Operand>& o);
  // parser.cpp
  void statement(const std::string& text, u32 line);
  void instruction(const std::string& text, u32 line);
  void declare(const std::string& text);
  void location(const std::string& text);
  void mark_registers_of_wgmma();

  Kernel& kernel_;
  u32 line_;
  std::map<std::string, u64> shared_symbols_, local_symbols_;
  std::vector<Scope> scopes_{{-1, {}, {}, {}}};
  int scope_ = 0;
  std::vector<Jump> jumps_;
  std::map<std::pair<u64, int>, i32> constants_;
  u32 file_ = 0, cuda_line_ = 0, caller_file_ = 0, caller_line_ = 0;
};

}  // namespace ptx
