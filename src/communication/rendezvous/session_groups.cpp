// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/non_member.h"
#include "rendezvous/python_group.h"
#include "rendezvous/session.h"

namespace lockstep::rendezvous {
namespace {

void check_split(const ProcessGroup& parent, const std::vector<std::vector<int>>& split_ranks) {
  std::set<int> seen;
  bool valid = !split_ranks.empty();
  for (const auto& part : split_ranks) {
    valid = valid && !part.empty();
    for (const auto rank : part)
      valid = valid && rank >= 0 && rank < parent.size() && seen.insert(rank).second;
  }
  if (valid) return;
  throw_error<ArgumentError>(
      "split_group: split_ranks is {} for group {}; it must list one or more parts without common ranks, "
      "each of one or more group ranks in 0 to {}",
      split_ranks, parent.name(), parent.size() - 1);
}

}  // namespace

void Session::check_members(const std::vector<int>& ranks) const {
  const auto& world = config_.world;
  const std::set<int> distinct(ranks.begin(), ranks.end());
  const bool in_range = !ranks.empty() && *distinct.begin() >= 0 && *distinct.rbegin() < world.size;
  if (distinct.size() == ranks.size() && in_range) return;
  throw_error<ArgumentError>("rank {}: new_group([{}]) needs one or more distinct ranks, each in 0 to {}",
                             world.rank, fmt::join(ranks, ", "), world.size - 1);
}

ProcessGroup Session::new_group(std::vector<int> ranks, const GroupOptions& options) {
  check_members(ranks);
  const auto wanted =
      options.backend.empty() ? config_.backend : backends::BackendSpec::parse(options.backend);
  if (config_.with_python) {
    check_backend_with_python(wanted, "new_group: a run with Python ranks");
    std::ranges::sort(ranks);  // as PyTorch does
    if (options.nccl && splits_default_group(wanted)) {
      throw ArgumentError(
          "new_group: with Python ranks a group over nccl is a part of the default group and has its "
          "settings; set InitOptions::nccl instead of GroupOptions::nccl");
    }
  }
  // Counted on every rank, members or not, so that keys agree.
  const int number = ++groups_made_;
  return connect_subgroup(
      "new_group",
      {.key = fmt::format("{}", number), .backend = wanted, .nccl = options.nccl.value_or(config_.nccl)},
      ranks,
      {.name = options.group_desc.empty() ? fmt::format("group {}", number) : options.group_desc,
       .timeout = options.timeout.value_or(group_->timeout())});
}

ProcessGroup Session::split_group(const ProcessGroup& parent,
                                  const std::vector<std::vector<int>>& split_ranks,
                                  const GroupOptions& options) {
  const auto found = recipes_.find(&comm::state_of(parent));
  if (found == recipes_.end()) {
    throw_error<ArgumentError>("split_group: group {} is not one of this run", parent.name());
  }
  if (config_.with_python) {
    throw ArgumentError("split_group: a run with Python ranks cannot split groups; use new_group()");
  }
  check_split(parent, split_ranks);
  auto recipe = found->second;
  const auto number = comm::state_of(parent).next_scope();
  if (!options.backend.empty()) recipe.backend = backends::BackendSpec::parse(options.backend);
  if (options.nccl) recipe.nccl = *options.nccl;
  ProcessGroupInfo info{.name = options.group_desc.empty() ? fmt::format("{}:split:{}", parent.name(), number)
                                                           : options.group_desc,
                        .timeout = options.timeout.value_or(parent.timeout())};
  const auto own = std::ranges::find_if(
      split_ranks, [&](const auto& part) { return std::ranges::find(part, parent.rank()) != part.end(); });
  if (own == split_ranks.end()) {
    return comm::NonMember::outside_of(
        info.name, fmt::format("the parts {}, in ranks of group {}", split_ranks, parent.name()),
        parent.rank());
  }
  recipe.key = fmt::format("{}/split {}/{}", recipe.key, number, own - split_ranks.begin());
  auto ranks = *own;
  for (auto& rank : ranks) rank = parent.global_rank(rank);
  return connect_subgroup("split_group", recipe, ranks, std::move(info));
}

ProcessGroup Session::connect_subgroup(const char* function, const GroupRecipe& recipe,
                                       const std::vector<int>& ranks, ProcessGroupInfo info) {
  const auto name = info.name;
  try {
    return connect_members(recipe, ranks, std::move(info));
  } catch (const RendezvousError& error) {
    auto about = error.details();
    about.group = name;
    throw_error<RendezvousError>(
        std::move(about),
        "{}: {} of the ranks [{}]: {}. All ranks of {} call {}(), with the same arguments and in the same order",
        function, name, fmt::join(ranks, ", "), error.what(),
        std::string_view(function) == "new_group" ? "the run" : "the group that is split", function);
  }
}

ProcessGroup Session::connect_members(const GroupRecipe& recipe, const std::vector<int>& ranks,
                                      ProcessGroupInfo info) {
  const QuietC10d quiet;
  auto choice = backends::resolve_backend(recipe.backend, topology(ranks));
  // Without a backend for the GPU of this rank beside it: the Python ranks have none.
  if (config_.with_python) choice.spec = recipe.backend;
  const auto own = std::ranges::find(ranks, config_.world.rank);
  if (own == ranks.end()) {
    if (splits_default_group(choice.spec)) split_default_group(config_.store, {}, info);
    return comm::NonMember::outside_of(info.name, fmt::format("the ranks [{}]", fmt::join(ranks, ", ")),
                                       config_.world.rank);
  }
  info.global_ranks = ranks;
  const auto group =
      connect_group(recipe.key, choice.spec, {.ranks = ranks, .own = static_cast<int>(own - ranks.begin())},
                    recipe.nccl, std::move(info));
  if (const auto node = comm::state_of(group).node_group()) node->set_global_ranks(ranks);
  comm::state_of(group).set_job(comm::state_of(*group_).node_group());
  subgroups_.push_back(group);
  recipes_.emplace(&comm::state_of(group), recipe);
  return group;
}

}  // namespace lockstep::rendezvous
