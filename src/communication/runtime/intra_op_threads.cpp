// SPDX-License-Identifier: BSD-3-Clause
#include "runtime/intra_op_threads.h"

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

namespace lockstep::runtime {
namespace {

using OmpPause = int (*)(int kind, int device);
using OmpDevice = int (*)();
constexpr int kSoftPause = 1;

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

// Unlike a plain read, fails if the thread has ended and its stack is unmapped.
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

// The code of LibTorch's pthreadpool: the range of its exported functions, with a margin.
CodeRange pool_code() {
  constexpr std::uintptr_t margin = std::uintptr_t{16} * 1024;
  std::vector<std::uintptr_t> addresses;
  for (const char* name : {"pthreadpool_create", "pthreadpool_destroy", "pthreadpool_parallelize_1d"}) {
    const auto address = reinterpret_cast<std::uintptr_t>(::dlsym(RTLD_DEFAULT, name));
    if (address == 0) return {};
    addresses.push_back(address);
  }
  const auto [lowest, highest] = std::ranges::minmax(addresses);
  return {.begin = lowest - margin, .end = highest + margin};
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

void release_idle_threads() {
  // The OpenMP library that LibTorch has loaded.
  static const auto pause = reinterpret_cast<OmpPause>(::dlsym(RTLD_DEFAULT, "omp_pause_resource"));
  static const auto host = reinterpret_cast<OmpDevice>(::dlsym(RTLD_DEFAULT, "omp_get_initial_device"));
  if (pause != nullptr && host != nullptr) pause(kSoftPause, host());
}

void release_all_idle_threads() {
  std::set<OmpPause> done;
  for (const auto& name : loaded_libraries()) {
    const std::unique_ptr<void, DlClose> library(::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD));
    if (!library) continue;
    const auto pause = reinterpret_cast<OmpPause>(::dlsym(library.get(), "omp_pause_resource"));
    const auto host = reinterpret_cast<OmpDevice>(::dlsym(library.get(), "omp_get_initial_device"));
    if (pause != nullptr && host != nullptr && done.insert(pause).second) pause(kSoftPause, host());
  }
}

bool survives_a_fork(pid_t thread) {
  const auto code = pool_code();
  const auto stack_pointer = stack_of_sleeper(thread);
  if (code.end == 0 || !stack_pointer) return false;
  // The callers of the sleeping function: an idle worker of the pool has no others.
  constexpr std::size_t depth = 16;
  std::array<std::uintptr_t, depth> stack{};
  if (!read_memory(*stack_pointer, stack)) return false;
  return std::ranges::any_of(stack,
                             [&](std::uintptr_t word) { return word >= code.begin && word < code.end; });
}

}  // namespace lockstep::runtime
