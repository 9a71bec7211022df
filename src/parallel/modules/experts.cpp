// SPDX-License-Identifier: BSD-3-Clause
#include "modules/experts.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/caller_place.h"
#include "base/throw_error.h"

namespace lockstep::modules {
namespace {

// A rank of the group that has other experts than this one.
std::optional<int> rank_with_others(const ProcessGroup& group, const ProcessGroup& experts,
                                    std::source_location where) {
  const auto places = group.all_gather_object(std::to_string(experts.rank()), where);
  const auto other = std::ranges::find_if(places, [&](const auto& place) { return place != places.front(); });
  if (other == places.end()) return std::nullopt;
  const auto own = places[static_cast<std::size_t>(group.rank())];
  return static_cast<int>((own == places.front() ? other : places.begin()) - places.begin());
}

std::atomic<int>& number_of_distributed() {
  static std::atomic<int> number = 0;
  return number;
}

}  // namespace

Experts::Experts(std::optional<ProcessGroup> ranks) : Module("Experts"), ranks_(std::move(ranks)) {
  if (ranks_) ++number_of_distributed();
}

Experts::~Experts() {
  if (ranks_) --number_of_distributed();
}

bool has_distributed_experts() { return number_of_distributed() > 0; }

std::vector<ExpertTensor> expert_tensors(const torch::nn::Module& module) {
  std::vector<ExpertTensor> all;
  const auto add = [&](const torch::nn::Module& layer, const std::string& prefix) {
    const auto* experts = layer.as<Experts>();
    if (experts == nullptr || !experts->ranks()) return;
    for (const auto& tensors : {layer.named_parameters(), layer.named_buffers()})
      for (const auto& item : tensors) all.push_back({prefix + item.key(), item.value(), *experts->ranks()});
  };
  add(module, "");
  for (const auto& layer : module.named_modules("", /*include_self=*/false))
    add(*layer.value(), layer.key() + ".");
  return all;
}

void refuse_experts(const torch::nn::Module& module, const std::vector<NamedTensor>& tensors,
                    const ParameterSharer& sharer) {
  std::vector<ProcessGroup> checked;
  for (const auto& [name, expert, ranks] : expert_tensors(module)) {
    const auto is_same = [&, &own = expert](const auto& each) { return each.tensor.is_same(own); };
    const auto is_checked = [&, &now = ranks](const auto& each) { return each.backend() == now.backend(); };
    if (std::ranges::none_of(tensors, is_same) || std::ranges::any_of(checked, is_checked)) continue;
    const auto other = rank_with_others(sharer.group, ranks, sharer.where);
    if (other) {
      throw_error<ArgumentError>("{}{}: {}: {} is of an expert that rank {} of group {} does not have; {}",
                                 line_prefix(sharer.where), sharer.name,
                                 numbered_rank(sharer.group.rank(), sharer.group.size()), name, *other,
                                 sharer.group.name(), sharer.advice);
    }
    checked.push_back(ranks);
  }
}

}  // namespace lockstep::modules
