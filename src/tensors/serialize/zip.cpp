// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/zip.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <c10/util/ScopeExit.h>
#include <zlib.h>

#include "base/throw_error.h"
#include "serialize/storage.h"

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
constexpr std::uint16_t kStored = 0;
constexpr std::uint16_t kDeflate = 8;
// Deflate makes at most 1,032 bytes of one.
constexpr std::uint64_t kMostInflation = 1032;
// A number that is larger stands in a field of 64 bits.
constexpr std::uint64_t kMost32 = std::numeric_limits<std::uint32_t>::max();

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

constexpr std::string_view kFolder = "archive/";
constexpr std::uint64_t kAlignment = 64;
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
  // How much is stored follows the data, too.
  auto extra = wide_field(size, 0, offset);
  extra += padding_field(offset + kLocalHeaderSize + name.size() + extra.size());
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

void ZipReader::fail(std::string_view what) const {
  throw_error<CheckpointError>("{}: the zip file is damaged: {}", source_.name(), what);
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
                     .packed = number_at<std::uint32_t>(left, 20),
                     .crc = number_at<std::uint32_t>(left, 16),
                     .deflated = method == kDeflate};
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
      for (auto* number : {&record.size, &record.packed, &record.header}) {
        if (*number != kMost32 || field.size() < 8) continue;
        *number = number_at<std::uint64_t>(field, 0);
        field.remove_prefix(8);
      }
    }
    if ((flags & 1) != 0) fail(fmt::format("record {} is encrypted", name));
    check_method(name, record, method);
    // A file that claims more than it has would make memory of nothing.
    if (record.packed > source_.size() - total) fail("its records overlap");
    total += record.packed;
    if (!records_.emplace(name, record).second) fail(fmt::format("there are two records {}", name));
  }
}

void ZipReader::check_method(std::string_view name, const ZipRecord& record, std::uint16_t method) const {
  if (method != kStored && method != kDeflate) {
    throw_error<CheckpointError>("{}: record {} is compressed by method {}; only deflate is supported",
                                 source_.name(), name, method);
  }
  if (!record.deflated && record.packed != record.size) fail(fmt::format("record {} has two sizes", name));
  if (record.deflated && record.size / kMostInflation > record.packed) {
    fail(fmt::format("record {} cannot have {} bytes, compressed to {}", name, record.size, record.packed));
  }
}

void ZipReader::refuse_compression() const {
  for (const auto& [name, record] : records_) {
    if (!record.deflated) continue;
    throw_error<CheckpointError>(
        "{}: record {} is compressed, which torch.save never does; unpack the zip file and pack it again "
        "without compression (zip -0)",
        source_.name(), name);
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

c10::Storage ZipReader::storage(std::string_view name, const ZipRecord& record, std::size_t alignment) const {
  const auto start = offset(record);
  if (!record.deflated && start % alignment == 0) return source_.storage(start, record.size, alignment);
  // As if nothing were aligned: a copy.
  auto bytes = record.deflated ? inflate(name, record)
                               : source_.storage(start, record.size, std::numeric_limits<std::size_t>::max());
  if (const auto crc = crc32_of(bytes_of(bytes)); crc != record.crc) fail_checksum(name, record, crc);
  return bytes;
}

c10::Storage ZipReader::inflate(std::string_view name, const ZipRecord& record) const {
  const auto packed = source_.read_text(offset(record), record.packed);
  auto bytes = empty_storage(record.size, source_.name());
  z_stream stream{};
  // Negative: without zlib's own header.
  if (::inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw_error<CheckpointError>("zlib could not be started");
  const auto end = c10::make_scope_exit([&stream] { ::inflateEnd(&stream); });
  std::string_view in = packed;
  std::span<Bytef> out(static_cast<Bytef*>(bytes.mutable_data()), record.size);
  int code = Z_OK;
  while (code == Z_OK) {
    // zlib counts in 32 bits.
    const auto in_piece = in.substr(0, kMost32);
    const auto out_piece = out.first(std::min<std::size_t>(out.size(), kMost32));
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in_piece.data()));
    stream.avail_in = static_cast<uInt>(in_piece.size());
    stream.next_out = out_piece.data();
    stream.avail_out = static_cast<uInt>(out_piece.size());
    code = ::inflate(&stream, Z_NO_FLUSH);
    in.remove_prefix(in_piece.size() - stream.avail_in);
    out = out.subspan(out_piece.size() - stream.avail_out);
  }
  if (code != Z_STREAM_END || !out.empty()) fail(fmt::format("record {} cannot be decompressed", name));
  return bytes;
}

void ZipReader::fail_checksum(std::string_view name, const ZipRecord& record, std::uint32_t found) const {
  throw_error<CheckpointError>("{}: record {} is damaged: its checksum is {:08x} instead of {:08x}",
                               source_.name(), name, found, record.crc);
}

void ZipReader::verify_checksums() const {
  const bool none = std::ranges::all_of(records_, [](const auto& entry) { return entry.second.crc == 0; });
  if (none) return;
  for (const auto& [name, record] : records_) {
    const auto crc = checksum_of(*this, record);
    if (crc != record.crc) fail_checksum(name, record, crc);
  }
}

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
