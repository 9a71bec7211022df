// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "ddp/bucket.h"

namespace lockstep::ddp {

// Parameters whose gradients share one flat tensor of their own, which is averaged after the gradient of
// another parameter has been computed. PyTorch: `delay_all_reduce_named_params`.
class DelayedReduction {
 public:
  DelayedReduction(std::vector<modules::NamedTensor> parameters, const at::Tensor& trigger,
                   ProcessGroup group, std::source_location where);
  ~DelayedReduction();
  DelayedReduction(const DelayedReduction&) = delete;
  DelayedReduction& operator=(const DelayedReduction&) = delete;

  // After a forward: moves the gradients into the flat tensor; dropped ones become zeros.
  void prepare(bool sync);

 private:
  void reduce();

  std::vector<modules::NamedTensor> parameters_;
  at::Tensor trigger_;
  ProcessGroup group_;
  std::source_location where_;
  at::Tensor flat_;
  std::vector<at::Tensor> views_;
  unsigned hook_ = 0;
  bool sync_ = false;
  Work work_;
};

}  // namespace lockstep::ddp
