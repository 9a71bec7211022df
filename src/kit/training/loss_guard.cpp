// SPDX-License-Identifier: BSD-3-Clause
#include "training/loss_guard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/text.h"
#include "base/throw_error.h"
#include "checkpoint/training_state_access.h"
#include "comm/call_site.h"
#include "training/trainer_checks.h"

namespace lockstep::training {
namespace {

using Access = checkpointing::TrainingStateAccess;

constexpr std::size_t kCopies = 2;

// The position in the data, and this guard.
const checkpointing::KeptParts& staying_parts() {
  static const checkpointing::KeptParts parts{.names = {"epoch", "batch", "loss_guard"}, .positions = true};
  return parts;
}

// With memory of its own, on the devices of the tensors.
Value copied(const Value& value);

template <typename Items>
std::vector<Value> all_copied(const Items& items) {
  std::vector<Value> copies;
  copies.reserve(items.size());
  for (const auto& item : items) copies.push_back(copied(item));
  return copies;
}

Dict copied(const Dict& dict) {
  Dict copy(dict.kind());
  copy.set_attributes(dict.attributes());
  for (const auto& [key, value] : dict) copy.set(key, copied(value));
  return copy;
}

Value copied(const Value& value) {
  if (const auto* tensor = value.get_if<at::Tensor>())
    return tensor->defined() ? Value(tensor->detach().clone()) : value;
  if (const auto* dict = value.get_if<Dict>()) return copied(*dict);
  if (const auto* list = value.get_if<List>()) return List(all_copied(list->items));
  if (const auto* tuple = value.get_if<Tuple>()) return Tuple(all_copied(tuple->items));
  return value;
}

// Exactly, and of any number: distributed checkpoints have tensors of fixed shapes.
std::string text_of(const std::deque<double>& losses) { return fmt::format("{}", fmt::join(losses, " ")); }

std::deque<double> losses_in(const std::string& text) {
  std::deque<double> losses;
  for (const auto& word : text.empty() ? std::vector<std::string>() : split(text, ' ')) {
    const auto loss = parse_number<double>(word);
    if (!loss) throw_error<CheckpointError>("'{}' is no list of losses", text);
    losses.push_back(*loss);
  }
  return losses;
}

}  // namespace

Dict without_window(Dict state) {
  state.erase("loss_guard");
  return state;
}

std::unique_ptr<LossGuard> LossGuard::make(const TrainerOptions& options, const Trained& trained) {
  if (options.on_bad_loss == OnBadLoss::error && options.spike_factor == 0) return nullptr;
  if (trained.sharded != nullptr && options.on_bad_loss == OnBadLoss::rewind) {
    throw ArgumentError(
        "Trainer: on_bad_loss = \"rewind\" does not support a module of fully_shard() yet; use \"skip\"");
  }
  return std::make_unique<LossGuard>(options, trained);
}

LossGuard::LossGuard(const TrainerOptions& options, const Trained& trained)
    : options_(options), trained_(trained), changed_by_forward_(trained.group) {
  changed_by_forward_.add_generator().add("reported_loss", trained_.reported_loss);
}

bool LossGuard::is_copy_due(std::int64_t step) const {
  if (options_.on_bad_loss != OnBadLoss::rewind) return false;
  return copies_.empty() || (step % options_.rewind_steps == 0 && copies_.back().step != step);
}

void LossGuard::begin_step(std::int64_t step, bool begins) {
  const at::NoGradGuard no_grad;
  if (begins && is_copy_due(step)) {
    if (copies_.size() == kCopies) copies_.pop_front();
    copies_.push_back({.step = step,
                       .losses = losses_,
                       .parts = copied(Access::own_state_dict(trained_.state, staying_parts()))});
  }
  before_.emplace().others = copied(Access::own_state_dict(changed_by_forward_));
  for (const auto& buffer : trained_.module.named_buffers())
    if (buffer.value().defined()) before_->buffers.emplace(buffer.key(), buffer.value().detach().clone());
}

bool LossGuard::accepts(std::int64_t step, double mean, double own, std::source_location where) {
  if (std::isfinite(mean) && !is_spike(mean)) {
    if (std::ssize(losses_) == options_.spike_window) losses_.pop_front();
    losses_.push_back(mean);
    bad_steps_ = 0;
    before_.reset();
    return true;
  }
  const comm::CallSite site(where, "losses that are not finite");
  auto text = what_is_bad(step, mean, own);
  const bool is_error = options_.on_bad_loss == OnBadLoss::error;
  if (!is_error && bad_steps_ == options_.max_bad_steps)
    text += fmt::format(
        "; {} bad steps in a row were undone before, which is the limit (max_bad_steps): lower the learning rate, clip "
        "gradients, or look at the data",
        bad_steps_);
  if (is_error || bad_steps_ == options_.max_bad_steps) {
    if (std::isfinite(mean)) throw Error(text);
    throw NonFiniteError(text);
  }
  ++bad_steps_;
  const auto done = undo(step);
  if (!trained_.group || trained_.group->rank() == 0)
    log(LogLevel::warning, fmt::format("{}; {} (bad step {} of at most {} in a row)", text, done, bad_steps_,
                                       options_.max_bad_steps));
  return false;
}

bool LossGuard::is_spike(double mean) const {
  if (options_.spike_factor == 0 || std::ssize(losses_) < options_.spike_window) return false;
  const auto middle = median();
  return middle > 0 && mean > options_.spike_factor * middle;
}

double LossGuard::median() const {
  std::vector<double> sorted(losses_.begin(), losses_.end());
  std::ranges::sort(sorted);
  const auto half = sorted.size() / 2;
  return sorted.size() % 2 != 0 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

std::string LossGuard::what_is_bad(std::int64_t step, double mean, double own) const {
  if (std::isfinite(mean)) {
    return fmt::format(
        "step {}: the loss {:.6g}, the mean of all ranks, is more than {:g} times {:.6g}, the median of the last {} "
        "steps",
        step, mean, options_.spike_factor, median(), losses_.size());
  }
  auto text = non_finite_text(own, trained_.module, step, trained_.group);
  if (losses_.empty()) return text;
  return fmt::format("{}; the median of the last {} steps is {:.6g}", text, losses_.size(), median());
}

std::string LossGuard::undo(std::int64_t step) {
  const at::NoGradGuard no_grad;
  undo_step();
  const auto batches = options_.accumulation_steps == 1
                           ? std::string("the batch is")
                           : fmt::format("the {} batches of the step are", options_.accumulation_steps);
  const auto done = step - 1;
  if (options_.on_bad_loss == OnBadLoss::skip) return batches + " skipped";
  if (copies_.empty() || copies_.front().step == done)
    return batches + " skipped, because the last checkpoint or the epoch's beginning limits the rewind";
  const auto& copy = copy_for(done);
  // Optimizers may keep the tensors that they are given.
  Access::load_own_state_dict(trained_.state, copied(copy.parts), staying_parts());
  losses_ = copy.losses;
  const auto back_to = copy.step;
  std::erase_if(copies_, [&](const Copy& each) { return each.step > back_to; });
  return fmt::format("the run goes back to the state after step {}, and the batches since are skipped",
                     back_to);
}

void LossGuard::undo_step() {
  if (trained_.sharded != nullptr)
    trained_.sharded->zero_grad();
  else
    trained_.module.zero_grad();
  trained_.optimizer.zero_grad();
  Access::load_own_state_dict(changed_by_forward_, before_->others);
  for (auto& buffer : trained_.module.named_buffers()) {
    const auto kept = before_->buffers.find(buffer.key());
    if (kept != before_->buffers.end()) buffer.value().copy_(kept->second);
  }
  before_.reset();
}

// The newest one that is old enough, else the oldest one.
const LossGuard::Copy& LossGuard::copy_for(std::int64_t step) const {
  const auto fits = [&](const Copy& copy) { return copy.step <= step - options_.rewind_steps; };
  const auto newest = std::find_if(copies_.rbegin(), copies_.rend(), fits);
  return newest == copies_.rend() ? copies_.front() : *newest;
}

Dict LossGuard::state_dict(const std::optional<ProcessGroup>& /*group*/) const {
  return {{"losses", text_of(losses_)}, {"bad_steps", bad_steps_}};
}

void LossGuard::load_state_dict(const Dict& saved, const std::optional<ProcessGroup>& /*group*/) {
  losses_ = losses_in(saved.at("losses").as_string());
  while (std::ssize(losses_) > options_.spike_window) losses_.pop_front();
  bad_steps_ = saved.at("bad_steps").as_int();
  copies_.clear();
}

Dict LossGuard::own_state_dict() const {
  auto dict = state_dict(trained_.group);
  List copies;
  for (const auto& copy : copies_)
    copies.items.emplace_back(
        Dict{{"step", copy.step}, {"losses", text_of(copy.losses)}, {"parts", copy.parts}});
  dict.set("copies", std::move(copies));
  return dict;
}

void LossGuard::load_own_state_dict(const Dict& saved) {
  load_state_dict(saved, trained_.group);
  for (const auto& copy : saved.at("copies").as_items()) {
    const auto& dict = copy.as_dict();
    copies_.push_back({.step = dict.at("step").as_int(),
                       .losses = losses_in(dict.at("losses").as_string()),
                       .parts = copied(dict.at("parts").as_dict())});
  }
}

}  // namespace lockstep::training
