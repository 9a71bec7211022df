// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// Reads a file in the IDX format of MNIST and its relatives (Fashion-MNIST, EMNIST, ...), gzip-compressed or
/// plain: a tensor of the file's shape and dtype (uint8, int8, int16, int32, float32 or float64).
/// Throws DataError naming the file and what is wrong with it: not there, cut short, trailing bytes, a header
/// that is not IDX. torchvision: read_sn3_pascalvincent_tensor.
at::Tensor read_idx(const std::filesystem::path& file);

}  // namespace lockstep::data
