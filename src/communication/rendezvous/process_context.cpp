// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <optional>
#include <utility>

#include <lockstep/rendezvous/init.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/non_member.h"
#include "rendezvous/session.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

// What init_process_group() keeps. Never destroyed: what a process does not leave ends with it.
std::optional<Context>& kept_context() {
  static auto* const context = new std::optional<Context>();
  return *context;
}

void leave_at_exit(int status, void* /*argument*/) {
  if (status == EXIT_SUCCESS) kept_context().reset();
}

}  // namespace

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

}  // namespace lockstep
