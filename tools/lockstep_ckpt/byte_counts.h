// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep::ckpt {

/// What this process has read so far, as the kernel counts it.
std::uint64_t bytes_read();

/// What is on its way to the checkpoint `path`, a file or a folder.
std::uint64_t bytes_written(const std::filesystem::path& path);

/// Of a file, or of all files in a folder; 0 when there is none.
std::uint64_t bytes_at(const std::filesystem::path& path);

}  // namespace lockstep::ckpt
