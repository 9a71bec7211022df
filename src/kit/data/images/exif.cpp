// SPDX-License-Identifier: BSD-3-Clause
#include <cstddef>

#include "data/images/codec.h"

namespace lockstep::data {
namespace {

class Tiff {
 public:
  explicit Tiff(ByteSpan bytes) : bytes_(bytes), big_endian_(bytes.size() > 1 && bytes[0] == 'M') {}

  // 0 beyond the end.
  std::uint32_t number(std::size_t offset, std::size_t bytes) const {
    if (offset > bytes_.size() || bytes_.size() - offset < bytes) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      value = value << 8 | bytes_[offset + (big_endian_ ? i : bytes - 1 - i)];
    }
    return value;
  }

 private:
  ByteSpan bytes_;
  bool big_endian_;
};

}  // namespace

int exif_orientation(ByteSpan tiff) {
  constexpr std::size_t kEntryBytes = 12;
  constexpr std::uint32_t kTiffMagic = 42;
  constexpr std::uint32_t kOrientation = 0x0112;
  constexpr std::uint32_t kShort = 3;
  const Tiff file(tiff);
  if (file.number(2, 2) != kTiffMagic) return 1;
  const std::size_t directory = file.number(4, 4);
  const auto entries = file.number(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const auto entry = directory + 2 + i * kEntryBytes;
    if (file.number(entry, 2) != kOrientation) continue;
    const auto value = file.number(entry + 8, 2);
    const bool valid = file.number(entry + 2, 2) == kShort && value >= 1 && value <= 8;
    return valid ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace lockstep::data
