// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/zero_shared_parameters.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "comm/mapped_memory.h"
#include "intercept/storage_guard.h"

namespace lockstep::ddp {
namespace {

std::int64_t aligned_bytes(const at::Tensor& tensor) {
  return comm::aligned(static_cast<std::int64_t>(tensor.nbytes()));
}

// Gives the parameters memory of a block, one after the other. Their values are then those of the owner.
void move_into(const at::Tensor& block, std::vector<at::Tensor>& parameters, bool is_owner) {
  std::int64_t offset = 0;
  for (auto& parameter : parameters) {
    const auto options = parameter.options().requires_grad(false);
    const auto flat = comm::tensor_in(block, offset, {parameter.numel()}, options);
    const auto shared = flat.as_strided(parameter.sizes(), parameter.strides());
    offset += aligned_bytes(parameter);
    if (is_owner) shared.copy_(parameter.detach());
    parameter.set_data(shared);
  }
}

}  // namespace

void check_can_share(const ProcessGroup& group, const std::vector<at::Tensor>& parameters,
                     const std::string& user) {
  if (!comm::maps_memory(group)) {
    throw_error<ArgumentError>(
        "{}: share_parameters() needs a group of backend shm, whose ranks are on one host; this one has {}",
        user, group.backend_name());
  }
  for (const auto& parameter : parameters) {
    if (!parameter.is_cpu()) {
      throw_error<ArgumentError>("{}: share_parameters() needs parameters on the CPU; one is on {}", user,
                                 parameter.device().str());
    }
    if (intercept::has_guard(parameter)) {
      throw_error<ArgumentError>(
          "{}: share_parameters() does not take parameters of parallelize_module() or fully_shard()", user);
    }
    if (!parameter.is_non_overlapping_and_dense()) {
      throw_error<ArgumentError>("{}: share_parameters() needs dense parameters; one has strides [{}]", user,
                                 fmt::join(parameter.strides(), ", "));
    }
  }
}

bool SharedParameters::is_shared(const at::Tensor& parameter) const {
  const auto found = shared_.find(parameter.unsafeGetTensorImpl());
  return found != shared_.end() && found->second.memory == parameter.const_data_ptr();
}

// The parameters of an owner lie in one block of its memory.
void SharedParameters::move(const std::vector<OwnedParameter>& parameters, Where where) {
  const auto moves = at::zeros({static_cast<std::int64_t>(parameters.size())}, at::kInt);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    moves[static_cast<std::int64_t>(i)] = is_shared(parameters[i].parameter) ? 0 : 1;
  group_.all_reduce(moves, ReduceOp::MAX, where);
  for (int owner = 0; owner < group_.size(); ++owner) {
    std::vector<at::Tensor> owned;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].owner != owner || moves[static_cast<std::int64_t>(i)].item<int>() == 0) continue;
      owned.push_back(parameters[i].parameter);
      bytes += aligned_bytes(owned.back());
    }
    if (bytes == 0) continue;
    const auto block = comm::map_on_all_ranks(group_, {owner}, bytes, where).front();
    move_into(block, owned, owner == group_.rank());
  }
  shared_.clear();
  for (const auto& [index, parameter, owner] : parameters) {
    shared_[parameter.unsafeGetTensorImpl()] = {
        .parameter = parameter, .memory = parameter.const_data_ptr(), .is_owner = owner == group_.rank()};
  }
}

bool SharedParameters::check(const std::vector<OwnedParameter>& parameters, Where where) {
  enum : int { kFine, kNew, kElsewhere };
  const auto worst = at::zeros({1}, at::kInt);
  auto& own = *worst.data_ptr<int>();
  std::size_t elsewhere = 0;
  for (const auto& each : parameters) {
    if (is_shared(each.parameter)) continue;
    const bool is_new = !shared_.contains(each.parameter.unsafeGetTensorImpl());
    if (!is_new) elsewhere = each.index;
    own = std::max<int>(own, is_new ? kNew : kElsewhere);
  }
  const bool is_here = own == kElsewhere;
  call_together([&] { group_.all_reduce(worst, ReduceOp::MAX, where); });
  if (own == kElsewhere) {
    throw_error<Error>(
        "{}: {}; after what replaces the memory of parameters, such as to() and torch::load(), call "
        "share_parameters() again",
        zero_place(where),
        is_here ? fmt::format("parameter {} no longer lies in shared memory", elsewhere)
                : "a parameter of another rank no longer lies in shared memory");
  }
  return own == kNew;
}

void SharedParameters::call_together(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    for (const auto& [key, shared] : shared_)
      intercept::forbid_access(shared.parameter, intercept::why_forbidden(error.what()));
    throw;
  }
}

std::optional<optim::DistributedStates::Sharing> SharedParameters::sharing_of(
    const at::Tensor& parameter) const {
  const auto found = shared_.find(parameter.unsafeGetTensorImpl());
  if (found == shared_.end()) return std::nullopt;
  return optim::DistributedStates::Sharing{.ranks = group_.size(), .is_owner = found->second.is_owner};
}

}  // namespace lockstep::ddp
