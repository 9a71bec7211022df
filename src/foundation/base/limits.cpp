// SPDX-License-Identifier: BSD-3-Clause
#include "base/limits.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <new>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "base/host.h"
#include "base/shared_memory.h"
#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::size_t kPageBytes = 4096;
// Threads have a stack of this size, too. With 64 KiB the launcher and c10d's threads end with SIGSEGV.
constexpr std::uint64_t kLeastStack = 128 * 1024;
// With less, LibTorch for the CPU ends the process while it is loaded.
constexpr std::uint64_t kLeastAddressSpace = 512 * 1024 * 1024;

// The limit that stands behind errno value `code`, with what raises it; empty: none is known.
std::string limit_behind(int code) {
  const auto open_files = soft_limit(RLIMIT_NOFILE);
  if (code == EMFILE && open_files) return fmt::format("`ulimit -n` allows {}; raise it", *open_files);
  const auto file_size = soft_limit(RLIMIT_FSIZE);
  if (code == EFBIG && file_size)
    return fmt::format("`ulimit -f` allows {}; raise it", bytes_text(*file_size));
  const auto address_space = soft_limit(RLIMIT_AS);
  if (code == ENOMEM && address_space)
    return fmt::format("`ulimit -v` allows {} of address space; raise it", bytes_text(*address_space));
  return "";
}

std::string joined(const std::string& text, const std::string& limit) {
  return limit.empty() ? text : fmt::format("{} ({})", text, limit);
}

sigset_t only_file_size_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  return set;
}

bool is_pending() {
  sigset_t pending;
  return ::sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

}  // namespace

std::optional<std::uint64_t> soft_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return std::nullopt;
  return limit.rlim_cur == RLIM_INFINITY ? std::nullopt : std::optional<std::uint64_t>(limit.rlim_cur);
}

std::optional<std::uint64_t> address_space_left() {
  const auto limit = soft_limit(RLIMIT_AS);
  if (!limit) return std::nullopt;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto used = number_in<std::uint64_t>("/proc/self/statm").value_or(0) * page;
  return *limit - std::min(*limit, used);
}

std::string errno_text(int code) { return joined(std::generic_category().message(code), limit_behind(code)); }

std::string start_error_text(int code) {
  if (code != EAGAIN) return errno_text(code);
  const auto processes = soft_limit(RLIMIT_NPROC);
  const auto pids = Cgroups().pids_limit();
  std::vector<std::string> limits;
  if (pids) {
    limits.push_back(fmt::format(
        "pids.max of the cgroup allows {} processes and threads; raise it (docker run --pids-limit, TasksMax=)",
        *pids));
  }
  // The kernel does not apply it to root.
  if (processes && ::geteuid() != 0)
    limits.push_back(
        fmt::format("`ulimit -u` allows {} processes and threads of this user; raise it", *processes));
  if (const auto address_space = soft_limit(RLIMIT_AS))
    limits.push_back(
        fmt::format("`ulimit -v` allows {} of address space, and each thread needs some; raise it",
                    bytes_text(*address_space)));
  std::string all;
  for (const auto& limit : limits) all += (all.empty() ? "" : "; ") + limit;
  return joined(std::generic_category().message(code), all);
}

std::string exception_text(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "memory is short: " + errno_text(ENOMEM);
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return fmt::format("{}: {}", file->path1().string(), errno_text(file->code().value()));
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr || system->code() != std::errc::resource_unavailable_try_again) return error.what();
  return "a thread or process could not be started: " + start_error_text(EAGAIN);
}

std::size_t shareable_bytes(int ranks) {
  constexpr std::size_t address_space = std::size_t{1} << 44U;  // for all ranks, of the 2^47 that there are
  const auto count = static_cast<std::size_t>(ranks);
  auto bytes = std::min(total_memory(), address_space / count);
  if (const auto limit = soft_limit(RLIMIT_FSIZE)) bytes = std::min<std::size_t>(bytes, *limit);
  if (const auto left = address_space_left()) {
    const auto mapped = SharedMemory::mapped_bytes();
    const auto for_sharing = (*left + mapped) / 2;
    // Each rank maps the memory of all.
    bytes = std::min<std::size_t>(bytes, (for_sharing - std::min(for_sharing, mapped)) / 2 / count);
  }
  return std::max(bytes / kPageBytes, std::size_t{1}) * kPageBytes;
}

std::string shareable_limits() {
  std::string text;
  if (const auto limit = soft_limit(RLIMIT_FSIZE); limit && *limit < total_memory())
    text += fmt::format("`ulimit -f` allows files of {}", bytes_text(*limit));
  if (const auto limit = soft_limit(RLIMIT_AS))
    text +=
        fmt::format("{}`ulimit -v` allows {} of address space", text.empty() ? "" : ", ", bytes_text(*limit));
  return text;
}

std::string call_error_text(const char* call, int code) {
  if (code != EPERM && code != ENOSYS) return fmt::format("{}: {}", call, errno_text(code));
  return fmt::format("the call {} is refused, as by a seccomp profile or Linux before 5.3; allow it: {}",
                     call, errno_text(code));
}

void require_output() {
  if (std::cout.flush()) return;
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) return;  // a pipe that nobody reads any more
  throw_error<Error>(
      "the output could not be written to stdout; is the disk full, or the file beyond `ulimit -f`?");
}

std::optional<LimitShortage> stack_shortage() {
  const auto limit = soft_limit(RLIMIT_STACK);
  if (!limit || *limit >= kLeastStack) return std::nullopt;
  return LimitShortage{.text = fmt::format("`ulimit -s` allows a stack of {}, and {} are needed",
                                           bytes_text(*limit), bytes_text(kLeastStack)),
                       .remedy = "ulimit -s 8192, or LimitSTACK= in the service, or stack in limits.conf"};
}

void require_stack() {
  if (const auto shortage = stack_shortage())
    throw_error<Error>("the stack is too small: {}; raise it: {}", shortage->text, shortage->remedy);
}

std::optional<LimitShortage> address_space_shortage() {
  const auto limit = soft_limit(RLIMIT_AS);
  if (!limit || *limit >= kLeastAddressSpace) return std::nullopt;
  return LimitShortage{
      .text = fmt::format(
          "`ulimit -v` allows {} of address space, and LibTorch needs at least {} in each process",
          bytes_text(*limit), bytes_text(kLeastAddressSpace)),
      .remedy = kRaiseAddressSpace};
}

void require_address_space() {
  if (const auto shortage = address_space_shortage())
    throw_error<Error>("the address space is too small: {}; raise it: {}", shortage->text, shortage->remedy);
}

ReservedThreads::ReservedThreads(int count, const std::string& user)
    : ids_(static_cast<std::size_t>(std::max(count, 0))) {
  threads_.reserve(ids_.size());
  try {
    for (auto& id : ids_) {
      threads_.emplace_back([this, &id] {
        id = ::gettid();
        end_.wait();
      });
    }
  } catch (const std::system_error& error) {
    const auto found = threads_.size();
    end();
    throw_error<Error>("{} needs {} threads, and {} could be started: {}", user, count, found,
                       start_error_text(error.code().value()));
  } catch (...) {
    end();
    throw;
  }
}

// A thread that has been joined counts until the kernel has released it.
void ReservedThreads::end() noexcept {
  end_.count_down();
  const Deadline deadline(std::chrono::seconds(1));
  for (auto& thread : threads_) thread.join();
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    while (::syscall(SYS_tgkill, ::getpid(), ids_[i], 0) == 0 && !deadline.expired())
      std::this_thread::yield();
  }
  threads_.clear();
}

FileSizeErrors::FileSizeErrors() {
  const auto signals = only_file_size_signal();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &signals, &before);
  was_blocked_ = sigismember(&before, SIGXFSZ) == 1;
}

// The kernel sends the signal to the writing thread.
FileSizeErrors::~FileSizeErrors() {
  if (was_blocked_) return;
  const auto signals = only_file_size_signal();
  const int code = errno;
  constexpr timespec now{};
  if (is_pending()) ::sigtimedwait(&signals, nullptr, &now);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  errno = code;
}

}  // namespace lockstep
