// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

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

}  // namespace lockstep
