// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/local_stage.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/throw_error.h"
#include "modules/experts.h"

namespace lockstep::pipelining {
namespace {

// The gradients of the outputs that have one.
struct Roots {
  Tensors outputs, gradients;
};

Roots roots_of(const Tensors& outputs, const Tensors& gradients) {
  Roots roots;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
    roots.outputs.push_back(outputs[i]);
    roots.gradients.push_back(gradients[i]);
  }
  return roots;
}

}  // namespace

LocalStage::LocalStage(PipelineStage stage, int n_microbatches)
    : stage_(std::move(stage)),
      shards_(*stage_.submodule()),
      states_(static_cast<std::size_t>(n_microbatches)) {
  const auto& options = stage_.options();
  if (!shards_.empty() && options.data_parallel_group)
    throw_error<ArgumentError>(
        "stage {}: fully_shard() distributes it, so it cannot have a data_parallel_group; fully_shard() has "
        "the mesh",
        stage_.stage_index());
  const auto experts = modules::expert_tensors(*stage_.submodule());
  if (options.data_parallel_group && !experts.empty())
    throw_error<ArgumentError>(
        "stage {}: data_parallel_group would average {}, which is of an expert that other ranks do not have; "
        "distribute the stage with fully_shard() instead",
        stage_.stage_index(), experts.front().name);
}

AnyPyTree LocalStage::forward(int microbatch, const AnyPyTree& inputs) {
  auto& state = at(microbatch);
  auto result = stage_.forward()(inputs);
  state.outputs = result.tensors();
  state.inputs = inputs.tensors();
  return result;
}

Tensors LocalStage::full_backward(State& state, const Tensors& gradients) const {
  const auto [outputs, output_gradients] = roots_of(state.outputs, gradients);
  if (!outputs.empty()) torch::autograd::backward(outputs, output_gradients);
  Tensors result;
  for (auto& input : state.inputs) {
    const bool wanted = !stage_.is_first() && input.requires_grad();
    result.push_back(wanted ? input.grad() : at::Tensor());
    if (wanted) input.mutable_grad().reset();
  }
  return result;
}

Tensors LocalStage::backward(int microbatch, ComputationType type, const Tensors& gradients) {
  auto& state = at(microbatch);
  if (type == ComputationType::BACKWARD_WEIGHT) {
    state.split.weight_part();
    state = {};
    return {};
  }
  Tensors result;
  if (type == ComputationType::FULL_BACKWARD) {
    result = full_backward(state, gradients);
  } else {
    // No one needs the gradients of the first stage's inputs, so W runs all of its backward.
    result = state.split.input_part(state.outputs, gradients, stage_.is_first() ? Tensors{} : state.inputs);
  }
  result.resize(state.inputs.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    const bool wanted = !stage_.is_first() && state.inputs[i].requires_grad();
    if (wanted && !result[i].defined()) result[i] = at::zeros_like(state.inputs[i]);
  }
  state.inputs.clear();
  state.outputs.clear();
  return result;
}

void LocalStage::clear() {
  for (auto& state : states_) state = {};
}

using Tensors = AnyPyTree::Tensors;

namespace {

void check_dim(const at::Tensor& tensor, std::int64_t dim, const char* what) {
  if (dim < -tensor.dim() || dim >= tensor.dim())
    throw_error<ArgumentError>("{} of {} dimensions has no dimension chunk_dim = {}", what, tensor.dim(),
                               dim);
}

}  // namespace

std::vector<AnyPyTree> split_batch(const AnyPyTree& batch, int count, std::int64_t dim, const char* what) {
  std::vector<Tensors> parts(static_cast<std::size_t>(count));
  for (const auto& tensor : batch.tensors()) {
    check_dim(tensor, dim, what);
    if (tensor.size(dim) % count != 0 || tensor.size(dim) == 0) {
      throw_error<ArgumentError>("{} of size {} in dimension {} cannot be split into {} equal micro-batches",
                                 what, tensor.size(dim), dim, count);
    }
    const auto chunks = tensor.tensor_split(count, dim);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].push_back(chunks[i]);
  }
  std::vector<AnyPyTree> batches;
  for (const auto& part : parts) batches.push_back(batch.with_tensors(part));
  return batches;
}

AnyPyTree detached(const AnyPyTree& value) {
  auto tensors = value.tensors();
  for (auto& tensor : tensors) tensor = tensor.detach();
  return value.try_with_tensors(tensors).value_or(AnyPyTree(tensors));
}

AnyPyTree merge_batches(const std::vector<AnyPyTree>& batches, std::int64_t dim) {
  std::vector<Tensors> parts(batches.front().tensors().size());  // [tensor][micro-batch]
  for (const auto& batch : batches) {
    const auto tensors = batch.tensors();
    if (tensors.size() != parts.size())
      throw_error<ArgumentError>("the last stage returns {} tensors for one micro-batch and {} for another",
                                 parts.size(), tensors.size());
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].push_back(tensors[i]);
  }
  Tensors merged;
  for (const auto& part : parts) {
    const bool is_scalar = part.front().dim() == 0;
    if (!is_scalar) check_dim(part.front(), dim, "an output");
    merged.push_back(is_scalar ? at::stack(part) : at::cat(part, dim));
  }
  return batches.front().with_tensors(merged);
}

}  // namespace lockstep::pipelining
