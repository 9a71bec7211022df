// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/gradients.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/serialize/torch_file.h>

#include "checkpoint/module_tensors.h"

namespace lockstep::checkpointing {
namespace {

constexpr const char* kOfAll = "all";
constexpr const char* kRanks = "ranks";

Dict own_gradients(const torch::nn::Module& module) {
  Dict gradients;
  for (const auto& [name, tensor, is_parameter] : module_tensors(module)) {
    if (!is_parameter) continue;
    const auto& gradient = tensor.grad();
    // Of a bucket of many, only its own part; on the CPU, since a device's name would make equal ones differ.
    gradients.set(name, gradient.defined() ? Value(gradient.detach().cpu().clone()) : Value());
  }
  return gradients;
}

void check_gradient(const std::string& name, const at::Tensor& parameter, const Value* saved) {
  if (saved == nullptr) throw CheckpointError(fmt::format("there is no gradient for '{}'", name));
  if (saved->is<None>() || saved->as_tensor().sizes() == parameter.sizes()) return;
  throw CheckpointError(fmt::format("the gradient of '{}' is of shape [{}] instead of [{}]", name,
                                    fmt::join(saved->as_tensor().sizes(), ", "),
                                    fmt::join(parameter.sizes(), ", ")));
}

void set_gradient(const at::Tensor& parameter, const Value& saved) {
  auto& gradient = parameter.mutable_grad();
  if (saved.is<None>()) {
    gradient.reset();
  } else if (gradient.defined()) {
    // It may lie in a bucket.
    const at::NoGradGuard no_grad;
    gradient.copy_(saved.as_tensor());
  } else {
    gradient = at::empty_like(parameter.detach()).copy_(saved.as_tensor());
  }
}

const Dict& gradients_for(const Group& group, const Dict& saved) {
  if (const auto* of_all = saved.find(kOfAll)) return of_all->as_dict();
  const auto ranks = group ? group->size() : 1;
  if (saved.at(kRanks).as_int() != ranks) {
    throw CheckpointError(fmt::format(
        "gradients that {} ranks had accumulated cannot go on with {}: use as many ranks, or a checkpoint "
        "that was saved after a step of the optimizer",
        saved.at(kRanks).as_int(), ranks));
  }
  return saved.at(group ? group->rank() : 0).as_dict();
}

}  // namespace

Value gradients_of(const torch::nn::Module& module, const Group& group) {
  auto own = own_gradients(module);
  if (!group || group->size() == 1) return Dict{{kOfAll, std::move(own)}};
  const auto bytes = save_bytes(own);
  const auto sums = group->all_gather_object(digest_of(bytes));
  const bool same = std::ranges::all_of(sums, [&](const std::string& sum) { return sum == sums[0]; });
  if (same) return Dict{{kOfAll, std::move(own)}};
  const auto all = group->gather_object(bytes, 0);
  Dict states{{kRanks, group->size()}, {group->rank(), std::move(own)}};
  for (std::size_t rank = 1; rank < all.size(); ++rank) states.set(rank, load_bytes(all[rank]));
  return states;
}

void set_gradients(const torch::nn::Module& module, const Group& group, const Value& saved) {
  const auto& gradients = gradients_for(group, saved.as_dict());
  const auto tensors = module_tensors(module);
  for (const auto& [name, tensor, is_parameter] : tensors) {
    if (is_parameter) check_gradient(name, tensor, gradients.find(name));
  }
  for (const auto& [name, tensor, is_parameter] : tensors) {
    if (is_parameter) set_gradient(tensor, gradients.at(name));
  }
}

}  // namespace lockstep::checkpointing
