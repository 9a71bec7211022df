// SPDX-License-Identifier: BSD-3-Clause
#include "data/atomic_file.h"

#include <system_error>

#include <fmt/format.h>

#include <lockstep/base/atomic_file.h>
#include <lockstep/base/error.h>

namespace lockstep::data {

void write_file_atomically(const std::filesystem::path& file, std::span<const std::uint8_t> contents) {
  try {
    AtomicFile target(file);
    target.write(std::as_bytes(contents));
    target.commit();
  } catch (const std::system_error& error) {
    throw DataError(fmt::format("{}: cannot be written: {}", file.string(), error.code().message()));
  }
}

}  // namespace lockstep::data
