// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// A regular file in a tar archive; its contents lie in the archive's memory.
struct TarEntry {
  std::string name;
  std::span<const std::uint8_t> contents;
};

/// The regular files of an uncompressed tar archive (ustar), such as npm packages are. Entries of other kinds
/// are passed over. `name` is for messages. Throws DataError when the archive is damaged or cut short.
std::vector<TarEntry> read_tar(std::span<const std::uint8_t> archive, const std::string& name);

}  // namespace lockstep::data
