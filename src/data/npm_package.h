// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

#include <ATen/core/Tensor.h>

#include <lockstep/base/deadline.h>

namespace lockstep::data {

/// Has npm fetch a package ("name@version") and returns its archive, an uncompressed tar as uint8 [bytes].
/// `scratch` is a folder name of this caller's own: made, and removed again. Throws DataError saying why npm
/// failed.
at::Tensor fetch_npm_package(const std::string& package, const std::filesystem::path& scratch,
                             const Deadline& deadline);

}  // namespace lockstep::data
