// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/tensor_parallel/parallelize_module.h>

#include "tensor_parallel/parallel_parameter.h"
#include "tensor_parallel/shared_input.h"

// What operators do with cut parameters of layers.
namespace lockstep::tensor_parallel {

// The layouts of what a layer takes and returns.
struct Layouts {
  Placement input, output;
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
