// SPDX-License-Identifier: BSD-3-Clause
#include <exception>

#include <ATen/ops/full.h>
#include <c10/util/ScopeExit.h>

#include <lockstep/base/log.h>
#include <lockstep/ddp/join.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/announced_calls.h"
#include "comm/call_site.h"
#include "comm/group_state.h"

namespace lockstep {
namespace {

constexpr int kWarnAfter = 1000;
constexpr const char* kActive = "number of ranks with data, in Join";

at::Tensor filled(const Joinable& joinable, bool one) {
  return at::full({1}, one ? 1.0 : 0.0, at::TensorOptions().dtype(at::kFloat).device(joinable.join_device()));
}

}  // namespace

Join::Join(const std::vector<JoinableRef>& joinables, const JoinOptions& options, std::source_location where)
    : options_(options), where_(where), exceptions_(std::uncaught_exceptions()) {
  const CallerPlace place(where);
  for (const auto& joinable : joinables) joinables_.push_back(joinable.get());
  if (joinables_.empty()) throw ArgumentError("Join: it needs at least one joinable");
  const auto group = joinables_.front()->join_process_group();
  for (auto* joinable : joinables_) {
    if (&comm::state_of(joinable->join_process_group()) != &comm::state_of(group)) {
      throw ArgumentError("Join: the joinables have different process groups");
    }
    if (joinable->join_options_) throw ArgumentError("Join: a joinable is part of another Join already");
  }
  if (!options_.enable) return;
  for (auto* joinable : joinables_) joinable->begin_join();
  for (auto* joinable : joinables_) {
    joinable->join_options_ = options_;
    joinable->is_first_joinable_ = joinable == joinables_.front();
  }
}

Join::~Join() noexcept(false) {
  if (!options_.enable) return;
  const auto group = joinables_.front()->join_process_group();
  const auto leave = c10::make_scope_exit([this, &group] {
    comm::state_of(group).announce_on(std::nullopt);
    for (auto* joinable : joinables_) {
      joinable->join_options_.reset();
      joinable->is_first_joinable_ = false;
    }
  });
  if (std::uncaught_exceptions() <= exceptions_) shadow_until_all_joined();
}

int Join::count_active() {
  const auto active = filled(*joinables_.front(), false);
  const comm::CallSite site(where_, kActive);
  joinables_.front()->join_process_group().all_reduce(active);
  return active.item().toInt();
}

void Join::shadow_until_all_joined() {
  const auto group = joinables_.front()->join_process_group();
  comm::end_announcing(group);
  bool is_last = true;
  for (int iteration = 0; count_active() > 0; ++iteration) {
    is_last = false;
    if (options_.throw_on_early_termination) {
      const comm::CallSite site(where_, kActive);
      group.all_reduce(filled(*joinables_.front(), true));
      throw_error<Error>(comm::reporter_of(group), comm::about(group),
                         "Join: this rank has no data left, but other ranks have; all stop");
    }
    if (iteration == kWarnAfter) {
      log(LogLevel::warning, fmt::format("{}: Join: this rank had {} batches fewer than others",
                                         numbered_rank(group.rank(), group.size()), kWarnAfter));
    }
    for (auto* joinable : joinables_) joinable->shadow_iteration();
  }
  for (auto* joinable : joinables_) joinable->finish_join(is_last);
}

std::optional<Joinable::Notice> Joinable::notify_join_context() const {
  if (!join_options_) return std::nullopt;
  const auto group = join_process_group();
  comm::end_announcing(group);
  if (!is_first_joinable_) return std::nullopt;
  auto active = filled(*this, true);
  const comm::CallSite site(kActive);
  auto work = group.all_reduce_async(active);
  if (join_options_->throw_on_early_termination) {
    const auto ended = filled(*this, false);
    group.all_reduce(ended);
    work.wait();
    if (ended.item().toInt() != 0) {
      throw_error<Error>(comm::reporter_of(group), comm::about(group),
                         "Join: at least one rank has no data left; all stop");
    }
  }
  return Notice{std::move(work), std::move(active)};
}

}  // namespace lockstep
