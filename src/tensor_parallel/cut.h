// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <source_location>
#include <string>

#include <torch/nn/modules/embedding.h>

#include <lockstep/tensor_parallel/parallelize_module.h>

#include "tensor_parallel/rules.h"

// Parameters of layers become parts of themselves.
namespace lockstep::tensor_parallel {

// The ranks, and the caller for errors.
struct Ranks {
  ProcessGroup group;
  std::source_location where;
};

// Throws for layouts that the style does not have. `name`: of what has the style, for errors.
void check_layouts(const ColwiseParallel& style, const std::string& name, const Ranks& ranks);
void check_layouts(const RowwiseParallel& style, const std::string& name, const Ranks& ranks);
void check_layouts(const PrepareModuleInput& style, const std::string& name, const Ranks& ranks);

// Makes the tensor this rank's part along `dim`; without a dimension it stays whole, and operators for
// which it has no rule sum its gradient. A parameter that an earlier call cut alike gets the rule too.
// `rule`: may be empty.
void cut(const at::Tensor& parameter, const std::string& name, std::optional<std::int64_t> dim, Rule rule,
         const Ranks& ranks);

// The layer's parameters, of which the bias may be undefined. `name`: of the layer, with a dot if not empty.
// `shared`: see colwise_linear().
void cut_linear(const at::Tensor& weight, const at::Tensor& bias, const std::string& name,
                const ColwiseParallel& style, const Ranks& ranks,
                std::shared_ptr<SharedInput> shared = nullptr);
void cut_linear(const at::Tensor& weight, const at::Tensor& bias, const std::string& name,
                const RowwiseParallel& style, const Ranks& ranks,
                const std::shared_ptr<SharedInput>& = nullptr);

void cut_embedding(torch::nn::EmbeddingImpl& embedding, const std::string& name, const ColwiseParallel& style,
                   const Ranks& ranks);
void cut_embedding(torch::nn::EmbeddingImpl& embedding, const std::string& name, const RowwiseParallel& style,
                   const Ranks& ranks);

// The group of a mesh, which has one dimension.
Ranks ranks_of(const DeviceMesh& mesh, const char* caller, std::source_location where);

}  // namespace lockstep::tensor_parallel
