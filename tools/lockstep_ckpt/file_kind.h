// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep::ckpt {

enum class FileKind : std::uint8_t { torch_file, safetensors };

/// What the extension says: .safetensors, or one of .pt, .pth, .bin, .ckpt. Throws ArgumentError for another.
FileKind kind_to_write(const std::filesystem::path& file);

/// The same for a file that exists; any other extension is PyTorch's.
FileKind kind_to_read(const std::filesystem::path& file);

}  // namespace lockstep::ckpt
