// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/tensor_parallel/parallelize_module.h>

#include "tensor_parallel/parallel_parameter.h"
#include "tensor_parallel/redistribute.h"

// What operators do with cut parameters of layers.
namespace lockstep::tensor_parallel {

// The layouts of what a layer takes and returns.
struct Layouts {
  Placement input, output;
};

// The converted input of a module, for all its layers that get the same tensor: one conversion, and one of
// the sum of its gradients. Whether a layer converts depends only on the calls of the layers, which are the
// same on all ranks.
class SharedInput {
 public:
  explicit SharedInput(const Route& route) : route_(route) {}

  // One more layer calls convert().
  void add_layer() { ++layers_; }
  int layers() const { return layers_; }
  at::Tensor convert(const at::Tensor& input, const ProcessGroup& group);

 private:
  bool is_result_of(const at::Tensor& input) const;

  Route route_;
  int layers_ = 0;
  int uses_ = 0;  // of the result
  // Until all layers have used the result, or one of them gets another input.
  at::Tensor source_, result_;
  std::uint32_t version_ = 0;  // of the source
};

// The way of the input of a ColwiseParallel Linear.
Route colwise_input(Placement layout);

// Rules for a Linear's weight, [out, in]. `shared`: converts the input; nullptr: the layer does so itself.
Rule colwise_linear(Layouts layouts, std::shared_ptr<SharedInput> shared);
Rule rowwise_linear(Layouts layouts);
// The rule for its cut bias, which is added to an output of that layout.
Rule colwise_bias(Placement output);
// The rule for the whole bias that is added to the terms of a sum.
Rule rowwise_bias();
// Rules for an Embedding's weight, [vocabulary, features]. `padding_idx`: a row of the whole vocabulary, or
// -1.
Rule colwise_embedding(Layouts layouts);
Rule rowwise_embedding(Layouts layouts, std::int64_t padding_idx);

}  // namespace lockstep::tensor_parallel
