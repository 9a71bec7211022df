// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dlfcn.h>
#include <string>
#include <utility>
#include <vector>

#include "base/throw_error.h"

namespace lockstep {

// A library of the system that is loaded when it is first used, so that programs that never use it run on
// machines without it. Stays loaded: libraries keep state of threads.
class SharedLibrary {
 public:
  // An address that becomes a pointer of the type that is asked for.
  class Symbol {
   public:
    explicit Symbol(void* address) : address_(address) {}
    template <typename Pointer>
    operator Pointer() const {  // NOLINT: implicit by design
      return reinterpret_cast<Pointer>(address_);
    }

   private:
    void* address_;
  };

  // The first of `files` that can be loaded. Throws an Error that says what to install: `package`.
  SharedLibrary(std::string name, const std::vector<std::string>& files, const std::string& package);

  Symbol operator[](const char* symbol) const;

 private:
  std::string name_;
  void* handle_ = nullptr;
};

inline SharedLibrary::SharedLibrary(std::string name, const std::vector<std::string>& files,
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

inline SharedLibrary::Symbol SharedLibrary::operator[](const char* symbol) const {
  void* const address = ::dlsym(handle_, symbol);
  if (address == nullptr) throw_error<Error>("{} has no {}: it is too old", name_, symbol);
  return Symbol(address);
}

}  // namespace lockstep
