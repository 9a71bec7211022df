// SPDX-License-Identifier: BSD-3-Clause
#include "data/images/exif.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "data/images/codec.h"

namespace lockstep::data {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kEntryBytes = 12;
constexpr std::size_t kValueBytes = 4;  // in an entry; longer values lie elsewhere
constexpr std::uint32_t kOrientation = 0x0112;

// The types of integers that PIL reads; BYTE is text to it.
struct TiffInteger {
  std::uint32_t type;
  std::size_t bytes;
};
constexpr std::array kIntegers = {
    TiffInteger{.type = 3, .bytes = 2},   // SHORT
    TiffInteger{.type = 4, .bytes = 4},   // LONG
    TiffInteger{.type = 6, .bytes = 1},   // SBYTE
    TiffInteger{.type = 8, .bytes = 2},   // SSHORT
    TiffInteger{.type = 9, .bytes = 4},   // SLONG
    TiffInteger{.type = 13, .bytes = 4},  // IFD
};

class Tiff {
 public:
  explicit Tiff(ByteSpan bytes) : bytes_(bytes), big_endian_(starts_with(bytes, "MM"sv)) {}

  // 42 in the other byte order is read too, as by PIL.
  bool has_header() const {
    return (big_endian_ || starts_with(bytes_, "II"sv)) &&
           (starts_with(bytes_, "*\0"sv, 2) || starts_with(bytes_, "\0*"sv, 2));
  }

  bool contains(std::size_t offset, std::size_t bytes) const {
    return offset <= bytes_.size() && bytes <= bytes_.size() - offset;
  }

  // 0 beyond the end.
  std::uint32_t number(std::size_t offset, std::size_t bytes) const {
    if (!contains(offset, bytes)) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      value = value << 8 | bytes_[offset + (big_endian_ ? i : bytes - 1 - i)];
    }
    return value;
  }

  // The first of the integers of an entry; nullopt without one.
  std::optional<std::uint32_t> integer(std::size_t entry) const {
    const auto* const kind = std::ranges::find(kIntegers, number(entry + 2, 2), &TiffInteger::type);
    if (kind == kIntegers.end()) return std::nullopt;
    const auto bytes = std::size_t{number(entry + 4, 4)} * kind->bytes;
    const std::size_t place = bytes <= kValueBytes ? entry + 8 : number(entry + 8, 4);
    if (bytes == 0 || !contains(place, bytes)) return std::nullopt;
    return number(place, kind->bytes);
  }

 private:
  ByteSpan bytes_;
  bool big_endian_;
};

}  // namespace

int exif_orientation(ByteSpan exif) {
  constexpr auto kPrefix = "Exif\0\0"sv;
  constexpr std::uint32_t kMost = 8;
  while (starts_with(exif, kPrefix)) exif = exif.subspan(kPrefix.size());
  const Tiff file(exif);
  if (!file.has_header()) return 1;
  const std::size_t directory = file.number(4, 4);
  const auto entries = file.number(directory, 2);
  std::uint32_t orientation = 1;
  for (std::size_t i = 0; i < entries; ++i) {
    const auto entry = directory + 2 + i * kEntryBytes;
    if (!file.contains(entry, kEntryBytes)) break;
    // The last of several counts.
    if (file.number(entry, 2) == kOrientation) orientation = file.integer(entry).value_or(orientation);
  }
  return orientation >= 1 && orientation <= kMost ? static_cast<int>(orientation) : 1;
}

}  // namespace lockstep::data
