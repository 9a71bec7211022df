// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/zip_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "serialize/checksum.h"

namespace lockstep::serialize {
namespace {

constexpr std::string_view kFolder = "archive/";
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kMost32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kMost16 = std::numeric_limits<std::uint16_t>::max();
// Names are UTF-8; the checksum follows the data, where there are any.
constexpr std::uint16_t kUtf8 = 0x0800;
constexpr std::uint16_t kChecksumFollows = 0x0008;
// As in PyTorch's files: version 4.5 of the format, which has 64-bit sizes, made on Unix.
constexpr std::uint16_t kMadeBy = 0x031e;
constexpr std::uint16_t kNeeded = 0x002d;

// Little-endian numbers, one behind the other.
class ZipBytes {
 public:
  template <typename... Numbers>
  ZipBytes& add(Numbers... numbers) {
    (append(numbers), ...);
    return *this;
  }
  ZipBytes& text(std::string_view text) {
    out_.append(text);
    return *this;
  }
  const std::string& out() const { return out_; }

 private:
  template <typename Number>
  void append(Number number) {
    char bytes[sizeof(number)];
    std::memcpy(bytes, &number, sizeof(number));
    out_.append(bytes, sizeof(number));
  }
  std::string out_;
};

std::uint16_t short_of(std::uint64_t number) { return static_cast<std::uint16_t>(std::min(number, kMost16)); }
std::uint32_t word_of(std::uint64_t number) { return static_cast<std::uint32_t>(std::min(number, kMost32)); }

std::uint16_t flags_of(std::uint64_t size) { return size > 0 ? kUtf8 | kChecksumFollows : kUtf8; }

// The field for numbers that need 64 bits; empty when none does. `stored` is the size in the file.
std::string wide_field(std::uint64_t size, std::uint64_t stored, std::uint64_t offset) {
  ZipBytes numbers;
  if (size >= kMost32) numbers.add(size, stored);
  if (offset >= kMost32) numbers.add(offset);
  if (numbers.out().empty()) return "";
  return ZipBytes().add(std::uint16_t{1}, short_of(numbers.out().size())).text(numbers.out()).out();
}

// A field that moves the data to a multiple of 64.
std::string padding_field(std::uint64_t data_offset) {
  const auto padding = (kAlignment - (data_offset + 4) % kAlignment) % kAlignment;
  return ZipBytes().text("FB").add(short_of(padding)).text(std::string(padding, 'Z')).out();
}

std::string local_header(const std::string& name, std::uint64_t size, std::uint64_t offset) {
  constexpr std::uint64_t fixed = 30;
  // How much is stored follows the data, too.
  auto extra = wide_field(size, 0, offset);
  extra += padding_field(offset + fixed + name.size() + extra.size());
  return ZipBytes()
      .text("PK\x03\x04")
      .add(std::uint16_t{0}, flags_of(size), std::uint64_t{0}, std::uint64_t{0}, std::uint16_t{0})
      .add(short_of(name.size()), short_of(extra.size()))
      .text(name)
      .text(extra)
      .out();
}

std::string descriptor(std::uint64_t size, std::uint64_t offset, std::uint32_t crc) {
  if (size == 0) return "";
  ZipBytes bytes;
  bytes.text("PK\x07\x08").add(crc);
  if (size < kMost32 && offset < kMost32) return bytes.add(word_of(size), word_of(size)).out();
  return bytes.add(size, size).out();
}

}  // namespace

void ZipWriter::write(std::span<const std::byte> bytes) {
  sink_(bytes);
  size_ += bytes.size();
}

void ZipWriter::write(const std::string& bytes) { write(std::as_bytes(std::span(bytes))); }

void ZipWriter::add(std::string_view name, std::span<const std::byte> data,
                    const std::function<std::uint32_t()>& checksum) {
  Record record{.name = fmt::format("{}{}", kFolder, name), .offset = size_, .size = data.size(), .crc = 0};
  write(local_header(record.name, record.size, record.offset));
  write(data);
  record.crc = checksum();
  write(descriptor(record.size, record.offset, record.crc));
  records_.push_back(std::move(record));
}

void ZipWriter::add(std::string_view name, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  add(name, bytes, [&] { return crc32_of(bytes); });
}

// As long as PyTorch's: of the names, then of the contents.
std::string ZipWriter::identification() const {
  std::uint64_t names = 0;
  std::uint64_t contents = 0;
  for (const auto& record : records_) {
    names = names * 1099511628211U + crc32_of(std::as_bytes(std::span(record.name)));
    contents = contents * 1099511628211U + record.crc;
  }
  return fmt::format("{:020}{:020}", names, contents);
}

void ZipWriter::finish() {
  add("version", "3\n");
  add(".data/serialization_id", identification());
  const auto start = size_;
  for (const auto& [name, offset, size, crc] : records_) {
    const auto extra = wide_field(size, size, offset);
    write(ZipBytes()
              .text("PK\x01\x02")
              .add(std::uint32_t{0}, flags_of(size), std::uint16_t{0}, std::uint32_t{0}, crc)
              .add(word_of(size), word_of(size), short_of(name.size()), short_of(extra.size()))
              .add(std::uint64_t{0}, std::uint16_t{0}, word_of(offset))
              .text(name)
              .text(extra)
              .out());
  }
  const auto end = size_;
  const std::uint64_t count = records_.size();
  write(ZipBytes()
            .text("PK\x06\x06")
            .add(std::uint64_t{44}, kMadeBy, kNeeded, std::uint64_t{0}, count, count, end - start, start)
            .text("PK\x06\x07")
            .add(std::uint32_t{0}, end, std::uint32_t{1})
            .text("PK\x05\x06")
            .add(std::uint32_t{0}, short_of(count), short_of(count), word_of(end - start), word_of(start))
            .add(std::uint16_t{0})
            .out());
}

}  // namespace lockstep::serialize
