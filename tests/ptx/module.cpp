// The text of a module: source files, entries with their parameters, and where dynamic shared memory begins.
#include <algorithm>
#include <sstream>

#include "ptx/parser.hpp"

namespace ptx {
namespace {

/// ".param .align 64 .b8 name[128]" and ".param .u64 .ptr .align 1 name"
void add_parameter(Kernel& kernel, const std::string& text) {
  std::istringstream in(text);
  std::string word;
  Parameter p{"", 0, 0, 1};
  u32 size = 0, count = 1;
  bool pointer = false;
  while (in >> word) {
    if (word == ".ptr") {
      pointer = true;
    } else if (word == ".align") {
      u32 align;
      in >> align;
      if (!pointer) p.align = align;  // else that of what it points to
    } else if (word[0] != '.') {
      p.name = word;
    } else if (const int bytes = bytes_of(word.substr(1)); bytes > 0) {
      size = static_cast<u32>(bytes);
    }
  }
  if (const auto open = p.name.find('['); open != std::string::npos) {
    count = static_cast<u32>(std::stoul(p.name.substr(open + 1)));
    p.name.resize(open);
  }
  p.size = count * size;
  p.align = std::max(p.align, size);
  p.offset = (kernel.parameter_bytes + p.align - 1) / p.align * p.align;
  kernel.parameter_bytes = p.offset + p.size;
  kernel.parameters.push_back(p);
}

/// .maxntid X, Y, Z and .minnctapersm N
void read_bounds(Kernel& kernel, const std::string& text) {
  std::istringstream in(text);
  std::string word;
  while (in >> word) {
    if (word == ".minnctapersm") in >> kernel.min_blocks;
    if (word != ".maxntid") continue;
    kernel.max_threads = 1;
    do {
      in >> word;
      kernel.max_threads *= static_cast<u32>(std::stoul(word));
    } while (word.back() == ',');
  }
}

std::size_t end_of_braces(const std::string& text, std::size_t at) {
  int depth = 0;
  do depth += (text[at] == '{') - (text[at] == '}');
  while (++at < text.size() && depth > 0);
  return at;
}

struct Header {  // what stands before the entries
  std::map<u32, std::string> files;
  std::vector<std::string> dynamic;  // names of .extern .shared
};

Header read_header(const std::string& text) {
  Header header;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::string word, name;
    in >> word;
    if (u32 number; word == ".file" && in >> number >> name && name.size() > 2)
      header.files[number] = name.substr(1, name.find('"', 1) - 1);
    if (word == ".extern" && in >> word && word == ".shared") {
      const std::string last = trimmed(line.substr(line.find_last_of(' ')));
      header.dynamic.push_back(last.substr(0, last.find('[')));
    }
  }
  return header;
}

}  // namespace

std::vector<std::unique_ptr<Kernel>> parse_module(const std::string& text, int architecture) {
  const Header header = read_header(text);
  std::vector<std::unique_ptr<Kernel>> all;
  constexpr std::string_view entry = ".entry ";
  for (std::size_t at = text.find(entry); at != std::string::npos; at = text.find(entry, at + 1)) {
    const auto open = text.find('(', at), close = text.find(')', open), body = text.find('{', close);
    const std::string inside = text.substr(body + 1, end_of_braces(text, body) - body - 2);
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(body), '\n');
    const auto parsed = [&](u32 dynamic_begin) {
      auto kernel = std::make_unique<Kernel>();
      kernel->name = trimmed(text.substr(at + entry.size(), open - at - entry.size()));
      kernel->files = header.files;
      kernel->architecture = architecture;
      for (const std::string& one : split(text.substr(open + 1, close - open - 1), ','))
        if (!trimmed(one).empty()) add_parameter(*kernel, trimmed(one));
      read_bounds(*kernel, text.substr(close + 1, body - close - 1));
      std::map<std::string, u64> symbols;
      for (const std::string& name : header.dynamic) symbols[name] = shared_base + dynamic_begin;
      try {
        Parser(*kernel, static_cast<u32>(line), symbols).parse(inside);
      } catch (const std::exception& error) {
        kernel->error = error.what();
      }
      return kernel;
    };
    auto kernel = parsed(0);
    if (kernel->static_shared != 0 && !header.dynamic.empty()) {
      // Dynamic shared memory begins behind the static.
      const u32 begin = (kernel->static_shared + 1023) / 1024 * 1024;
      kernel = parsed(begin);
      kernel->static_shared = begin;
    }
    all.push_back(std::move(kernel));
  }
  return all;
}

}  // namespace ptx
