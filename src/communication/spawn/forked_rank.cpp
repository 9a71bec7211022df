// SPDX-License-Identifier: BSD-3-Clause
#include "spawn/forked_rank.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <fcntl.h>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/world.h>
#include <lockstep/runtime/default_group.h>

#include "base/caller_place.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/host.h"
#include "base/process_state.h"
#include "base/throw_error.h"
#include "launch/environment.h"
#include "runtime/intra_op_threads.h"

namespace lockstep::spawning {
namespace {

namespace fs = std::filesystem;

// A joined thread is visible a moment longer, and a worker spins before it sleeps.
constexpr std::chrono::milliseconds kThreadsEnd{500};

// "loader (thread 123)"
std::string name_of_thread(const fs::path& task) {
  return fmt::format("\"{}\" (thread {})", first_line(task / "comm"), task.filename().string());
}

std::vector<std::string> foreign_threads() {
  const std::string self = std::to_string(::gettid());
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/self/task", ignored)) {
    const auto thread = entry.path().filename().string();
    if (thread != self && !runtime::survives_a_fork(std::stoi(thread)))
      names.push_back(name_of_thread(entry.path()));
  }
  std::ranges::sort(names);
  return names;
}

void refuse_threads() {
  const Deadline deadline(kThreadsEnd);
  auto names = foreign_threads();
  while (!names.empty() && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    names = foreign_threads();
  }
  if (names.empty()) return;
  throw_error<ArgumentError>(
      "spawn: this process has {} other thread{}, which do not exist in a forked rank; it could deadlock on "
      "their locks: {}. End their owner (a loader, a store, a thread pool) before spawn(), call spawn() "
      "earlier, or start the program with `lockstep run`",
      names.size(), names.size() == 1 ? "" : "s", fmt::join(names, ", "));
}

void refuse_ranks() {
  const Env env;
  if (is_thread_rank())
    throw ArgumentError(
        "spawn: this thread is a rank of spawn_threads(), and ranks cannot start ranks; call spawn() outside "
        "of them");
  if (is_initialized()) {
    throw ArgumentError(
        "spawn: this process has a default process group, whose connections a forked rank must not use; end "
        "its Context before spawn(), and call init() in the ranks");
  }
  if (!env.has("RANK") || !env.has("TORCHELASTIC_RUN_ID")) return;
  throw_error<ArgumentError>(
      "spawn: this process is rank {} of a run already (RANK and TORCHELASTIC_RUN_ID are set by spawn(), "
      "`lockstep run` or torchrun), and ranks cannot start ranks; do not call spawn(), or start the program "
      "without a launcher",
      env.get("RANK").value_or(""));
}

void refuse_cuda() {
  if (!has_cuda_open("/proc/self/fd")) return;
  throw ArgumentError(
      "spawn: CUDA is initialized in this process, so a forked rank cannot use it; use CUDA only in the "
      "ranks (gpu_count() counts GPUs without initializing CUDA), or start the program with `lockstep run`");
}

}  // namespace

bool has_cuda_open(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    // Opened only for computing, not for queries of the state of a GPU.
    if (fs::read_symlink(entry.path(), ignored) == "/dev/nvidia-uvm") return true;
  }
  return false;
}

void prepare_to_fork() {
  refuse_ranks();
  refuse_cuda();
  runtime::release_all_idle_threads();
  refuse_threads();
}

namespace {

// A rank can be stopped whatever signal handlers its parent has. Ignored signals stay ignored, as with nohup.
void reset_signals(sigset_t blocked) {
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGCHLD}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    const bool may_be_ignored = signal != SIGTERM && signal != SIGCHLD;
    sigdelset(&blocked, signal);
    if (may_be_ignored && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
  }
  ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
}

// Ranks would compete for the input of a terminal.
void close_stdin() {
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0) return;
  ::dup2(null, STDIN_FILENO);
  if (null != STDIN_FILENO) ::close(null);
}

std::map<std::string, std::string> environment_of(const SpawnRequest& request, int rank, int threads) {
  const int size = request.options.nprocs;
  auto environment =
      launch::rank_environment({.nproc_per_node = size, .run_id = "spawn"},
                               {.world_size = size,
                                .role_world_size = size,
                                .master_addr = "127.0.0.1",
                                .master_port = static_cast<std::uint16_t>(request.master_port)},
                               rank, threads, Env());
  environment["OMP_NUM_THREADS"] = std::to_string(threads);
  return environment;
}

void flush_and_end(int status, void* /*unused*/) {
  flush_streams();
  ::_exit(status);
}

std::string type_of_current_exception() {
  const auto* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "a foreign exception";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : type->name();
}

// Within a catch block.
void record_current_exception(RankState& slot) {
  slot.type.set(type_of_current_exception());
  try {
    throw;
  } catch (const c10::Error& error) {
    slot.text.set(error.what_without_backtrace());
  } catch (const std::exception& error) {
    slot.peer_lost = dynamic_cast<const PeerLost*>(&error) != nullptr;
    slot.text.set(error.what());
  } catch (...) {
  }
  slot.raised.store(true);
}

}  // namespace

void flush_streams() {
  for (std::ostream* stream : {&std::cout, &std::cerr, &std::clog}) stream->flush();
  std::fflush(nullptr);
}

int threads_per_rank(std::optional<int> chosen, int ranks) {
  if (chosen) return *chosen;
  return Env().has("OMP_NUM_THREADS") ? at::get_num_threads() : std::max(1, usable_cores() / ranks);
}

void run_spawned_rank(const SpawnRequest& request, int rank, pid_t guard, const std::vector<int>& foreign) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != guard) ::_exit(1);
  for (const int fd : foreign) ::close(fd);
  reset_signals(request.signals);
  close_stdin();
  // Runs after handlers that the rank registers, and prevents those of the parent.
  ::on_exit(&flush_and_end, nullptr);
  int code = 0;
  try {
    const int threads = threads_per_rank(request.options.threads_per_rank, request.options.nprocs);
    for (const auto& [name, value] : environment_of(request, rank, threads)) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    runtime::IntraOpThreads::set(threads);
    forget_worlds();           // the parent's
    const WithoutPlace place;  // the line of spawn() is none of the rank's
    request.body(rank);
  } catch (...) {
    record_current_exception(request.state.rank(rank));
    code = 1;
  }
  std::exit(code);
}

}  // namespace lockstep::spawning
