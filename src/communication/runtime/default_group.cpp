// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <lockstep/runtime/default_group.h>

#include "base/caller_place.h"
#include "base/launched_rank.h"
#include "base/process_state.h"
#include "base/rank_progress.h"
#include "base/throw_error.h"
#include "comm/non_member.h"
#include "device/generators.h"
#include "intercept/thread_defaults.h"
#include "runtime/elastic_run.h"
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

bool is_replacement() {
  auto* const run = current_run();
  return run != nullptr && run->elastic() != nullptr && run->elastic()->is_replacement();
}

Run& require_run(const char* caller) {
  if (auto* run = current_run()) return *run;
  require_init(caller);
  throw_error<ArgumentError>(
      "{}: there is no default process group; call lockstep::init() first and keep the "
      "context that it returns, or call lockstep::init_process_group()",
      caller);
}

void enter(Run& run, Scope scope) {
  const auto& world = run.world();
  if (scope == Scope::thread) {
    thread_run() = &run;
    set_thread_world(world);
    publish_progress(world.rank, world.size, true);
    return;
  }
  Run* none = nullptr;
  if (!process_run().compare_exchange_strong(none, &run)) {
    throw ArgumentError(
        "lockstep::init: this process is in a run already; end the first context before a second");
  }
  set_current_world(world);
  publish_progress(world.rank, world.size, false);
}

void change_world(const Run& run) {
  const auto& world = run.world();
  const bool is_thread = thread_run() == &run;
  is_thread ? set_thread_world(world) : set_current_world(world);
  publish_progress(world.rank, world.size, is_thread);
}

void shrink_world(const Run& run) {
  const auto& world = run.world();
  shrink_current_world(world);
  publish_progress(world.rank, world.size, false);
}

void leave(Run& run) noexcept {
  if (thread_run() == &run) {
    thread_run() = nullptr;
    set_thread_world(std::nullopt);
    end_progress(true);
  }
  Run* self = &run;
  if (!process_run().compare_exchange_strong(self, nullptr)) return;
  set_current_world({});
  end_progress(false);
}

std::optional<ProcessGroup> group_or_default(const std::optional<ProcessGroup>& given, const char* what) {
  comm::require_member(given, what);
  if (given) return given;
  if (const auto* const run = current_run()) return run->group();
  require_init(what);
  return std::nullopt;
}

ProcessGroup required_group(const std::optional<ProcessGroup>& given, const char* what) {
  comm::require_member(given, what);
  return given ? *given : require_run(what).group();
}

void require_made_in_run(const std::optional<ProcessGroup>& group, const char* what) {
  if (!group) require_same_world(what, {});
}

}  // namespace runtime

bool is_initialized() { return runtime::current_run() != nullptr; }
ProcessGroup default_group(std::source_location where) {
  const CallerPlace place(where);
  return runtime::require_run("lockstep::default_group").group();
}
int get_rank(const std::optional<ProcessGroup>& group, std::source_location where) {
  const CallerPlace place(where);
  if (group) return *group ? group->rank() : -1;
  return shared_world("get_rank()").rank;
}
int get_world_size(const std::optional<ProcessGroup>& group, std::source_location where) {
  const CallerPlace place(where);
  if (group) return *group ? group->size() : -1;
  return shared_world("get_world_size()").size;
}
std::string get_backend(const std::optional<ProcessGroup>& group, std::source_location where) {
  const CallerPlace place(where);
  return runtime::required_group(group, "get_backend").backend_name();
}
std::vector<int> get_process_group_ranks(const std::optional<ProcessGroup>& group,
                                         std::source_location where) {
  const CallerPlace place(where);
  const auto all = runtime::required_group(group, "get_process_group_ranks");
  std::vector<int> ranks;
  for (int rank = 0; rank < all.size(); ++rank) ranks.push_back(all.global_rank(rank));
  return ranks;
}
int get_local_rank(std::source_location where) {
  const CallerPlace place(where);
  return shared_world("get_local_rank()").local_rank;
}
bool is_main_process(std::source_location where) {
  const CallerPlace place(where);
  return shared_world("is_main_process()").rank == 0;
}

at::Generator default_generator() {
  if (auto own = intercept::ThreadGenerator::current()) return *own;
  return at::detail::getDefaultCPUGenerator();
}

void manual_seed(std::uint64_t seed) {
  const auto own = intercept::ThreadGenerator::current();
  if (!own) {
    at::manual_seed(seed);
    return;
  }
  device::set_seed(*own, seed);
  const auto* const run = runtime::current_run();
  if (run == nullptr || run->device().is_cpu()) return;
  device::set_seed(at::globalContext().defaultGenerator(run->device()), seed);
}

}  // namespace lockstep
