// The PTX of the program: nvcc registers fat binaries and kernels before main().
#include "ptx/fat_binary.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>

namespace ptx {
namespace {

struct Module {
  std::string text;
  int architecture;
  bool parsed = false;
  std::vector<std::unique_ptr<Kernel>> kernels = {};
};
struct FatBinary {
  std::vector<Module> modules;
};
std::map<const void*, KernelStub>& functions() {
  static auto& all = *new std::map<const void*, KernelStub>;
  return all;
}

template <class T>
T read(const u8* from) {
  T value;
  std::memcpy(static_cast<void*>(&value), from, sizeof value);
  return value;
}

/// A kernel's name without the number that nvcc gives to a file's unnamed namespace.
std::string without_file(const std::string& name) {
  static const std::regex number("_GLOBAL__N__[0-9a-f]+_");
  static const std::regex end("_[0-9a-f]{8}(?=[0-9]+[a-z])");
  return std::regex_replace(std::regex_replace(name, number, ""), end, "");
}

/// The kernel of the file that PTX_FILE names, or nullptr.
Kernel* replacement_of(const std::string& name, int capability) {
  const char* path = std::getenv("PTX_FILE");
  if (path == nullptr) return nullptr;
  static const auto& kernels = *new auto([&] {
    std::ifstream file(path);
    if (!file) throw Failure(std::string("PTX_FILE: ") + path + " cannot be read");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return parse_module(text, capability);
  }());
  for (const auto& kernel : kernels)
    if (without_file(kernel->name) == without_file(name)) return kernel.get();
  return nullptr;
}

}  // namespace

KernelStub* find_function(const void* host) {
  const auto found = functions().find(host);
  return found == functions().end() ? nullptr : &found->second;
}

Kernel* kernel_of(KernelStub& function, int capability) {
  if (function.kernel == nullptr) function.kernel = replacement_of(function.name, capability);
  auto& modules = static_cast<FatBinary*>(function.fat_binary)->modules;
  for (int architecture = capability; architecture >= 80 && function.kernel == nullptr; --architecture)
    for (Module& module : modules) {
      if (module.architecture != architecture) continue;
      if (!module.parsed) module.kernels = parse_module(module.text, architecture);
      module.parsed = true;
      for (const auto& kernel : module.kernels)
        if (kernel->name == function.name) function.kernel = kernel.get();
    }
  return function.kernel;
}

}  // namespace ptx

using ptx::read;
using ptx::u16;
using ptx::u32;
using ptx::u64;
using ptx::u8;

// The names are those that nvcc's code calls, and it passes pointers to pointers as it likes.
// NOLINTBEGIN(bugprone-reserved-identifier, bugprone-multi-level-implicit-pointer-conversion)
extern "C" {

/// The layout is nvcc's: after a header, entries of {kind u16, version u16, header size u32, payload size u64, ...
/// architecture u32 at 28}. Kind 1 is PTX.
void** __cudaRegisterFatBinary(void* wrapper) {
  auto* fat_binary = new ptx::FatBinary;  // until the end of the program
  const u8* begin = read<const u8*>(static_cast<const u8*>(wrapper) + 8);
  const u8* at = begin + read<u16>(begin + 6);
  const u8* end = at + read<u64>(begin + 8);
  while (at < end) {
    const u64 bytes = read<u64>(at + 8);
    const u32 header = read<u32>(at + 4);
    if (read<u16>(at) == 1) {
      ptx::Module module{std::string(reinterpret_cast<const char*>(at + header), bytes),
                         static_cast<int>(read<u32>(at + 28))};
      if (module.text.find(".version") == std::string::npos)
        std::fprintf(stderr,
                     "PTX ERROR: a fat binary is compressed. Remedy: compile it with --no-compress.\n");
      if (ptx::setting("PTX_DECODE", 0) != 0) {  // prints what is not modelled, without a launch
        for (const auto& kernel : ptx::parse_module(module.text, module.architecture))
          std::fprintf(stderr, "PTX sm_%d %zu %s %s\n", module.architecture, kernel->code.size(),
                       kernel->name.c_str(), kernel->error.c_str());
      }
      fat_binary->modules.push_back(std::move(module));
    }
    at += header + bytes;
  }
  return reinterpret_cast<void**>(fat_binary);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** fat_binary, const char* host, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  ptx::KernelStub& stub = ptx::functions()[host];
  // Objects that instantiate the same template share its stub: the first that has PTX counts.
  if (stub.fat_binary == nullptr || static_cast<ptx::FatBinary*>(stub.fat_binary)->modules.empty())
    stub = {fat_binary, name};
}
char __cudaInitModule(void**) { return 1; }

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier, bugprone-multi-level-implicit-pointer-conversion)
