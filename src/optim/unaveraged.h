// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace lockstep::optim {

// Parameters whose gradients should be averages over all ranks and are not: DistributedDataParallel marks
// them, and what would spread the mistake refuses them. Safe from any thread.

// `why`: the error's text.
void mark_unaveraged(const at::Tensor& parameter, std::shared_ptr<const std::string> why);
void unmark_unaveraged(const at::Tensor& parameter);
// After an averaged backward, which mends gradients but not weights.
void unmark_unless_changed(const at::Tensor& parameter);

// Throw Error if a parameter is marked and still has that gradient, or has been changed by it. A few
// nanoseconds if no parameter of the process is marked. `user`: the caller, for the message.
void refuse_unaveraged(std::string_view user, const std::vector<at::Tensor>& parameters);
void refuse_unaveraged(std::string_view user, const std::vector<torch::optim::OptimizerParamGroup>& groups);

}  // namespace lockstep::optim
