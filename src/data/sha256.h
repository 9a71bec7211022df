// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace lockstep::data {

/// The SHA-256 of `bytes` in lower-case hexadecimal.
std::string sha256_hex(std::span<const std::uint8_t> bytes);

}  // namespace lockstep::data
