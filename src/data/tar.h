// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

// The regular files of a tar archive by their path, as views of its bytes. `name` is for messages. Throws
// DataError when the archive is damaged or cut short.
std::map<std::string, at::Tensor> read_tar(const at::Tensor& bytes, const std::string& name);

}  // namespace lockstep::data
