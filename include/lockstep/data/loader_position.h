// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <lockstep/data/batch_sampler.h>

namespace lockstep::data {

/// Where a loader is: between two passes, or so many batches into one. What a checkpoint keeps of it.
struct LoaderPosition {
  std::int64_t epoch = 0;       ///< of set_epoch()
  std::int64_t batches = 0;     ///< handed out in this pass, on one rank; 0 between passes
  std::int64_t samples = 0;     ///< handed out in this pass, on all ranks that share the data
  at::Tensor pass_generator{};  ///< the generator's state as the pass began: uint8, undefined between passes
  at::Tensor own_generator{};   ///< the present state of LoaderOptions::generator; undefined without one
};

/// Starts a pass, or goes on with the one that `resume` is in the middle of. `position` is set to where that
/// is.
std::unique_ptr<BatchStream> start_pass(const BatchSource& source,
                                        const std::optional<at::Generator>& generator,
                                        const std::optional<LoaderPosition>& resume,
                                        LoaderPosition& position);

at::Tensor generator_state(const std::optional<at::Generator>& generator);
void set_generator_state(const std::optional<at::Generator>& generator, const at::Tensor& state);

}  // namespace lockstep::data
