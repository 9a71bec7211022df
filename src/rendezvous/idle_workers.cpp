// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/idle_workers.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <dlfcn.h>
#include <fstream>
#include <link.h>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace lockstep::rendezvous {
namespace {

using OmpPause = int (*)(int kind, int device);
using OmpDevice = int (*)();

// Closes a library's handle.
struct DlClose {
  void operator()(void* library) const { ::dlclose(library); }
};

// /proc/self/task/<thread>/syscall: "number arguments(6) stack-pointer program-counter", or "running".
std::optional<std::uintptr_t> stack_of_sleeper(pid_t thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/syscall", thread));
  long number = 0;
  if (!(file >> number) || number != SYS_futex) return std::nullopt;
  std::string word;
  for (int argument = 0; argument < 6; ++argument) file >> word;
  if (!(file >> word)) return std::nullopt;
  return std::stoull(word, nullptr, 16);
}

// Unlike a plain read fails, should the thread have ended and its stack be gone.
template <std::size_t size>
bool read_memory(std::uintptr_t from, std::array<std::uintptr_t, size>& to) {
  iovec here{.iov_base = to.data(), .iov_len = sizeof(to)};
  iovec there{.iov_base = reinterpret_cast<void*>(from), .iov_len = sizeof(to)};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) > 0;
}

struct CodeRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// Where LibTorch has the code of pthreadpool: between functions of it that are exported, and a little around.
CodeRange pool_code() {
  constexpr std::uintptr_t around = std::uintptr_t{16} * 1024;
  std::vector<std::uintptr_t> addresses;
  for (const char* name : {"pthreadpool_create", "pthreadpool_destroy", "pthreadpool_parallelize_1d"}) {
    const auto address = reinterpret_cast<std::uintptr_t>(::dlsym(RTLD_DEFAULT, name));
    if (address == 0) return {};
    addresses.push_back(address);
  }
  const auto [lowest, highest] = std::ranges::minmax(addresses);
  return {.begin = lowest - around, .end = highest + around};
}

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> names;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t /*size*/, void* all) {
        static_cast<std::vector<std::string>*>(all)->emplace_back(info->dlpi_name);
        return 0;
      },
      &names);
  return names;
}

}  // namespace

void release_idle_workers() {
  constexpr int soft = 1;
  std::set<OmpPause> done;
  for (const auto& name : loaded_libraries()) {
    const std::unique_ptr<void, DlClose> library(::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD));
    if (!library) continue;
    const auto pause = reinterpret_cast<OmpPause>(::dlsym(library.get(), "omp_pause_resource"));
    const auto host = reinterpret_cast<OmpDevice>(::dlsym(library.get(), "omp_get_initial_device"));
    if (pause != nullptr && host != nullptr && done.insert(pause).second) pause(soft, host());
  }
}

bool survives_a_fork(pid_t thread) {
  const auto code = pool_code();
  const auto stack_pointer = stack_of_sleeper(thread);
  if (code.end == 0 || !stack_pointer) return false;
  // Who called the function that sleeps, and who that: a worker does nothing else.
  constexpr std::size_t depth = 16;
  std::array<std::uintptr_t, depth> stack{};
  if (!read_memory(*stack_pointer, stack)) return false;
  return std::ranges::any_of(stack,
                             [&](std::uintptr_t word) { return word >= code.begin && word < code.end; });
}

}  // namespace lockstep::rendezvous
