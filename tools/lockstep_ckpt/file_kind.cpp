// SPDX-License-Identifier: BSD-3-Clause
#include "file_kind.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/ranges.h>

#include <lockstep/base/error.h>

namespace lockstep::ckpt {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::array<std::string_view, 4> kTorchFiles = {".pt", ".pth", ".bin", ".ckpt"};

}  // namespace

FileKind kind_to_write(const std::filesystem::path& file) {
  const auto extension = file.extension().string();
  if (extension == kSafetensors) return FileKind::safetensors;
  if (std::ranges::find(kTorchFiles, extension) != kTorchFiles.end()) return FileKind::torch_file;
  throw ArgumentError(fmt::format("{}: its extension does not say what to write; give it one of {}, {}",
                                  file.string(), kSafetensors, fmt::join(kTorchFiles, ", ")));
}

FileKind kind_to_read(const std::filesystem::path& file) {
  return file.extension() == kSafetensors ? FileKind::safetensors : FileKind::torch_file;
}

}  // namespace lockstep::ckpt
