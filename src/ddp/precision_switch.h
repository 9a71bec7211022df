// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <lockstep/ddp/options.h>

#include "ddp/trained_parameters.h"

namespace lockstep::ddp {

// Parameters that hold low-precision copies from forward to the end of backward, and their own values for the
// optimizer. PyTorch: DDP's native mixed precision.
class PrecisionSwitch {
 public:
  PrecisionSwitch(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers,
                  const MixedPrecision& options);
  ~PrecisionSwitch() { raise(); }
  PrecisionSwitch(const PrecisionSwitch&) = delete;
  PrecisionSwitch& operator=(const PrecisionSwitch&) = delete;

  // Before forward; gradients that are there are cast, too, so that more can be added. False when it was so
  // already.
  bool lower();
  // After backward.
  void raise();

 private:
  struct Parameter {
    at::Tensor tensor;
    at::Tensor full = {};  // its own values, while it holds others
  };

  MixedPrecision options_;
  std::vector<Parameter> parameters_;
  bool is_low_ = false;
};

// Whether mixed precision changes tensors of this type.
bool has_precision(const at::Tensor& tensor);

}  // namespace lockstep::ddp
