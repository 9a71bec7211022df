// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::data {

// Encode contiguous uint8 [height, width, channels] as uint8 [n].
at::Tensor write_jpeg(const at::Tensor& pixels, int quality);
at::Tensor write_png(const at::Tensor& pixels, int compression_level);

}  // namespace lockstep::data
