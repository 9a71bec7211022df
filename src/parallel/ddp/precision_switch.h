// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <lockstep/ddp/options.h>

#include "modules/named_tensors.h"

namespace lockstep::ddp {

// Gives parameters low-precision copies from forward to the end of backward, and their own values for the
// optimizer. PyTorch: DDP's native mixed precision.
class PrecisionSwitch {
 public:
  PrecisionSwitch(const std::vector<modules::NamedTensor>& parameters,
                  const std::vector<modules::NamedTensor>& buffers, const MixedPrecision& options);
  ~PrecisionSwitch() { raise(); }
  PrecisionSwitch(const PrecisionSwitch&) = delete;
  PrecisionSwitch& operator=(const PrecisionSwitch&) = delete;

  // Before forward. Also casts gradients, so that backward can add to them. Returns false if already low.
  bool lower();
  // After backward.
  void raise();
  bool is_low() const { return is_low_; }

 private:
  struct Parameter {
    at::Tensor tensor;
    at::Tensor full = {};  // its own values, while the tensor holds the copy
  };

  MixedPrecision options_;
  std::vector<Parameter> parameters_;
  bool is_low_ = false;
};

}  // namespace lockstep::ddp
