// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/verify.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <zlib.h>

#include <lockstep/base/error.h>

namespace lockstep::serialize {

void check_crc(const ZipReader& zip, std::string_view name, const ZipRecord& record) {
  if (record.crc == 0) return;
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
  if (crc == record.crc) return;
  throw CheckpointError(fmt::format("{}: record {} is damaged: its checksum is {:08x} instead of {:08x}",
                                    zip.source().name(), name, crc, record.crc));
}

}  // namespace lockstep::serialize
