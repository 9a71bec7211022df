// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "parity/ddp_record.h"

namespace lockstep::testing {

// The values of a float tensor.
inline Record record_of(const std::string& name, const at::Tensor& tensor) {
  const auto flat = tensor.detach().contiguous();
  return {name, {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()}};
}

}  // namespace lockstep::testing
