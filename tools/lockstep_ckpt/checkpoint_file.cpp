// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint_file.h"

#include <fmt/format.h>

#include <lockstep/base/atomic_file.h>

#include "file_kind.h"
#include "leaves.h"
#include "progress.h"

namespace lockstep::ckpt {
namespace {

// What is on its way to `file`.
std::uint64_t bytes_written(const std::filesystem::path& file) {
  auto part = file;
  part += AtomicFileOptions().suffix;
  std::error_code none;
  const auto bytes = std::filesystem::file_size(part, none);
  return none ? 0 : bytes;
}

}  // namespace

Checkpoint read_checkpoint(const std::filesystem::path& file, const LoadOptions& options) {
  if (kind_to_read(file) == FileKind::torch_file) return {.file = file, .value = load(file, options)};
  return {.file = file,
          .value = safetensors::load_file(file, options),
          .metadata = safetensors::SafeOpen(file, at::kMeta).metadata()};
}

void write_checkpoint(const Value& value, const std::filesystem::path& file,
                      const safetensors::Metadata& metadata) {
  const auto kind = kind_to_write(file);
  const Progress progress(fmt::format("writing {}", file.string()), total_bytes(leaves_of(value)),
                          [&] { return bytes_written(file); });
  if (kind == FileKind::torch_file) {
    save(value, file);
  } else {
    safetensors::save_file(value.as_dict(), file, {.metadata = metadata});
  }
}

safetensors::Metadata usual_metadata() { return {{"format", "pt"}}; }

}  // namespace lockstep::ckpt
