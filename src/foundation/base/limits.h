// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <latch>
#include <optional>
#include <string>
#include <sys/types.h>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/throw_error.h"

namespace lockstep {

// The soft limit `resource` of this process, such as RLIMIT_NOFILE; nullopt: unlimited.
std::optional<std::uint64_t> soft_limit(int resource);

// Bytes of address space that `ulimit -v` leaves to this process; nullopt: unlimited.
std::optional<std::uint64_t> address_space_left();

// Address space for tensors that one of `ranks` ranks of a host shares with the others in a new group, in bytes:
// as much as the host has memory, or what `ulimit -f` and `ulimit -v` leave. All groups together leave half of
// the address space to everything else; a new one gets half of what the groups before it left of the other half.
// A multiple of a page.
std::size_t shareable_bytes(int ranks);
// The limits of this process that may lower shareable_bytes(), as part of a message; empty: none.
std::string shareable_limits();

// The text of errno value `code` after a process or thread could not be started, with the limit that is reached
// and what raises it.
std::string start_error_text(int code);

// The text of errno value `code` after the system call `call` failed. For a call that is refused, it says so.
std::string call_error_text(const char* call, int code);

// Throws Error when something that was written to std::cout is lost, as on a full disk. Not for a pipe that
// nobody reads any more.
void require_output();

// The message of an exception of any kind, as a user should read it: with the path, or the limit behind it.
std::string exception_text(const std::exception& error);

// What a limit of this process denies.
struct LimitShortage {
  std::string text{};
  std::string remedy{};
};
// Why the stack is too small for LibTorch's threads and the launcher; nullopt: it is not.
std::optional<LimitShortage> stack_shortage();
// Throws Error with the text and the remedy of stack_shortage().
void require_stack();
// What raises the limit of the address space.
inline constexpr const char* kRaiseAddressSpace =
    "ulimit -v unlimited, or LimitAS=infinity in the service, or as in limits.conf";
// Why the address space is too small for LibTorch; nullopt: it is not.
std::optional<LimitShortage> address_space_shortage();
// Throws Error with the text and the remedy of address_space_shortage().
void require_address_space();

// So many threads of the process, for code of others that may not survive a thread that cannot be started. The
// destructor ends them, and returns when the kernel does not count them any more.
class ReservedThreads {
 public:
  // `user`: who needs the threads, as in "the backend gloo". Throws Error when they cannot be started.
  ReservedThreads(int count, const std::string& user);
  ~ReservedThreads() { end(); }
  ReservedThreads(const ReservedThreads&) = delete;
  ReservedThreads& operator=(const ReservedThreads&) = delete;

 private:
  void end() noexcept;

  std::latch end_{1};
  std::vector<pid_t> ids_;
  std::vector<std::thread> threads_;
};

// Calls `start`, which starts a thread. Throws Error with `purpose` when none can be started.
template <typename Start>
auto started(const std::string& purpose, Start start) {
  try {
    return start();
  } catch (const std::system_error& error) {
    throw_error<Error>("no thread could be started for {}: {}", purpose,
                       start_error_text(error.code().value()));
  }
}

// A thread that runs `function`. Throws Error with `purpose` when none can be started.
template <typename Thread, typename Function>
Thread start_thread(const std::string& purpose, Function&& function) {
  return started(purpose, [&] { return Thread(std::forward<Function>(function)); });
}

// The result of `function`, which a new thread runs. Throws Error with `purpose` when none can be started.
template <typename Function>
auto start_async(const std::string& purpose, Function&& function) {
  return started(purpose, [&] { return std::async(std::launch::async, std::forward<Function>(function)); });
}

// While it exists, writes of this thread beyond the limit of file sizes (`ulimit -f`) fail with EFBIG. Otherwise
// SIGXFSZ ends the process.
class FileSizeErrors {
 public:
  FileSizeErrors();
  ~FileSizeErrors();
  FileSizeErrors(const FileSizeErrors&) = delete;
  FileSizeErrors& operator=(const FileSizeErrors&) = delete;

 private:
  bool was_blocked_;
};

}  // namespace lockstep
