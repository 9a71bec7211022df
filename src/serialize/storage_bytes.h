// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::serialize {

/// All of a storage as a uint8 tensor of shape [bytes] that shares it.
at::Tensor storage_bytes(const c10::Storage& storage);

}  // namespace lockstep::serialize
