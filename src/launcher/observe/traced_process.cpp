// SPDX-License-Identifier: BSD-3-Clause
#include "observe/traced_process.h"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <thread>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/host.h"
#include "base/liveness.h"
#include "base/throw_error.h"
#include "observe/processes.h"

namespace lockstep::observe {
namespace {

// A thread that sleeps in the kernel without being interruptible, as on a dead network file system, does not stop.
constexpr std::chrono::seconds kStopLimit{2};

std::string remedy(int pid, int code, bool is_traced_here) {
  if (const int tracer = status_number(pid, "TracerPid:"); tracer != 0 && !is_traced_here) {
    return fmt::format("process {} traces it, such as a debugger: end that first", tracer);
  }
  const auto yama = number_in<int>("/proc/sys/kernel/yama/ptrace_scope").value_or(0);
  if (code == EPERM && yama > 0) {
    return fmt::format("Yama allows it {} (kernel.yama.ptrace_scope is {}): run this as root{}",
                       yama == 1   ? "only to ancestors of the process"
                       : yama == 2 ? "only to root"
                                   : "to nobody",
                       yama, yama == 1 ? ", or `sysctl kernel.yama.ptrace_scope=0`" : "");
  }
  return "a container needs CAP_SYS_PTRACE and a seccomp profile that allows ptrace (docker run --cap-add SYS_PTRACE); "
         "a program with more rights than this user can only be traced by root";
}

}  // namespace

TracedProcess::TracedProcess(int pid) : pid_(pid) {
  try {
    // Threads that are not seized yet may start others.
    for (bool is_new = true; is_new;) {
      is_new = false;
      for (const int thread : threads_of(pid))
        is_new = (!threads_.contains(thread) && seize(thread)) || is_new;
    }
  } catch (...) {
    detach();
    throw;
  }
}

TracedProcess::~TracedProcess() { detach(); }

// False for a thread that has ended.
bool TracedProcess::seize(int thread) {
  if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) {
    const int code = errno;
    if (const char state = state_letter(thread); code == ESRCH || state == 'Z' || state == 'X') return false;
    throw_error<Error>("the threads of process {} cannot be seen: ptrace: {}; {}", pid_, errno_text(code),
                       remedy(pid_, code, !threads_.empty()));
  }
  threads_[thread] = 0;
  ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr);
  await_stop(thread);
  return true;
}

void TracedProcess::await_stop(int thread) {
  const Deadline deadline(kStopLimit);
  while (!deadline.expired()) {
    int status = 0;
    const int waited = ::waitpid(thread, &status, __WALL | WNOHANG);
    if (waited == thread && WIFSTOPPED(status)) {
      const bool is_signal = status >> 16 == 0;
      threads_[thread] = is_signal ? WSTOPSIG(status) : 0;
      return;
    }
    if (waited != 0 && errno != EINTR) {
      threads_.erase(thread);  // it has ended
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw_error<Error>(
      "thread {} of process {} does not stop within {} s: it sleeps in the kernel (state D in `ps`), as on "
      "a file system that does not answer",
      thread, pid_, kStopLimit.count());
}

void TracedProcess::detach() {
  for (const auto& [thread, signal] : threads_) {
    ::ptrace(PTRACE_DETACH, thread, nullptr, reinterpret_cast<void*>(static_cast<std::intptr_t>(signal)));
  }
}

}  // namespace lockstep::observe
