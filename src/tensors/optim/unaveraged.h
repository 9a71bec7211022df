// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace lockstep::optim {

// Parameters whose gradients should be averages over all ranks and are not: DistributedDataParallel marks
// them, and what would spread the mistake refuses them. Safe from any thread.

// `why`: the error's text. The mark says that another wrapper averages this backward: such gradients are
// usually dropped, as those of a discriminator in its generator's step. Returns whether the parameter had
// such a mark and has been changed since, so that they were not dropped.
bool mark_unaveraged(const at::Tensor& parameter, std::shared_ptr<const std::string> why);
// No wrapper averages the backward.
void confirm_unaveraged(const at::Tensor& parameter);
void unmark_unaveraged(const at::Tensor& parameter);
// After an averaged backward, which mends gradients but not weights.
void unmark_unless_changed(const at::Tensor& parameter);
// Its values have been loaded since: no gradient has changed them.
void forget_changes(const at::Tensor& parameter);

// Asked by refuse_step() and refuse_save() on this thread, while the result lives, for the error's text.
// `unwatched`: parameters with gradients that no hook of DistributedDataParallel sees. Empty: they may be
// used.
[[nodiscard]] std::shared_ptr<void> watch_use(
    std::function<std::string(const std::vector<at::Tensor>& unwatched)> why);

// Before gradients are used, as by an optimizer's step. Throws Error if a parameter is marked and still has
// that gradient, or has been changed by it. A nanosecond for each parameter. `user`: the caller, for the
// message.
void refuse_step(std::string_view user, const std::vector<at::Tensor>& parameters);
void refuse_step(std::string_view user, const std::vector<torch::optim::OptimizerParamGroup>& groups);
// Before parameters are saved. A gradient of a backward that another wrapper averages does no harm here.
void refuse_save(std::string_view user, const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::optim
