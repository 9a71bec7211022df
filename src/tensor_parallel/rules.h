// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <lockstep/tensor_parallel/parallelize_module.h>

#include "tensor_parallel/parallel_parameter.h"

// What operators do with cut parameters of layers.
namespace lockstep::tensor_parallel {

// The layouts of the tensor that a layer takes and of the one that it returns.
struct Layouts {
  Placement input, output;
};

// For the weight, [out, in], of a Linear.
Rule colwise_linear(Layouts layouts);
Rule rowwise_linear(Layouts layouts);
// For its cut bias, which is added to an output of that layout.
Rule colwise_bias(Placement output);
// For the weight, [vocabulary, features], of an Embedding. `padding_idx`: of the whole vocabulary, or -1.
Rule colwise_embedding(Layouts layouts);
Rule rowwise_embedding(Layouts layouts, std::int64_t padding_idx);

}  // namespace lockstep::tensor_parallel
