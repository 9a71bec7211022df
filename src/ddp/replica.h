// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>

#include <torch/nn/module.h>

#include <lockstep/ddp/options.h>

#include "ddp/reducer.h"

namespace lockstep::ddp {

// One rank's copy of the module, kept equal to the others': parameters by equal gradients, buffers by
// broadcasts.
class Replica {
 public:
  Replica(const torch::nn::Module& module, const DistributedDataParallelOptions& options,
          std::source_location where);

  void before_forward(bool sync);
  void after_forward(bool sync);

  const ProcessGroup& group() const { return group_; }
  const Reducer& reducer() const { return *reducer_; }

 private:
  ProcessGroup group_;
  bool broadcast_buffers_;
  std::source_location where_;
  std::vector<NamedTensor> buffers_;
  // False after a forward that was not for training: buffers have not changed since.
  bool buffers_may_differ_ = true;
  std::unique_ptr<Reducer> reducer_;
};

}  // namespace lockstep::ddp
