// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/runtime/default_group.h>

#include "base/launched_rank.h"
#include "base/set_world.h"
#include "runtime/run.h"

namespace lockstep {
namespace runtime {
namespace {

// With World in base, the only globals: the run of the process, and of a thread rank.
std::atomic<Run*>& process_run() {
  static std::atomic<Run*> run{nullptr};
  return run;
}

Run*& thread_run() {
  thread_local Run* run = nullptr;
  return run;
}

}  // namespace

Run* current_run() { return thread_run() != nullptr ? thread_run() : process_run().load(); }

Run& require_run(const char* caller) {
  if (auto* run = current_run()) return *run;
  require_init(caller);
  throw ArgumentError(
      fmt::format("{}: there is no default process group; call lockstep::init() first and keep the "
                  "context that it returns",
                  caller));
}

void enter(Run& run, Scope scope) {
  if (scope == Scope::thread) {
    thread_run() = &run;
    set_thread_world(run.world());
    return;
  }
  Run* none = nullptr;
  if (!process_run().compare_exchange_strong(none, &run)) {
    throw ArgumentError(
        "lockstep::init: this process is in a run already; end the first context before a second");
  }
  set_current_world(run.world());
}

void change_world(const Run& run) {
  if (thread_run() == &run) return set_thread_world(run.world());
  set_current_world(run.world());
}

void leave(Run& run) noexcept {
  if (thread_run() == &run) {
    thread_run() = nullptr;
    set_thread_world(std::nullopt);
  }
  Run* self = &run;
  if (process_run().compare_exchange_strong(self, nullptr)) set_current_world({});
}

std::optional<ProcessGroup> group_or_default(const std::optional<ProcessGroup>& given, const char* what) {
  if (given) return given;
  if (const auto* const run = current_run()) return run->group();
  require_init(what);
  return std::nullopt;
}

ProcessGroup required_group(const std::optional<ProcessGroup>& given, const char* what) {
  return given ? *given : require_run(what).group();
}

void require_made_in_run(const std::optional<ProcessGroup>& group, const char* what) {
  if (!group) require_same_world(what, {});
}

}  // namespace runtime

bool is_initialized() { return runtime::current_run() != nullptr; }
ProcessGroup default_group() { return runtime::require_run("lockstep::default_group").group(); }
int get_rank() { return shared_world("get_rank()").rank; }
int get_world_size() { return shared_world("get_world_size()").size; }
int get_local_rank() { return shared_world("get_local_rank()").local_rank; }
bool is_main() { return shared_world("is_main()").rank == 0; }
void barrier(std::source_location where) { default_group().barrier(where); }

}  // namespace lockstep
