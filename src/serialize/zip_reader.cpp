// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/zip_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <zlib.h>

#include "serialize/errors.h"

namespace lockstep::serialize {
namespace {

constexpr std::string_view kLocalHeader("PK\x03\x04", 4);
constexpr std::string_view kDirectoryEntry("PK\x01\x02", 4);
constexpr std::string_view kEnd("PK\x05\x06", 4);
constexpr std::string_view kEnd64("PK\x06\x06", 4);
constexpr std::string_view kEnd64Locator("PK\x06\x07", 4);
constexpr std::uint64_t kLocalHeaderSize = 30;
constexpr std::uint64_t kEntrySize = 46;
constexpr std::uint64_t kEndSize = 22;
constexpr std::uint64_t kLocatorSize = 20;
constexpr std::uint64_t kEnd64Size = 56;
constexpr std::uint64_t kLongestComment = 0xffff;
constexpr std::uint32_t kIn64Bits = 0xffffffff;

template <typename Number>
Number number_at(std::string_view bytes, std::size_t offset) {
  Number number{};
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

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

void ZipReader::fail(std::string_view what) const {
  throw_error("{}: the zip file is damaged: {}", source_.name(), what);
}

bool ZipReader::looks_like_zip(const ByteSource& source) {
  return source.size() >= kEndSize && source.read_text(0, 4) == kLocalHeader;
}

ZipReader::ZipReader(const ByteSource& source) : source_(source) {
  const auto tail_size = std::min(source.size(), kEndSize + kLongestComment);
  const auto tail_start = source.size() - tail_size;
  const auto tail = source.read_text(tail_start, tail_size);
  const auto end = tail.size() < kEndSize ? std::string::npos : tail.rfind(kEnd, tail.size() - kEndSize);
  if (end == std::string::npos) fail("its table of contents is missing; was it copied only in part?");
  std::uint64_t count = number_at<std::uint16_t>(tail, end + 10);
  std::uint64_t size = number_at<std::uint32_t>(tail, end + 12);
  std::uint64_t offset = number_at<std::uint32_t>(tail, end + 16);
  const auto end_offset = tail_start + end;
  if (end_offset >= kLocatorSize) {
    const auto locator = source.read_text(end_offset - kLocatorSize, kLocatorSize);
    if (locator.starts_with(kEnd64Locator)) {
      const auto end64 = source.read_text(number_at<std::uint64_t>(locator, 8), kEnd64Size);
      if (!end64.starts_with(kEnd64)) fail("its 64-bit end record is missing");
      count = number_at<std::uint64_t>(end64, 32);
      size = number_at<std::uint64_t>(end64, 40);
      offset = number_at<std::uint64_t>(end64, 48);
    }
  }
  read_directory(offset, size, count);
}

void ZipReader::read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count) {
  if (count > size / kEntrySize) fail("its table of contents counts more records than it has");
  const auto directory = source_.read_text(offset, size);
  std::string_view left = directory;
  std::uint64_t total = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (left.size() < kEntrySize || !left.starts_with(kDirectoryEntry)) fail("an entry is cut short");
    const auto flags = number_at<std::uint16_t>(left, 8);
    const auto method = number_at<std::uint16_t>(left, 10);
    const std::size_t name_size = number_at<std::uint16_t>(left, 28);
    const std::size_t extra_size = number_at<std::uint16_t>(left, 30);
    const std::size_t comment_size = number_at<std::uint16_t>(left, 32);
    ZipRecord record{.header = number_at<std::uint32_t>(left, 42),
                     .size = number_at<std::uint32_t>(left, 24),
                     .crc = number_at<std::uint32_t>(left, 16)};
    std::uint64_t packed = number_at<std::uint32_t>(left, 20);
    if (left.size() - kEntrySize < name_size + extra_size + comment_size) fail("an entry is cut short");
    const std::string name(left.substr(kEntrySize, name_size));
    auto extra = left.substr(kEntrySize + name_size, extra_size);
    left.remove_prefix(kEntrySize + name_size + extra_size + comment_size);
    while (extra.size() >= 4) {
      const auto id = number_at<std::uint16_t>(extra, 0);
      const std::size_t length = number_at<std::uint16_t>(extra, 2);
      if (length > extra.size() - 4) fail("an entry is cut short");
      auto field = extra.substr(4, length);
      extra.remove_prefix(4 + length);
      if (id != 1) continue;  // the sizes in 64 bits, where 32 did not do
      for (auto* number : {&record.size, &packed, &record.header}) {
        if (*number != kIn64Bits || field.size() < 8) continue;
        *number = number_at<std::uint64_t>(field, 0);
        field.remove_prefix(8);
      }
    }
    if ((flags & 1) != 0) fail(fmt::format("record {} is encrypted", name));
    if (method != 0) {
      throw_error(
          "{}: record {} is compressed, which PyTorch never does; unpack the zip file and pack it again "
          "without compression (zip -0)",
          source_.name(), name);
    }
    if (packed != record.size) fail(fmt::format("record {} has two sizes", name));
    // A file that claims more than it has would make memory of nothing.
    if (record.size > source_.size() - total) fail("its records overlap");
    total += record.size;
    if (!records_.emplace(name, record).second) fail(fmt::format("there are two records {}", name));
  }
}

const ZipRecord* ZipReader::find(std::string_view name) const {
  const auto found = records_.find(name);
  return found == records_.end() ? nullptr : &found->second;
}

std::uint64_t ZipReader::offset(const ZipRecord& record) const {
  const auto header = source_.read_text(record.header, kLocalHeaderSize);
  if (!header.starts_with(kLocalHeader)) fail("a record is not where the table of contents says");
  return record.header + kLocalHeaderSize + number_at<std::uint16_t>(header, 26) +
         number_at<std::uint16_t>(header, 28);
}

std::string ZipReader::read(const ZipRecord& record) const {
  return source_.read_text(offset(record), record.size);
}

void ZipReader::verify_checksums() const {
  const bool none = std::ranges::all_of(records_, [](const auto& entry) { return entry.second.crc == 0; });
  if (none) return;
  for (const auto& [name, record] : records_) {
    const auto crc = checksum_of(*this, record);
    if (crc == record.crc) continue;
    throw_error("{}: record {} is damaged: its checksum is {:08x} instead of {:08x}", source_.name(), name,
                crc, record.crc);
  }
}

}  // namespace lockstep::serialize
