// SPDX-License-Identifier: BSD-3-Clause
#include <c10/util/Exception.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/optim/distributed_states.h>

#include "base/throw_error.h"
#include "optim/optimizer_states.h"
#include "state/row_states.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;

// The member is protected, but may be named through a class that derives from the owner.
struct SchedulerAccess : torch::optim::LRScheduler {
  static constexpr auto count() { return &SchedulerAccess::step_count_; }
  static auto current() { return &SchedulerAccess::get_current_lrs; }
};

}  // namespace

Dict state_dict(const Optimizer& optimizer) {
  if (const auto* distributed = dynamic_cast<const optim::DistributedStates*>(&optimizer))
    distributed->check_complete();
  return state::with_sharded_states(optimizer, optim::states_of_rank(optimizer));
}

void load_state_dict(Optimizer& optimizer, const Dict& given) {
  const auto state_dict = state::with_own_rows(optimizer, given);
  try {
    optim::load_states(optimizer, state_dict);
  } catch (const c10::Error& error) {
    throw_error<CheckpointError>("the state of the optimizer cannot be loaded: {}",
                                 error.what_without_backtrace());
  }
}

Dict state_dict(const torch::optim::LRScheduler& scheduler) {
  const std::int64_t count = scheduler.*SchedulerAccess::count();
  List rates;
  for (const auto rate : (scheduler.*SchedulerAccess::current())()) rates.items.emplace_back(rate);
  // Python's schedulers step once when they are made.
  return {{"last_epoch", count}, {"_step_count", count + 1}, {"_last_lr", std::move(rates)}};
}

void load_state_dict(torch::optim::LRScheduler& scheduler, const Dict& state_dict) {
  const auto count = state_dict.at("last_epoch").as_int();
  if (count < 0) throw_error<CheckpointError>("the scheduler's last_epoch is {}, below 0", count);
  scheduler.*SchedulerAccess::count() = static_cast<unsigned>(count);
}

}  // namespace lockstep
