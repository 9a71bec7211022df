// SPDX-License-Identifier: BSD-3-Clause
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>
#include <lockstep/rendezvous/init.h>

#include "base/caller_place.h"
#include "base/limits.h"
#include "base/throw_error.h"
#include "base/time_limits.h"
#include "comm/group_state.h"
#include "comm/non_member.h"
#include "comm/recorder_signal.h"
#include "rendezvous/meeting.h"
#include "rendezvous/session.h"
#include "rendezvous/spare.h"
#include "rendezvous/tcp.h"
#include "runtime/run.h"

namespace lockstep {
namespace rendezvous {
namespace {

// Takes the memory of the launcher, if the ranks meet by that launcher's variables. After elastic::run() has begun,
// a later init() of this process meets the others without it.
void take_run_memory(SessionOptions& options) {
  static std::shared_ptr<const RunMemory> memory;
  const bool by_launcher = options.init_method.empty() || options.init_method == "env://";
  if (!by_launcher || options.store || options.rank || options.with_python || options.enable_reconfigure)
    return;
  const bool is_first = memory == nullptr;
  if (is_first) {
    auto inherited = RunMemory::inherited(options.env);
    if (!inherited) return;
    memory = std::make_shared<const RunMemory>(*std::move(inherited));
    ::unsetenv(RunMemory::kVariable);  // programs that this one starts do not inherit the memory
  }
  const auto phase = memory->state().phase.load();
  if (!is_first && phase != RunPhase::starting) return;
  if (phase == RunPhase::finished) {
    throw Error(
        "this process replaces a rank that was lost after elastic::run() had ended; the other ranks cannot take it "
        "in. Do what must not be lost in elastic::run()");
  }
  options.run_memory = memory;
  options.is_replacement = phase == RunPhase::running;
}

std::unique_ptr<Session> join(SessionOptions options) {
  const QuietC10d quiet;
  if (is_initialized()) {
    throw ArgumentError(
        "lockstep::init: this process is in a run already; end the first context before a second");
  }
  LauncherLimits::from(options.env).check(options.timeout);
  become_rank(options.env);
  comm::write_recorder_files_on_signal();
  take_run_memory(options);
  auto scope = std::make_unique<ProcessScope>(options.report_uncaught_exceptions);
  auto session = meet(options);
  session->keep(std::move(scope));
  return session;
}

}  // namespace

Context init(const SessionOptions& options, std::source_location where) {
  const CallerPlace place(where);
  require_stack();
  require_address_space();
  return Context(join(options));
}

}  // namespace rendezvous

namespace {

// What init_process_group() keeps. Never destroyed: what a process does not leave ends with it.
std::optional<Context>& kept_context() {
  static auto* const context = new std::optional<Context>();
  return *context;
}

void leave_at_exit(int status, void* /*argument*/) {
  if (status == EXIT_SUCCESS) kept_context().reset();
}

using Lists = std::vector<std::vector<int>>;

void check_lists(const Lists& lists, int own_rank) {
  if (lists.empty()) {
    throw_error<ArgumentError>(
        "rank {}: new_subgroups_by_enumeration: ranks_per_subgroup_list is empty; "
        "give the ranks of one group or more",
        own_rank);
  }
  std::set<int> seen;
  for (const auto& ranks : lists) {
    for (const int rank : ranks) {
      if (seen.insert(rank).second) continue;
      throw_error<ArgumentError>(
          "rank {}: new_subgroups_by_enumeration: rank {} is listed twice; list each rank in one group at most",
          own_rank, rank);
    }
  }
}

}  // namespace

Context init(const InitOptions& options, std::source_location where) {
  return rendezvous::init({options}, where);
}

Context& init_process_group(const InitOptions& options, std::source_location where) {
  auto context = init(options, where);
  ::on_exit(&leave_at_exit, nullptr);  // again in a rank of spawn(), which runs only its own handlers
  return kept_context().emplace(std::move(context));
}

Context& rendezvous::init_process_group(const std::string& backend, const InitOptions& options,
                                        std::source_location where) {
  const CallerPlace place(where);
  if (options.backend != InitOptions().backend && options.backend != backend) {
    throw_error<ArgumentError>(
        "init_process_group: the first argument is \"{}\" and InitOptions::backend \"{}\"; "
        "leave one of them out",
        backend, options.backend);
  }
  auto complete = options;
  complete.backend = backend;
  return lockstep::init_process_group(complete, where);
}

void destroy_process_group(const std::optional<ProcessGroup>& group, std::source_location where) {
  const CallerPlace place(where);
  if (group && comm::NonMember::of(*group) != nullptr) return;
  const auto* const run = runtime::current_run();
  const bool is_default =
      !group || (run != nullptr && &comm::state_of(*group) == &comm::state_of(run->group()));
  if (!is_default) return group->close();
  if (run == nullptr) {
    throw ArgumentError(
        "destroy_process_group: this process is in no run; call init() or init_process_group() before");
  }
  run->context().session_.reset();
}

Context::Context(std::unique_ptr<rendezvous::Session> session) : session_(std::move(session)) {
  session_->set_context(*this);
}
Context::~Context() = default;
Context::Context(Context&& other) noexcept : session_(std::move(other.session_)) {
  if (session_) session_->set_context(*this);
}

rendezvous::Session& Context::session() const {
  if (session_) return *session_;
  throw ArgumentError(
      "Context: the run of this context has ended by destroy_process_group(), or the context was moved; call "
      "its functions before");
}

int Context::rank() const { return session().world().rank; }
int Context::world_size() const { return session().world().size; }
int Context::local_rank() const { return session().world().local_rank; }
int Context::local_world_size() const { return session().world().local_size; }
c10::Device Context::device() const { return session().device(); }
const ProcessGroup& Context::group() const { return session().group(); }
void Context::synchronize() const { session().synchronize(); }
void Context::barrier(std::source_location where) const { group().barrier(where); }

void Context::reconfigure(const ReconfigureOptions& options, std::source_location where) const {
  const CallerPlace place(where);
  session().reconfigure(options);
}

ProcessGroup Context::new_group(const std::vector<int>& ranks, const GroupOptions& options,
                                std::source_location where) const {
  const CallerPlace place(where);
  return session().new_group(ranks, options);
}

void Context::report_success(std::source_location where) const { group().broadcast_object("", 0, where); }

void Context::report_failure(const std::string& reason, std::source_location where) const noexcept {
  try {
    group().broadcast_object(reason.empty() ? "no reason given" : reason, 0, where);
  } catch (const std::exception& error) {
    log(LogLevel::error,
        fmt::format("rank 0 could not report its failure to the other ranks: {}", error.what()));
  }
}

void Context::await_main(std::source_location where) const {
  const std::string failure = group().broadcast_object("", 0, where);
  if (!failure.empty()) {
    throw_error<Error>("rank {}: main_process_first: rank 0 failed: {}", rank(), failure);
  }
}

ProcessGroup new_group(const std::vector<int>& ranks, const GroupOptions& options,
                       std::source_location where) {
  const CallerPlace place(where);
  return runtime::require_run("lockstep::new_group").new_group(ranks, options);
}

ProcessGroup split_group(const std::optional<ProcessGroup>& parent_pg,
                         const std::vector<std::vector<int>>& split_ranks, const GroupOptions& options,
                         std::source_location where) {
  const CallerPlace place(where);
  auto& run = runtime::require_run("lockstep::split_group");
  return run.split_group(parent_pg ? *parent_pg : run.group(), split_ranks, options);
}

Subgroups new_subgroups(int group_size, const GroupOptions& options, std::source_location where) {
  const CallerPlace place(where);
  const auto& world = runtime::require_run("lockstep::new_subgroups").world();
  if (group_size < 1 || world.size % group_size != 0) {
    throw_error<ArgumentError>(
        "rank {}: new_subgroups: group_size is {}; it must be 1 or more, and divide the number of ranks, {}",
        world.rank, group_size, world.size);
  }
  Lists lists(static_cast<std::size_t>(world.size / group_size));
  for (int rank = 0; rank < world.size; ++rank) {
    lists[static_cast<std::size_t>(rank / group_size)].push_back(rank);
  }
  return new_subgroups_by_enumeration(lists, options, where);
}

Subgroups new_subgroups_by_enumeration(const Lists& ranks_per_subgroup_list, const GroupOptions& options,
                                       std::source_location where) {
  const CallerPlace place(where);
  auto& run = runtime::require_run("lockstep::new_subgroups_by_enumeration");
  check_lists(ranks_per_subgroup_list, run.world().rank);
  std::vector<ProcessGroup> all;
  for (const auto& ranks : ranks_per_subgroup_list) all.push_back(run.new_group(ranks, options));
  auto own = all.front();
  for (const auto& group : all) {
    if (group) own = group;
  }
  return {std::move(own), std::move(all)};
}

}  // namespace lockstep
