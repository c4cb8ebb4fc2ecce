#include "python/mpi_libraries.hpp"

#include <dlfcn.h>
#include <mpi.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#else
#include <link.h>
#endif

#include <algorithm>
#include <array>

#include "ring_attention/core/error.hpp"

namespace ring_attention::python {
namespace {

/// The files of all shared libraries of this process.
std::vector<std::string> loaded_files() {
  std::vector<std::string> files;
#ifdef __APPLE__
  for (std::uint32_t image = 0; image < _dyld_image_count(); ++image)
    files.push_back(_dyld_get_image_name(image));
#else
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* all) {
        if (info->dlpi_name != nullptr && *info->dlpi_name != '\0')
          static_cast<std::vector<std::string>*>(all)->emplace_back(info->dlpi_name);
        return 0;
      },
      &files);
#endif
  return files;
}

using GetLibraryVersion = int (*)(char*, int*);

/// The function of a library which is loaded, or null.
GetLibraryVersion version_function(const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* symbol = dlsym(library, "MPI_Get_library_version");
  dlclose(library);  // it stays loaded
  return reinterpret_cast<GetLibraryVersion>(symbol);
}

std::string first_line(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  std::ranges::replace(line, '\t', ' ');
  return line;
}

}  // namespace

void load_mpi() {
#ifdef RING_ATTENTION_WITHOUT_MPI
  throw Error(
      "this build of ring_attention has no MPI: build it where MPICH is, or give group= (threads, "
      "torch.distributed)");
#endif
  std::string why;
  for (const char* const name :
       {RING_ATTENTION_MPI_LIBRARY, "libmpich.so.12", "libmpi.so.12", "libmpi.12.dylib"}) {
    if (*name != '\0' && dlopen(name, RTLD_LAZY | RTLD_GLOBAL) != nullptr) return;
    if (why.empty()) why = dlerror();
  }
  throw Error("MPICH cannot be loaded (" + why +
              "): install it, or give group= (threads, torch.distributed)");
}

std::vector<std::string> loaded_mpi_libraries() {
  std::vector<std::string> texts;
  for (const std::string& file : loaded_files())
    if (const GetLibraryVersion get_version = version_function(file)) {
      std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> text{};
      int length = 0;
      get_version(text.data(), &length);
      if (std::ranges::count(texts, text.data()) == 0) texts.emplace_back(text.data());
    }
  std::ranges::transform(texts, texts.begin(), first_line);
  return texts;
}

void require_one_mpi_library() {
  const std::vector<std::string> found = loaded_mpi_libraries();
  if (found.size() > 1)
    throw Error("this process has loaded two MPI libraries, \"" + found[0] + "\" and \"" + found[1] +
                "\": use only the one of ring_attention, for example with an mpi4py that is built with it");
}

}  // namespace ring_attention::python
