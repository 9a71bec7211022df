// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/module_changes.h"

#include <algorithm>

#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/group_state.h"
#include "graphs/graph_phase.h"
#include "modules/agreement.h"
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

std::string ModuleChanges::whoami() const { return ddp_on_rank(group_) + made_at(where_); }

std::vector<modules::ModuleChange> ModuleChanges::find(bool types,
                                                       const std::optional<std::string>& converted) const {
  auto changes = watch_->changes(types);
  if (converted && changes.empty()) {
    changes.push_back({.name = *converted,
                       .text = fmt::format("parameter {}: it was converted and converted back", *converted),
                       .is_conversion = true});
  }
  std::erase_if(changes, [&](const modules::ModuleChange& each) { return tensors_.ignores(each.name); });
  return changes;
}

void ModuleChanges::agree_on(const std::vector<modules::ModuleChange>& changes, const Step& step) const {
  if (group_.size() == 1) return;
  const auto change = text_of(changes);
  const bool in_capture = graph_phase() == GraphPhase::capture;
  if (in_capture || comm::has_python_ranks(group_)) refuse_on_all_ranks(change, step.reducer, in_capture);
  using News = Reducer::ChangeNews;
  const auto news = step.reducer != nullptr && step.follows ? step.reducer->change_news() : News::by_a_call;
  std::vector<std::string> of_ranks;
  if (news == News::on_host) of_ranks = step.reducer->exchange_changes(change);
  if (news == News::in_gradients && step.reduces) of_ranks = report_in_gradients(change, *step.reducer);
  if (std::ranges::any_of(of_ranks, &std::string::empty)) {
    std::vector<int> unchanged;
    for (int rank = 0; rank < static_cast<int>(of_ranks.size()); ++rank)
      if (of_ranks[static_cast<std::size_t>(rank)].empty()) unchanged.push_back(rank);
    throw_error<DesyncError>(
        comm::about(group_, unchanged),
        "{}: the module has changed on this rank, but not on rank {}: {}. Make the change on all ranks "
        "before the "
        "same forward",
        whoami(), fmt::join(unchanged, ", "), change);
  }
  if (!of_ranks.empty()) step.reducer->end_change();
  modules::check_same_on_all_ranks(group_, tensors_.text(lines_of(changes)), where_);
}

// Ranks without the change are in the calls of the step, or come to them.
void ModuleChanges::refuse_on_all_ranks(const std::string& change, const Reducer* reducer,
                                        bool in_capture) const {
  const auto* const reason = in_capture ? "A GraphedStep cannot capture this"
                                        : "Python ranks cannot follow, so this rank has left the group";
  const auto error = fmt::format(
      "{}: the module has changed since it was wrapped: {}. {}; wrap the module anew after the change",
      whoami(), change, reason);
  if (reducer != nullptr) reducer->refuse_change(change);
  if (!in_capture) {
    log(LogLevel::warning, error);
    comm::state_of(group_).break_off();  // all that a Python rank can see
  }
  throw Error(error);
}

// The calls of a rank without the change, with zeros.
std::vector<std::string> ModuleChanges::report_in_gradients(const std::string& change,
                                                            Reducer& reducer) const {
  const auto as_before =
      reducer.stand_in([&](std::size_t i) { return watch_->like_before(reducer.parameters()[i].tensor); });
  reducer.rebuild_buckets_if_due();
  if (buffers_.is_due())
    buffers_.broadcast_in_place([this](const at::Tensor& buffer) { return watch_->like_before(buffer); });
  return reducer.exchange_changes(change);
}

void ModuleChanges::check_can_follow(const std::vector<modules::ModuleChange>& changes,
                                     const Reducer* reducer) const {
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
  try {
    check(features_, Feature::module_change, group_);
    if (reducer != nullptr) reducer->check_hook_can_follow();
  } catch (const ArgumentError& error) {
    refuse(error.what());
  }
}

std::vector<modules::NamedTensor> ModuleChanges::new_parameters() const {
  return are_none(/*types=*/false) ? std::vector<modules::NamedTensor>{} : tensors_.added();
}

void ModuleChanges::refuse_new_parameters() {
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

}  // namespace lockstep::ddp
