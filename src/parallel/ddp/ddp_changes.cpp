// SPDX-License-Identifier: BSD-3-Clause

// How DistributedDataParallel follows changes of its module, see note [Changes of the module] in
// reducer_change.cpp.
#include <algorithm>
#include <filesystem>

#include <ATen/ops/empty_strided.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "ddp/ddp_state.h"
#include "device/module_members.h"
#include "graphs/graph_phase.h"
#include "modules/broadcast.h"
#include "optim/unaveraged.h"

namespace lockstep::ddp {
namespace {

// Messages list no more.
constexpr std::size_t kListed = 4;

std::string text_of(const std::vector<modules::ModuleChange>& changes) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min(changes.size(), kListed); ++i) texts.push_back(changes[i].text);
  if (changes.size() > kListed) texts.push_back(fmt::format("and {} more", changes.size() - kListed));
  return fmt::format("{}", fmt::join(texts, "; "));
}

std::string lines_of(const std::vector<modules::ModuleChange>& changes) {
  std::string lines;
  for (const auto& each : changes) lines += "the change of\t" + each.text + "\n";
  return lines;
}

}  // namespace

std::string DdpState::whoami() const {
  return fmt::format("rank {} of {}: DistributedDataParallel, made at {}:{}", group_.rank(), group_.size(),
                     std::filesystem::path(where_.file_name()).filename().string(), where_.line());
}

std::vector<modules::ModuleChange> DdpState::changes() const {
  auto changes = watch_->changes(precision_ == nullptr || !precision_->is_low());
  const auto converted = reducer_ && !precision_ ? reducer_->parameter_without_hook() : std::nullopt;
  if (converted && changes.empty()) {
    changes.push_back({.name = *converted,
                       .text = fmt::format("parameter {}: it was converted and converted back", *converted),
                       .is_conversion = true});
  }
  std::erase_if(changes, [&](const modules::ModuleChange& each) {
    return std::ranges::find(options_.params_and_buffers_to_ignore, each.name) !=
           options_.params_and_buffers_to_ignore.end();
  });
  return changes;
}

// `in_step`: a forward of all ranks that have not changed follows, with its backward.
void DdpState::follow_changes(bool in_step) {
  if (watch_->is_unchanged(precision_ == nullptr || !precision_->is_low())) return;
  if (precision_) precision_->raise();
  const auto changes = this->changes();
  if (!changes.empty()) {
    agree_on(changes, in_step);
    check_can_follow(changes);
    begin_anew(std::ranges::any_of(changes, &modules::ModuleChange::is_conversion));
  }
  watch_module();
}

// Mixed precision converts the parameters itself, with other nodes.
void DdpState::watch_module() {
  watch_.emplace(module_,
                 reducer_ && !precision_ ? reducer_->accumulators() : modules::ModuleWatch::Accumulators());
}

void DdpState::agree_on(const std::vector<modules::ModuleChange>& changes, bool in_step) {
  if (group_.size() == 1) return;
  const auto change = text_of(changes);
  const bool in_capture = graph_phase() == GraphPhase::capture;
  if (in_capture || comm::state_of(group_).info().with_python) refuse_on_all_ranks(change, in_capture);
  using News = Reducer::ChangeNews;
  const auto news = reducer_ && in_step ? reducer_->change_news() : News::by_a_call;
  std::vector<std::string> of_ranks;
  if (news == News::on_host) of_ranks = reducer_->exchange_changes(change);
  if (news == News::in_gradients && has_trained_) of_ranks = announce_in_gradients(change);
  if (std::ranges::any_of(of_ranks, &std::string::empty)) {
    std::vector<std::string> unchanged;
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
      if (of_ranks[rank].empty()) unchanged.push_back(std::to_string(rank));
    throw_error<DesyncError>(
        "{}: the module has changed on this rank, but not on rank {}: {}. Make the change on all ranks "
        "before the same forward",
        whoami(), fmt::join(unchanged, ", "), change);
  }
  if (reducer_ && !of_ranks.empty()) reducer_->end_change();
  modules::check_same_on_all_ranks(group_, text_of_module(lines_of(changes)), where_);
}

// Ranks without the change are in the calls of the step, or come to them.
void DdpState::refuse_on_all_ranks(const std::string& change, bool in_capture) const {
  const auto* const reason = in_capture ? "A GraphedStep cannot capture this"
                                        : "Python ranks cannot follow, so this rank has left the group";
  const auto error = fmt::format(
      "{}: the module has changed since it was wrapped: {}. {}; wrap the module anew after the change",
      whoami(), change, reason);
  if (reducer_) reducer_->refuse_change(change);
  if (!in_capture) {
    log(LogLevel::warning, error);
    comm::state_of(group_).break_off();  // all that a Python rank can see
  }
  throw Error(error);
}

// The calls of a rank without the change, with zeros.
std::vector<std::string> DdpState::announce_in_gradients(const std::string& change) {
  const auto as_before = reducer_->stand_in(
      [this](std::size_t i) { return watch_->like_before(reducer_->parameters()[i].tensor); });
  reducer_->rebuild_buckets_if_due();
  if (will_sync_buffers()) {
    std::vector<modules::NamedTensor> zeros;
    for (const auto& each : buffers_) zeros.push_back({each.name, watch_->like_before(each.tensor)});
    modules::broadcast_from(group_, 0, zeros, where_);
  }
  return reducer_->exchange_changes(change);
}

void DdpState::check_can_follow(const std::vector<modules::ModuleChange>& changes) const {
  const auto refuse = [&](const std::string& remedy) {
    throw_error<ArgumentError>("{}: the module has changed since it was wrapped: {}. {}", whoami(),
                               text_of(changes), remedy);
  };
  const auto first =
      std::ranges::find_if(changes, [](const modules::ModuleChange& each) { return !each.can_be_followed; });
  if (first != changes.end()) {
    refuse(
        "An optimizer still has the old tensors: change the module first, then wrap it, then make the "
        "optimizer");
  }
  if (delayed_) refuse("With delay_all_reduce_named_params this cannot be followed; wrap the module anew");
  if (options_.optimizer_in_backward)
    refuse("With optimizer_in_backward this cannot be followed; wrap the module anew");
  try {
    if (reducer_) reducer_->check_hook_can_follow();
  } catch (const ArgumentError& error) {
    refuse(error.what());
  }
}

void DdpState::begin_anew(bool converted) {
  auto trained = look_at_module();
  buffers_may_differ_ = true;
  modules::check_can_be_sent(group_, "DistributedDataParallel",
                             sync_buffers_ ? joined(parameters_, buffers_) : parameters_, kOrIgnoreIt);
  converted_ = converted_ || converted;
  if (reducer_) {
    reducer_->average_leaving(trained);
    watch_gradients();
  }
  has_trained_ = !trained.empty();
  if (!has_trained_) return;
  device_ = common_device(parameters_);
  if (precision_)
    precision_ = std::make_unique<PrecisionSwitch>(parameters_, buffers_, *options_.mixed_precision);
  const bool has_hooks = precision_ || !reducer_->parameter_without_hook();
  if (!std::exchange(converted_, false) && has_hooks && reducer_->has_same(trained)) return;
  reducer_->rebuild(std::move(trained));
}

std::vector<modules::NamedTensor> DdpState::new_parameters() const {
  if (watch_->is_unchanged(/*types=*/false)) return {};
  auto parameters = modules::distinct(module_.named_parameters());
  for (auto& [name, tensor] : device::unregistered_parameters(module_))
    parameters.push_back({std::move(name), std::move(tensor)});
  parameters = without(std::move(parameters), options_.params_and_buffers_to_ignore);
  std::erase_if(parameters, [&](const modules::NamedTensor& each) {
    const auto is_this = [&](const modules::NamedTensor& other) { return other.tensor.is_same(each.tensor); };
    return !each.tensor.requires_grad() || !each.tensor.grad().defined() ||
           std::ranges::any_of(parameters_, is_this);
  });
  return parameters;
}

// No hook marks their gradients.
void DdpState::refuse_new_parameters() {
  if (group_.size() == 1) return;
  refuses_new_parameters_ = optim::watch_use([this](const std::vector<at::Tensor>& unwatched) -> std::string {
    for (const auto& each : new_parameters()) {
      const auto is_this = [&](const at::Tensor& other) { return other.is_same(each.tensor); };
      if (std::ranges::none_of(unwatched, is_this)) continue;
      return fmt::format(
          "{}: parameter {} has been added or has replaced another tensor since the module was wrapped, so "
          "its gradient is not averaged over the ranks. Change the module first, then wrap it, then make the "
          "optimizer",
          whoami(), each.name);
    }
    return "";
  });
}

bool DdpState::has_averaged_gradients() const {
  const auto is_averaged = [](const modules::NamedTensor& each) {
    return !each.tensor.requires_grad() || !each.tensor.grad().defined();
  };
  // Unfrozen since the reducer was built.
  if (!std::ranges::all_of(untrained_, is_averaged)) return false;
  if (!new_parameters().empty()) return false;
  return !reducer_ || reducer_->has_averaged_gradients();
}

}  // namespace lockstep::ddp
