// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

// The header of a .npy file.
struct NumpyHeader {
  at::ScalarType dtype = at::kFloat;
  bool big_endian = false;
  bool fortran_order = false;
  std::vector<std::int64_t> shape{};
  std::int64_t size = 0;     // bytes of the header
  std::int64_t payload = 0;  // bytes of the values, which the file has
};

// Parses the header at the beginning of the uint8 tensor `bytes`. `name` is for messages. Throws DataError
// when it is malformed or promises more than follows.
NumpyHeader parse_numpy_header(const at::Tensor& bytes, const std::string& name);

}  // namespace lockstep::data
