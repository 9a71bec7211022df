// SPDX-License-Identifier: BSD-3-Clause
#include <exception>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/ddp/join.h>

namespace lockstep {
namespace {

constexpr int kWarnAfter = 1000;

at::Tensor filled(const Joinable& joinable, bool one) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(joinable.join_device());
  return one ? at::ones({1}, options) : at::zeros({1}, options);
}

}  // namespace

Join::Join(std::vector<Joinable*> joinables, const JoinOptions& options)
    : joinables_(std::move(joinables)), options_(options), exceptions_(std::uncaught_exceptions()) {
  if (joinables_.empty()) throw ArgumentError("Join: it needs at least one joinable");
  const auto group = joinables_.front()->join_process_group();
  for (auto* joinable : joinables_) {
    if (&comm::state_of(joinable->join_process_group()) != &comm::state_of(group)) {
      throw ArgumentError("Join: the joinables have different process groups");
    }
    if (joinable->join_options_) throw ArgumentError("Join: a joinable is part of another Join already");
  }
  if (!options_.enable) return;
  for (const auto* joinable : joinables_) joinable->check_join();
  for (auto* joinable : joinables_) {
    joinable->join_options_ = options_;
    joinable->is_first_joinable_ = joinable == joinables_.front();
  }
}

Join::~Join() noexcept(false) {
  if (!options_.enable) return;
  if (std::uncaught_exceptions() > exceptions_) {
    leave();
    return;
  }
  try {
    shadow_until_all_joined();
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

void Join::leave() {
  for (auto* joinable : joinables_) {
    joinable->join_options_.reset();
    joinable->is_first_joinable_ = false;
  }
}

int Join::count_active() {
  const auto active = filled(*joinables_.front(), false);
  joinables_.front()->join_process_group().all_reduce(active);
  return active.item().toInt();
}

void Join::shadow_until_all_joined() {
  const auto group = joinables_.front()->join_process_group();
  bool is_last = true;
  for (int iteration = 0; count_active() > 0; ++iteration) {
    is_last = false;
    if (options_.throw_on_early_termination) {
      group.all_reduce(filled(*joinables_.front(), true));
      throw Error(
          fmt::format("rank {} of {}: Join: this rank has no data left, but other ranks have; all stop",
                      group.rank(), group.size()));
    }
    if (iteration == kWarnAfter) {
      log(LogLevel::warning, fmt::format("rank {} of {}: Join: this rank had {} batches fewer than others",
                                         group.rank(), group.size(), kWarnAfter));
    }
    for (auto* joinable : joinables_) joinable->shadow_iteration();
  }
  for (auto* joinable : joinables_) joinable->finish_join(is_last);
}

std::optional<Joinable::Notice> Joinable::notify_join_context() const {
  if (!join_options_ || !is_first_joinable_) return std::nullopt;
  const auto group = join_process_group();
  auto active = filled(*this, true);
  auto work = group.all_reduce_async(active);
  if (join_options_->throw_on_early_termination) {
    const auto ended = filled(*this, false);
    group.all_reduce(ended);
    work.wait();
    if (ended.item().toInt() != 0) {
      throw Error(fmt::format("rank {} of {}: Join: at least one rank has no data left; all stop",
                              group.rank(), group.size()));
    }
  }
  return Notice{std::move(work), std::move(active)};
}

}  // namespace lockstep
