// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/verified_pass.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include <ATen/Context.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include <lockstep/runtime/default_group.h>

#include "base/checksum.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "device/generators.h"

namespace lockstep::ddp {
namespace {

std::int64_t checksum_of(const at::Tensor& tensor) {
  const auto values = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  return static_cast<std::int64_t>(checksum(values.const_data_ptr(), values.nbytes()));
}

// The next `count` tensors.
std::vector<at::Tensor> take(const std::vector<at::Tensor>& all, std::size_t& from, std::size_t count) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(from);
  from += count;
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

std::vector<at::Tensor> clones_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> clones;
  for (const auto& each : tensors) clones.push_back(each.clone());
  return clones;
}

void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

}  // namespace

Checksums checksums_of(const std::vector<at::Tensor>& tensors) {
  Checksums checksums;
  for (const auto& each : tensors) checksums.push_back(checksum_of(each));
  return checksums;
}

VerifiedPass::VerifiedPass(const torch::nn::Module& module, DdpState& state,
                           const std::vector<at::Generator>& generators)
    : state_(state), generators_{default_generator()} {
  if (!state.device().is_cpu()) generators_.push_back(at::globalContext().defaultGenerator(state.device()));
  generators_.insert(generators_.end(), generators.begin(), generators.end());
  for (const auto& each : state.parameters()) parameters_.push_back(each.tensor);
  for (const auto& each : modules::distinct(module.named_buffers())) buffers_.push_back(each.tensor);
}

std::vector<at::Tensor> VerifiedPass::generator_states() const {
  std::vector<at::Tensor> states;
  for (const auto& each : generators_) states.push_back(device::state_of(each));
  return states;
}

void VerifiedPass::set_generator_states(const std::vector<at::Tensor>& states) const {
  for (std::size_t i = 0; i < states.size(); ++i) device::set_state(generators_[i], states[i].clone());
}

std::vector<at::Tensor> VerifiedPass::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& each : parameters_) gradients.push_back(each.grad());
  return gradients;
}

void VerifiedPass::keep(const std::vector<at::Tensor>& batch) {
  auto tensors = generator_states();
  for (const auto& group : {buffers_, gradients(), batch})
    tensors.insert(tensors.end(), group.begin(), group.end());
  kept_ = pack(tensors, "StepVerifier: a buffer, a gradient or a part of the batch");
}

Checksums VerifiedPass::run(const std::optional<std::vector<at::Tensor>>& batch,
                            const std::function<void()>& pass) {
  if (batch) keep(*batch);
  std::unordered_map<const void*, std::size_t> index;
  for (std::size_t i = 0; i < parameters_.size(); ++i) index.emplace(parameters_[i].unsafeGetTensorImpl(), i);
  divisions_.assign(parameters_.size(), Division::none);
  std::vector<std::optional<std::int64_t>> found(parameters_.size());
  bool is_reduced_twice = false;
  auto& reducer = state_.reducer();
  {
    const auto observing = reducer.observe([&](const Bucket& bucket) {
      for (const auto& slot : bucket.slots) {
        const auto i = index.at(reducer.parameters()[slot.parameter].tensor.unsafeGetTensorImpl());
        divisions_[i] = slot.division;
        is_reduced_twice = is_reduced_twice || found[i];
        found[i] = batch ? checksum_of(slot.view) : 0;
      }
    });
    pass();
  }
  if (is_reduced_twice) {
    throw ArgumentError(
        "StepVerifier: the function makes several backward passes that are reduced, so that the second begins with the "
        "gradients of all ranks; call run() for each backward pass, and set accumulation_steps to their number");
  }
  Checksums checksums(parameters_.size());
  for (std::size_t i = 0; batch && i < parameters_.size(); ++i) {
    const auto& gradient = parameters_[i].grad();  // of a pass in no_sync()
    checksums[i] =
        found[i] ? *found[i] : checksum_of(gradient.defined() ? gradient : at::zeros_like(parameters_[i]));
  }
  return checksums;
}

PackedTensors VerifiedPass::packed() const {
  auto packed = kept_;
  for (const auto each : divisions_) packed.layout.push_back(static_cast<std::int64_t>(each));
  return packed;
}

Checksums VerifiedPass::replay(const PackedTensors& packed, const std::vector<at::Tensor>& like,
                               const Replay& pass) {
  const auto divisions_at = packed.layout.end() - static_cast<std::ptrdiff_t>(parameters_.size());
  std::vector<Division> divisions;
  for (auto at = divisions_at; at != packed.layout.end(); ++at)
    divisions.push_back(static_cast<Division>(*at));
  const auto tensors = unpack({.layout = {packed.layout.begin(), divisions_at}, .bytes = packed.bytes});
  std::size_t at = 0;
  const auto states = take(tensors, at, generators_.size());
  const auto buffers = take(tensors, at, buffers_.size());
  const auto gradients = take(tensors, at, parameters_.size());
  auto batch = take(tensors, at, tensors.size() - at);
  if (batch.size() != like.size()) {
    throw_error<Error>(
        "StepVerifier: the batch of this rank has {} tensors, and that of a rank to verify {}; give all "
        "ranks batches of one structure",
        like.size(), batch.size());
  }
  for (std::size_t i = 0; i < batch.size(); ++i) batch[i] = batch[i].to(like[i].device());

  const c10::NoGradGuard no_grad;
  const auto own_states = generator_states();
  const auto own_buffers = clones_of(buffers_);
  const auto restore = c10::make_scope_exit([&] {
    copy_all(buffers_, own_buffers);
    set_generator_states(own_states);
  });
  copy_all(buffers_, buffers);
  set_generator_states(states);
  return replay_from(gradients, divisions, [&] {
    const c10::AutoGradMode with_gradients(true);
    pass(batch);
  });
}

Checksums VerifiedPass::replay_from(const std::vector<at::Tensor>& gradients,
                                    const std::vector<Division>& divisions,
                                    const std::function<void()>& pass) {
  const auto own = this->gradients();
  const auto set = [&](const std::vector<at::Tensor>& values) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].mutable_grad() =
          values[i].defined() ? values[i].to(parameters_[i].device()) : at::Tensor();
  };
  const auto restore = c10::make_scope_exit([&] { set(own); });
  set(gradients);
  {
    const auto replaying = state_.reducer().replay();
    const comm::WithoutCalls no_calls(
        "StepVerifier: the function calls other ranks, or trains a second DistributedDataParallel, which one rank alone "
        "cannot do when it computes the step of another; make such calls outside of run()");
    pass();
  }
  Checksums checksums;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& gradient = parameters_[i].grad();
    checksums.push_back(checksum_of(gradient.defined() ? state_.reducer().divided(gradient, divisions[i])
                                                       : at::zeros_like(parameters_[i])));
  }
  return checksums;
}

}  // namespace lockstep::ddp
