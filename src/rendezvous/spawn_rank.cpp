// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/spawn_rank.h"

#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <fcntl.h>
#include <initializer_list>
#include <iostream>
#include <map>
#include <memory>
#include <sys/prctl.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <lockstep/base/env.h>
#include <lockstep/base/host.h>

#include "rendezvous/intra_op_threads.h"

namespace lockstep::rendezvous {
namespace {

// A rank can be stopped whatever its parent does with signals: handlers of the parent are not for it. What is
// ignored stays so, as it does with nohup.
void take_own_signals(sigset_t blocked) {
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

// Ranks that raced for one terminal's input would each get a random part of it.
void read_from_nowhere() {
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0) return;
  ::dup2(null, STDIN_FILENO);
  if (null != STDIN_FILENO) ::close(null);
}

int threads_of(const SpawnPlan& plan) {
  if (plan.options.threads_per_rank) return *plan.options.threads_per_rank;
  if (Env().has("OMP_NUM_THREADS")) return at::get_num_threads();
  return std::max(1, usable_cores() / plan.options.nprocs);
}

// What `lockstep run` sets for the ranks of one node.
std::map<std::string, std::string> environment_of(const SpawnPlan& plan, int rank, int threads) {
  const auto number = std::to_string(rank);
  const auto size = std::to_string(plan.options.nprocs);
  return {{"RANK", number},
          {"LOCAL_RANK", number},
          {"ROLE_RANK", number},
          {"GROUP_RANK", "0"},
          {"ROLE_NAME", "default"},
          {"WORLD_SIZE", size},
          {"LOCAL_WORLD_SIZE", size},
          {"ROLE_WORLD_SIZE", size},
          {"GROUP_WORLD_SIZE", "1"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(plan.master_port)},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"TORCHELASTIC_MAX_RESTARTS", "0"},
          {"TORCHELASTIC_RUN_ID", "spawn"},
          {"TORCHELASTIC_USE_AGENT_STORE", "False"},
          {"OMP_NUM_THREADS", std::to_string(threads)}};
}

void flush_and_end(int status, void* /*unused*/) {
  for (std::ostream* stream : {&std::cout, &std::cerr, &std::clog}) stream->flush();
  std::fflush(nullptr);
  ::_exit(status);
}

std::string type_of_current_exception() {
  const auto* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "an exception of a foreign language";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : type->name();
}

// Within a catch block.
void report_current_exception(SpawnedRank& slot) {
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

void be_spawned_rank(const SpawnPlan& plan, int rank, pid_t guard, const std::vector<int>& foreign) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != guard) ::_exit(1);
  for (const int fd : foreign) ::close(fd);
  take_own_signals(plan.signals);
  read_from_nowhere();
  // Before all that the parent has registered, which is not run then, and after all that the rank will.
  ::on_exit(&flush_and_end, nullptr);
  int code = 0;
  try {
    const int threads = threads_of(plan);
    for (const auto& [name, value] : environment_of(plan, rank, threads)) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    IntraOpThreads::set(threads);
    plan.body(rank);
  } catch (...) {
    report_current_exception(plan.board.rank(rank));
    code = 1;
  }
  std::exit(code);
}

}  // namespace lockstep::rendezvous
