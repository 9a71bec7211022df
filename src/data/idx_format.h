// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// The tensor that the contents of an IDX file (uint8 [bytes], plain) stand for; of one byte a value it
/// shares `bytes`' memory. `name` is for messages. Throws DataError.
at::Tensor parse_idx(const at::Tensor& bytes, const std::string& name);

}  // namespace lockstep::data
