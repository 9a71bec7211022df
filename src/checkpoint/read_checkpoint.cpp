// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/read_checkpoint.h"

#include <system_error>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>

namespace lockstep::checkpointing {

Value read_checkpoint(const std::filesystem::path& file, const LoadOptions& options) {
  std::error_code code;
  if (!std::filesystem::is_directory(file, code)) return load(file, options);
  if (options.mmap) {
    throw ArgumentError(fmt::format(
        "{}: every rank wrote a part of it, so it cannot be mapped; load it without mmap", file.string()));
  }
  const distributed_checkpoint::Reader reader(file);
  if (options.verify) reader.verify();
  return reader.read_all(options.map_location);
}

}  // namespace lockstep::checkpointing
