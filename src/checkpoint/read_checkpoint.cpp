// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/read_checkpoint.h"

#include <system_error>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "checkpoint/distributed_table.h"

namespace lockstep::checkpointing {

void read_again_if_replaced(const std::filesystem::path& folder, const std::function<void()>& read) {
  const auto table_time = [&] {
    std::error_code code;
    return std::filesystem::last_write_time(folder / distributed_checkpoint::kTableName, code);
  };
  const auto before = table_time();
  try {
    read();
  } catch (const CheckpointError&) {
    if (table_time() == before) throw;
    read();
  }
}

Value read_checkpoint(const std::filesystem::path& file, const LoadOptions& options) {
  std::error_code code;
  if (!std::filesystem::is_directory(file, code)) return load(file, options);
  if (options.mmap) {
    throw ArgumentError(fmt::format(
        "{}: every rank wrote a part of it, so it cannot be mapped; load it without mmap", file.string()));
  }
  Value contents;
  read_again_if_replaced(file, [&] {
    const distributed_checkpoint::Reader reader(file);
    if (options.verify) reader.verify();
    contents = reader.read_all(options.map_location);
  });
  return contents;
}

}  // namespace lockstep::checkpointing
