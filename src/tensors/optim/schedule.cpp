// SPDX-License-Identifier: BSD-3-Clause
#include "optim/schedule.h"

#include <cmath>

#include <c10/util/ScopeExit.h>

#include <lockstep/base/mutex.h>

#include "base/caller_place.h"
#include "base/throw_error.h"

namespace lockstep::optim {
namespace {

// By address, because no class of LibTorch has a place for them: its optimizers have groups, states and
// default options only, a group has parameters and options, and options of a class of ours would replace
// those that the user gave. No scheduler outlives its optimizer, so the address identifies it as long as
// entries live.
struct KnownEntries {
  Mutex mutex;
  std::map<const torch::optim::Optimizer*, std::weak_ptr<GroupEntries>> by_optimizer
      LOCKSTEP_GUARDED_BY(mutex);
};

KnownEntries& known_entries() {
  static auto& known = *new KnownEntries;  // schedulers may be destroyed after static objects
  return known;
}

std::shared_ptr<GroupEntries> existing_entries(const torch::optim::Optimizer& optimizer) {
  auto& known = known_entries();
  const MutexLock lock(known.mutex);
  const auto found = known.by_optimizer.find(&optimizer);
  return found == known.by_optimizer.end() ? nullptr : found->second.lock();
}

constexpr auto kEntryNames = {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"};

}  // namespace

std::shared_ptr<GroupEntries> shared_entries(const torch::optim::Optimizer& optimizer) {
  auto& known = known_entries();
  const MutexLock lock(known.mutex);
  auto& kept = known.by_optimizer[&optimizer];
  if (auto entries = kept.lock()) return entries;
  const auto forget = [&optimizer](GroupEntries* entries) {
    delete entries;
    auto& all = known_entries();
    const MutexLock locked(all.mutex);
    const auto found = all.by_optimizer.find(&optimizer);
    if (found != all.by_optimizer.end() && found->second.expired()) all.by_optimizer.erase(found);
  };
  const std::shared_ptr<GroupEntries> entries(new GroupEntries, forget);
  kept = entries;
  return entries;
}

void write_entries(const torch::optim::Optimizer& optimizer, std::size_t index, Dict& group) {
  const auto entries = existing_entries(optimizer);
  if (!entries || index >= entries->groups.size()) return;
  for (const auto& [name, value] : entries->groups[index]) group.set(name, value);
}

void read_entries(const torch::optim::Optimizer& optimizer, std::size_t index, const Dict& group) {
  const auto entries = existing_entries(optimizer);
  if (!entries || index >= entries->groups.size()) return;
  for (const auto* name : kEntryNames) {
    if (const auto* value = group.find(name)) entries->groups[index][name] = serialize::number_of(*value);
  }
}

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

Schedule::Schedule(torch::optim::Optimizer& optimizer, const char* name)
    : optimizer_(optimizer), entries_(shared_entries(optimizer)), name_(name) {
  entries_->groups.resize(group_count());
}

void Schedule::begin() {
  check();
  const auto rates = rates_of(optimizer_);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    base_lrs_.push_back(entries_->groups[i].try_emplace("initial_lr", rates[i]).first->second);
  }
  initial_step();
}

void Schedule::initial_step() {
  step_count_ = 0;
  is_initial_ = true;
  const auto leave = c10::make_scope_exit([this] { is_initial_ = false; });
  step();
}

void Schedule::step() {
  ++step_count_;
  update(std::nullopt);
}

void Schedule::update(std::optional<std::int64_t> epoch) {
  last_epoch_ = epoch ? *epoch : last_epoch_ + 1;
  auto rates = rates_of(optimizer_);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    rates[i] = epoch ? closed_form_lr(i, rates[i]) : next_lr(i, rates[i]);
    if (std::isfinite(rates[i])) continue;
    throw_error<ArgumentError>(
        "{}: the rate of parameter group {} becomes {} at epoch {}; check the arguments", name_, i, rates[i],
        last_epoch_);
  }
  for (std::size_t i = 0; i < rates.size(); ++i) optimizer_.param_groups()[i].options().set_lr(rates[i]);
  last_lr_ = rates_of(optimizer_);
}

double Schedule::base_lr(std::size_t group) const {
  check_group(group);
  return base_lrs_[group];
}

void Schedule::check_group(std::size_t group) const {
  if (group < base_lrs_.size()) return;
  throw_error<ArgumentError>(
      "{}: the optimizer has {} parameter groups, but had {} when the scheduler was made; make a new one",
      name_, group_count(), base_lrs_.size());
}

void Schedule::check() const {
  if (const auto text = problem(); !text.empty()) throw_error<ArgumentError>("{}: {}", name_, text);
}

std::string Schedule::count_problem(const char* what, std::size_t count) const {
  if (count == group_count()) return {};
  return fmt::format("'{}' has values of {} parameter groups, but the optimizer has {}", what, count,
                     group_count());
}

void Schedule::visit_fields(Fields& fields) {
  fields("base_lrs", base_lrs_);
  fields.required("last_epoch", last_epoch_);
  fields("_step_count", step_count_);
  fields.constant("_is_initial", false);
  fields.constant("_get_lr_called_within_step", false);
  fields("_last_lr", last_lr_);
}

Dict Schedule::state_dict() {
  Dict dict;
  Fields fields(dict);
  visit_fields(fields);
  return dict;
}

void Schedule::read(const Dict& state_dict) {
  Fields fields(state_dict, name_, false);
  visit_fields(fields);
}

void Schedule::load_state_dict(const Dict& state_dict) {
  const auto before = this->state_dict();
  try {
    read(state_dict);
    auto text = problem();
    if (text.empty() && state_dict.contains("base_lrs")) text = count_problem("base_lrs", base_lrs_.size());
    if (text.empty()) text = count_problem("_last_lr", last_lr_.size());
    if (!text.empty()) throw_error<CheckpointError>("{}: {}", name_, text);
  } catch (...) {
    read(before);
    throw;
  }
}

LRScheduler::LRScheduler(std::shared_ptr<Schedule> schedule) : schedule_(std::move(schedule)) {}

void LRScheduler::step(std::source_location where) {
  const CallerPlace place(where);
  schedule_->step();
}
const std::vector<double>& LRScheduler::get_last_lr() const { return schedule_->last_lr(); }
Dict LRScheduler::state_dict() const { return schedule_->state_dict(); }
void LRScheduler::load_state_dict(const Dict& state_dict, std::source_location where) {
  const CallerPlace place(where);
  schedule_->load_state_dict(state_dict);
}

std::vector<double> PerGroup::values(const std::string& name, std::size_t groups) const {
  if (!is_list_) return std::vector<double>(groups, numbers_.front());
  if (numbers_.size() == groups) return numbers_;
  throw_error<ArgumentError>("{} has {} values for {} parameter groups", name, numbers_.size(), groups);
}

double scale_lr(double lr, std::int64_t world_size, Literal<ScalingRule> rule, std::source_location where) {
  const CallerPlace place(where);
  if (world_size < 1) throw_error<ArgumentError>("scale_lr: world_size = {}; give at least 1", world_size);
  const auto ranks = static_cast<double>(world_size);
  return lr * (rule == ScalingRule::linear ? ranks : std::sqrt(ranks));
}

}  // namespace lockstep::optim
