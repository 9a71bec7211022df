// SPDX-License-Identifier: BSD-3-Clause
#include "data/images/exif.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::testing::exif_test {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::uint32_t kByte = 1;
constexpr std::uint32_t kShort = 3;
constexpr std::uint32_t kLong = 4;

struct Entry {
  std::uint32_t tag = 0x0112;  // the orientation
  std::uint32_t type = kShort;
  std::uint32_t value = 6;
};

// A TIFF structure with one directory, `gap` bytes after the header.
class TiffWriter {
 public:
  TiffWriter(bool big_endian, const std::vector<Entry>& entries, std::size_t gap = 0)
      : big_endian_(big_endian) {
    bytes.assign(2, big_endian ? 'M' : 'I');
    add(42, 2);
    add(static_cast<std::uint32_t>(8 + gap), 4);
    bytes.resize(bytes.size() + gap);
    add(static_cast<std::uint32_t>(entries.size()), 2);
    for (const auto& [tag, type, value] : entries) {
      add(tag, 2);
      add(type, 2);
      add(1, 4);
      add(value, type == kShort ? 2 : 4);
      if (type == kShort) add(0, 2);
    }
  }

  Bytes bytes{};

 private:
  void add(std::uint32_t value, int count) {
    for (int i = 0; i < count; ++i) {
      bytes.push_back(static_cast<std::uint8_t>(value >> 8 * (big_endian_ ? count - 1 - i : i)));
    }
  }

  bool big_endian_;
};

int orientation(bool big_endian, const std::vector<Entry>& entries, std::size_t gap = 0) {
  return data::exif_orientation(TiffWriter(big_endian, entries, gap).bytes);
}

TEST(Exif, TheOrientationIsReadInBothByteOrders) {
  for (const bool big_endian : {false, true}) {
    for (std::uint32_t value = 1; value <= 8; ++value) {
      EXPECT_EQ(orientation(big_endian, {{.value = value}}), value);
    }
    EXPECT_EQ(orientation(big_endian, {{.tag = 0x010f, .value = 3}, {.value = 8}}), 8);
    EXPECT_EQ(orientation(big_endian, {{.value = 5}}, 10), 5);
    EXPECT_EQ(orientation(big_endian, {{.type = kLong}}), 6);
  }
}

TEST(Exif, AnythingElseIsNoOrientation) {
  EXPECT_EQ(orientation(false, {}), 1);
  EXPECT_EQ(orientation(false, {{.tag = 0x010f}}), 1);
  EXPECT_EQ(orientation(false, {{.value = 0}}), 1);
  EXPECT_EQ(orientation(false, {{.value = 9}}), 1);
  EXPECT_EQ(orientation(false, {{.type = kByte}}), 1);
  EXPECT_EQ(orientation(false, {{.type = kLong, .value = 65536 + 6}}), 1);
  auto other = TiffWriter(false, {{}}).bytes;
  other[2] = 43;
  EXPECT_EQ(data::exif_orientation(other), 1);
  for (const bool big_endian : {false, true}) {
    auto unknown_order = TiffWriter(big_endian, {{}}).bytes;
    unknown_order[1] = 'X';
    EXPECT_EQ(data::exif_orientation(unknown_order), 1);
  }
}

TEST(Exif, AStructureThatIsCutShortHasNoOrientation) {
  const auto whole = TiffWriter(true, {{}}).bytes;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(data::exif_orientation(part), 1) << size;
  }
}

}  // namespace
}  // namespace lockstep::testing::exif_test
