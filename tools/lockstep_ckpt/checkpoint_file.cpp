// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint_file.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "byte_counts.h"
#include "file_kind.h"
#include "leaves.h"
#include "progress.h"

namespace lockstep::ckpt {
namespace {

Dict read_folder(const std::filesystem::path& folder, const LoadOptions& options) {
  const distributed_checkpoint::Reader reader(folder);
  const auto start = bytes_read();
  const Progress progress(fmt::format("reading {}", folder.string()), bytes_at(folder),
                          [start] { return bytes_read() - start; });
  if (options.verify) reader.verify();
  return reader.read_all(options.map_location);
}

void write_folder(const Value& value, const std::filesystem::path& folder) {
  const auto* dict = value.get_if<Dict>();
  if (dict == nullptr) {
    throw CheckpointError(
        fmt::format("{}: the folder of a distributed checkpoint holds a dict; there is no place for {} {}, "
                    "so give the file an "
                    "extension, as in .pt, or choose a dict with --key",
                    folder.string(), value.type_name(), repr(value, 60)));
  }
  try {
    distributed_checkpoint::save(*dict, folder);
  } catch (const CheckpointError& error) {
    const std::string what = error.what();
    if (what.starts_with(folder.string())) throw;
    throw CheckpointError(fmt::format("{}: {}", folder.string(), what));
  }
}

}  // namespace

Checkpoint read_checkpoint(const std::filesystem::path& file, const LoadOptions& options) {
  switch (kind_to_read(file)) {
    case FileKind::folder:
      return {.file = file, .value = read_folder(file, options)};
    case FileKind::torch_file:
      return {.file = file, .value = load(file, options)};
    default:
      return {.file = file,
              .value = safetensors::load_file(file, options),
              .metadata = safetensors::SafeOpen(file, at::kMeta).metadata()};
  }
}

void write_checkpoint(const Value& value, const std::filesystem::path& file,
                      const safetensors::Metadata& metadata) {
  const auto kind = kind_to_write(file);
  const Progress progress(fmt::format("writing {}", file.string()), total_bytes(leaves_of(value)),
                          [&] { return bytes_written(file); });
  switch (kind) {
    case FileKind::folder:
      return write_folder(value, file);
    case FileKind::torch_file:
      return save(value, file);
    default:
      return safetensors::save_file(value.as_dict(), file, {.metadata = metadata});
  }
}

safetensors::Metadata usual_metadata() { return {{"format", "pt"}}; }

}  // namespace lockstep::ckpt
