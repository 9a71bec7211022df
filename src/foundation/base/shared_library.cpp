// SPDX-License-Identifier: BSD-3-Clause
#include "base/shared_library.h"

#include <dlfcn.h>
#include <utility>

#include "base/throw_error.h"

namespace lockstep {

SharedLibrary::SharedLibrary(std::string name, const std::vector<std::string>& files,
                             const std::string& package)
    : name_(std::move(name)) {
  std::string problem;
  for (const auto& file : files) {
    handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return;
    const char* const reason = ::dlerror();
    problem += (problem.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : file);
  }
  throw_error<Error>("{} could not be loaded ({}); install it (Debian: {})", name_, problem, package);
}

SharedLibrary::Symbol SharedLibrary::operator[](const char* symbol) const {
  void* const address = ::dlsym(handle_, symbol);
  if (address == nullptr) throw_error<Error>("{} has no {}: it is too old", name_, symbol);
  return Symbol(address);
}

}  // namespace lockstep
