// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep::data {

/// Gives `file` these contents, whole or not at all, also when this process or the machine is stopped in the
/// middle. The caller holds a lock that keeps other writers of the same file away; a leftover of a writer
/// that was killed ("<file>.part") is overwritten. Throws DataError naming the file.
void write_file_atomically(const std::filesystem::path& file, std::span<const std::uint8_t> contents);

}  // namespace lockstep::data
