// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/library.h"

#include <dlfcn.h>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"

namespace lockstep::mpi {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "liblockstep_mpi.so";

// The folder of the program or shared library that this code is part of.
fs::path own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&load_library), &info) == 0) return {};
  std::error_code failed;
  const auto file = fs::canonical(info.dli_fname, failed);
  // For the program itself, dladdr() gives what it was started as.
  return failed ? fs::read_symlink("/proc/self/exe", failed).parent_path() : file.parent_path();
}

std::vector<fs::path> candidates(const Env& env) {
  if (const auto named = env.get("LOCKSTEP_MPI_MODULE")) return {*named};
  const auto own = own_folder();
  return {own / kModule, own / ".." / LOCKSTEP_LIBRARY_FOLDER / kModule,
          fs::path(LOCKSTEP_LIBRARY_PATH) / kModule};
}

}  // namespace

Library& load_library(const Env& env) {
  const auto files = candidates(env);
  for (const auto& file : files) {
    std::error_code failed;
    if (!fs::exists(file, failed)) continue;
    auto* const module = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    auto* const entry = module != nullptr ? ::dlsym(module, kEntry) : nullptr;
    if (entry == nullptr) {
      throw_error<Error>("the mpi module could not be loaded (is MPI installed on this host?): {}",
                         ::dlerror());
    }
    return *reinterpret_cast<Entry>(entry)();
  }
  std::vector<std::string> names;
  for (const auto& file : files) names.push_back(file.lexically_normal().string());
  throw_error<Error>("the mpi module was not found at {}; set LOCKSTEP_MPI_MODULE to {}",
                     fmt::join(names, ", "), kModule);
}

}  // namespace lockstep::mpi
