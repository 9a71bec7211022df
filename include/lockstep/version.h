// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

/// The version of these headers. CMake reads it here.
#define LOCKSTEP_VERSION_MAJOR 0
#define LOCKSTEP_VERSION_MINOR 2
#define LOCKSTEP_VERSION_PATCH 0

namespace lockstep {

/// The version of the library that the program runs with, such as "0.2.0". PyTorch: `torch.__version__`.
std::string version();

}  // namespace lockstep
