// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/throw_error.h"

namespace lockstep {

// The soft limit `resource` of this process, such as RLIMIT_NOFILE; nullopt: unlimited.
std::optional<std::uint64_t> soft_limit(int resource);

// Bytes of address space that `ulimit -v` leaves to this process; nullopt: unlimited.
std::optional<std::uint64_t> address_space_left();

// Address space for tensors that one of `ranks` ranks of a host shares with the others, in bytes: as much as the
// host has memory, or what `ulimit -f` and `ulimit -v` leave. A multiple of a page.
std::size_t shareable_bytes(int ranks);
// The limits of this process that may lower shareable_bytes(), as part of a message; empty: none.
std::string shareable_limits();

// The text of errno value `code` after a process or thread could not be started, with the limit that is reached
// and what raises it.
std::string start_error_text(int code);

// Throws Error when something that was written to std::cout is lost, as on a full disk. Not for a pipe that
// nobody reads any more.
void require_output();

// The message of an exception of any kind, as a user should read it: with the path, or the limit behind it.
std::string exception_text(const std::exception& error);

// Why the stack of this process is too small for LibTorch's threads and the launcher; nullopt: it is not.
struct StackShortage {
  std::string text{};
  std::string remedy{};
};
std::optional<StackShortage> stack_shortage();
// Throws Error with the text and the remedy of stack_shortage().
void require_stack();

// Throws Error when so many threads cannot be started at once. Code of others may end the process then, as
// Gloo's constructors do. `user`: who needs them, as in "the backend gloo".
void require_threads(int count, const std::string& user);

// A thread that runs `function`. Throws Error with `purpose` when none can be started.
template <typename Thread, typename Function>
Thread start_thread(const char* purpose, Function&& function) {
  try {
    return Thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    throw_error<Error>("no thread could be started for {}: {}", purpose,
                       start_error_text(error.code().value()));
  }
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
