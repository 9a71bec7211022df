// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/verify.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <zlib.h>

#include <lockstep/base/error.h>

namespace lockstep::serialize {

namespace {

std::uint32_t checksum_of(const ZipReader& zip, const ZipRecord& record) {
  constexpr std::uint64_t piece = 1 << 20;
  std::vector<char> buffer(std::min(piece, record.size));
  const auto start = zip.offset(record);
  uLong crc = ::crc32(0, nullptr, 0);
  for (std::uint64_t done = 0; done < record.size;) {
    const auto count = std::min<std::uint64_t>(buffer.size(), record.size - done);
    zip.source().read(start + done, {buffer.data(), count});
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(buffer.data()), static_cast<uInt>(count));
    done += count;
  }
  return static_cast<std::uint32_t>(crc);
}

}  // namespace

void verify_checksums(const ZipReader& zip) {
  const bool none =
      std::ranges::all_of(zip.records(), [](const auto& entry) { return entry.second.crc == 0; });
  if (none) return;
  for (const auto& [name, record] : zip.records()) {
    const auto crc = checksum_of(zip, record);
    if (crc == record.crc) continue;
    throw CheckpointError(fmt::format("{}: record {} is damaged: its checksum is {:08x} instead of {:08x}",
                                      zip.source().name(), name, crc, record.crc));
  }
}

}  // namespace lockstep::serialize
