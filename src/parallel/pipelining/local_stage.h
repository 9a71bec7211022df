// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include <lockstep/device/pytree.h>
#include <lockstep/pipelining/pipeline.h>

#include "fsdp/module_groups.h"
#include "pipelining/split_backward.h"

namespace lockstep::pipelining {

// A stage on this rank and what it keeps of each micro-batch between forward and backward.
class LocalStage {
 public:
  LocalStage(PipelineStage stage, int n_microbatches);

  const fsdp::ModuleGroups& shards() const { return shards_; }

  AnyPyTree forward(int microbatch, const AnyPyTree& inputs);
  const Tensors& outputs(int microbatch) const { return at(microbatch).outputs; }
  // Backward of the last stage begins here.
  void set_loss(int microbatch, const at::Tensor& loss) { at(microbatch).outputs = {loss}; }

  // The gradients of the inputs, zeros where none arrives, undefined where none is required. `gradients`: of
  // the outputs. B, I or W; W returns nothing.
  Tensors backward(int microbatch, ComputationType type, const Tensors& gradients);

  void clear();

 private:
  struct State {
    Tensors inputs, outputs;
    SplitBackward split;
  };
  State& at(int microbatch) { return states_.at(static_cast<std::size_t>(microbatch)); }
  const State& at(int microbatch) const { return states_.at(static_cast<std::size_t>(microbatch)); }
  Tensors full_backward(State& state, const Tensors& gradients) const;

  PipelineStage stage_;
  fsdp::ModuleGroups shards_;
  std::vector<State> states_;
};

// The value of each micro-batch: the tensors of `batch` split in `dim`, and all that is not a tensor. `what`
// names the batch in errors.
std::vector<AnyPyTree> split_batch(const AnyPyTree& batch, int count, std::int64_t dim, const char* what);

// The value without history.
AnyPyTree detached(const AnyPyTree& value);

// The tensors of all micro-batches concatenated in `dim`, scalars stacked; the rest is that of the first.
AnyPyTree merge_batches(const std::vector<AnyPyTree>& batches, std::int64_t dim);

}  // namespace lockstep::pipelining
