// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/ddp/options.h>

#include "ddp/bucket.h"
#include "modules/agreement.h"

namespace lockstep::ddp {

// The advice for tensors that cannot be sent, see check_can_be_sent().
constexpr const char* kOrIgnoreIt = ", or name it in params_and_buffers_to_ignore";

std::vector<modules::NamedTensor> joined(std::vector<modules::NamedTensor> first,
                                         const std::vector<modules::NamedTensor>& second);
// Throws ArgumentError if there are several types of devices.
c10::Device common_device(const std::vector<modules::NamedTensor>& parameters);

// The parameters and buffers of a wrapped module without those of params_and_buffers_to_ignore.
class WrappedTensors {
 public:
  // The arguments outlive it.
  WrappedTensors(const torch::nn::Module& module, const DistributedDataParallelOptions& options)
      : module_(module), options_(options) {}

  // Throws ArgumentError for a module without a parameter that requires a gradient, and for names that it
  // does not have. Returns the parameters' device.
  c10::Device check() const;
  // Looks at the module as it is now. Returns the parameters whose gradients have buckets.
  std::vector<TrainedParameter> look();

  const torch::nn::Module& module() const { return module_; }
  // As look() found them.
  const std::vector<modules::NamedTensor>& parameters() const { return parameters_; }
  const std::vector<modules::NamedTensor>& buffers() const { return buffers_; }
  // Parameters that did not require a gradient.
  const std::vector<modules::NamedTensor>& untrained() const { return untrained_; }
  // Those of delay_all_reduce_named_params, and the other parameters. The first and the third throw
  // ArgumentError for names that the module does not have.
  std::vector<modules::NamedTensor> delayed() const;
  std::vector<modules::NamedTensor> undelayed() const;
  at::Tensor param_to_hook_all_reduce() const;
  bool ignores(const std::string& name) const;
  // Parameters of the module, with gradients, that were added or have replaced others since look().
  std::vector<modules::NamedTensor> added() const;

  // What the ranks compare of the module as it is now, with `more` lines.
  modules::ModuleText text(const std::string& more = "") const;

 private:
  std::vector<modules::NamedTensor> not_ignored(std::vector<modules::NamedTensor> tensors) const;

  const torch::nn::Module& module_;
  const DistributedDataParallelOptions& options_;
  std::vector<modules::NamedTensor> parameters_;
  std::vector<modules::NamedTensor> buffers_;
  std::vector<modules::NamedTensor> untrained_;
};

}  // namespace lockstep::ddp
