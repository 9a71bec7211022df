// SPDX-License-Identifier: BSD-3-Clause
#include "data/tar.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/throw_error.h"
#include "data/bytes.h"

// The format: for each file a header of 512 bytes and its contents, filled up to a multiple of 512. A header
// of zeros ends the archive. A file whose path or size has no room in its header has extended headers before
// it: members whose contents are a path (GNU) or records of keys and values (pax).
namespace lockstep::data {
namespace {

constexpr std::size_t kBlock = 512;
constexpr std::size_t kMostExtension = 1 << 20;  // bytes of an extended header

struct TarField {
  std::size_t offset;
  std::size_t size;
};

constexpr TarField kName{0, 100};
constexpr TarField kSize{124, 12};
constexpr TarField kChecksum{148, 8};
constexpr TarField kType{156, 1};
constexpr TarField kMagic{257, 6};
constexpr TarField kPrefix{345, 155};

// Where a reader is, for messages.
struct TarPlace {
  const std::string& archive;
  std::size_t offset;

  [[noreturn]] void damaged(std::string_view why) const {
    throw_error<DataError>("{}: the tar archive is damaged at offset {}: {}", archive, offset, why);
  }
  [[noreturn]] void cut_short() const {
    throw_error<DataError>("{}: the tar archive is cut short at offset {}", archive, offset);
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    throw_error<DataError>("{}: {} at offset {}, which is not supported", archive, what, offset);
  }
};

std::string_view up_to_zero(std::string_view text) { return text.substr(0, text.find('\0')); }

// The number that is all of the text.
std::optional<std::int64_t> parse_in_base(std::string_view digits, int base) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  return value;
}

// Octal text between spaces; none is 0, as in Python.
std::optional<std::int64_t> parse_octal(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return 0;
  return parse_in_base(text.substr(first, text.find_last_not_of(' ') + 1 - first), 8);
}

// A large number, after a byte 0x80.
std::optional<std::int64_t> parse_base256(std::string_view bytes) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 55;  // one more byte fits
  std::uint64_t value = 0;
  for (const auto byte : bytes) {
    if (value >= kMost) return std::nullopt;
    value = value << 8 | static_cast<unsigned char>(byte);
  }
  return static_cast<std::int64_t>(value);
}

class TarHeader {
 public:
  TarHeader(std::string_view block, const TarPlace& place) : block_(block), place_(place) {}

  bool is_end() const { return block_.find_first_not_of('\0') == std::string_view::npos; }
  char type() const { return block_[kType.offset]; }
  std::size_t size() const { return static_cast<std::size_t>(number(kSize, "its size is not a number")); }

  // In the oldest format a folder is a file whose name ends in a slash.
  bool is_regular_file() const {
    return type() == '0' || type() == '7' || (type() == '\0' && !field(kName).ends_with('/'));
  }
  bool is_extension() const { return std::string_view("LKxgX").find(type()) != std::string_view::npos; }
  // Links, devices, folders and pipes have none, whatever their size is.
  bool has_contents() const {
    const auto is_other = type() >= '1' && type() <= '6';
    return !is_other && (type() != '\0' || is_regular_file());
  }

  std::string path() const {
    // GNU's magic is "ustar ", and it has times in the place of the prefix.
    const auto prefix = raw(kMagic) == std::string_view("ustar\0", 6) ? field(kPrefix) : std::string_view();
    return prefix.empty() ? std::string(field(kName)) : fmt::format("{}/{}", prefix, field(kName));
  }

  // The sum of the bytes, where those of the sum itself count as spaces. Old programs add signed bytes.
  void verify() const {
    std::int64_t sum = static_cast<std::int64_t>(kChecksum.size) * ' ';
    auto signed_sum = sum;
    for (std::size_t i = 0; i < block_.size(); ++i) {
      if (i - kChecksum.offset < kChecksum.size) continue;
      sum += static_cast<unsigned char>(block_[i]);
      signed_sum += static_cast<signed char>(block_[i]);
    }
    const auto expected =
        number(kChecksum, "no header is there; a compressed archive should be unpacked first");
    if (expected != sum && expected != signed_sum) place_.damaged("the checksum of the header differs");
  }

 private:
  std::string_view raw(const TarField& field) const { return block_.substr(field.offset, field.size); }
  std::string_view field(const TarField& field) const { return up_to_zero(raw(field)); }

  std::int64_t number(const TarField& field, std::string_view problem) const {
    const auto bytes = raw(field);
    const auto value = bytes[0] == '\x80' ? parse_base256(bytes.substr(1)) : parse_octal(up_to_zero(bytes));
    if (!value) place_.damaged(problem);
    return *value;
  }

  std::string_view block_;
  const TarPlace& place_;
};

// The values of extended headers for the next file.
struct Extension {
  std::optional<std::string> path{};
  std::optional<std::size_t> size{};
};

struct PaxRecord {
  std::string_view key;
  std::string_view value;
};

// Removes the first record, "<its length> <key>=<value>\n".
PaxRecord take_record(std::string_view& records, const TarPlace& place) {
  const auto space = records.find(' ');
  const auto length = parse_in_base(records.substr(0, space), 10);
  if (space == std::string_view::npos || !length || static_cast<std::uint64_t>(*length) > records.size() ||
      static_cast<std::size_t>(*length) < space + 2) {
    place.damaged("a record of a pax header has a wrong length");
  }
  const auto record = records.substr(0, static_cast<std::size_t>(*length));
  const auto equals = record.find('=', space);
  if (equals == std::string_view::npos || record.back() != '\n') {
    place.damaged("a record of a pax header has no key and value");
  }
  records.remove_prefix(record.size());
  return {.key = record.substr(space + 1, equals - space - 1),
          .value = record.substr(equals + 1, record.size() - equals - 2)};
}

// The last of several records with one key counts.
Extension parse_pax(std::string_view records, const TarPlace& place) {
  Extension found;
  while (!records.empty() && records.front() != '\0') {
    const auto [key, value] = take_record(records, place);
    if (key.starts_with("GNU.sparse.")) place.unsupported("it has a sparse file");
    if (key == "path") found.path = value;
    if (key == "size") {
      const auto size = parse_in_base(value, 10);
      if (!size) place.damaged("the size in a pax header is not a number");
      found.size = static_cast<std::size_t>(*size);
    }
  }
  return found;
}

// Python's tarfile takes the first of several extended headers with one value.
void add_to(Extension& all, Extension more) {
  if (!all.path) all.path = std::move(more.path);
  if (!all.size) all.size = more.size;
}

// The extended headers before a file.
Extension read_extension(char type, std::string_view contents, const TarPlace& place) {
  if (contents.size() > kMostExtension) place.damaged("an extended header is longer than 1 MiB");
  if (type == 'L') return {.path = std::string(up_to_zero(contents))};
  if (type == 'K') return {};  // the target of a link
  auto found = parse_pax(contents, place);
  if (type == 'g' && (found.path || found.size)) {
    place.unsupported("a global pax header gives all files one path or size");
  }
  return found;
}

struct Entry {
  TarHeader header;    // valid while the place is
  std::size_t offset;  // of the contents
  std::size_t size;    // of the contents
  std::size_t end;
};

// nullopt at the end of the archive.
std::optional<Entry> entry_at(std::string_view bytes, const Extension& extension, const TarPlace& place) {
  if (bytes.size() - place.offset < kBlock) place.cut_short();
  const TarHeader header(bytes.substr(place.offset, kBlock), place);
  if (header.is_end()) return std::nullopt;
  header.verify();
  if (header.type() == 'S') place.unsupported("it has a sparse file");
  const auto offset = place.offset + kBlock;
  const auto stated = header.is_extension() ? header.size() : extension.size.value_or(header.size());
  const auto size = header.has_contents() ? stated : 0;
  if (size > bytes.size() - offset) place.cut_short();
  // The last contents may lack their filling; the next header is then missing.
  const auto end = std::min(offset + (size + kBlock - 1) / kBlock * kBlock, bytes.size());
  return Entry{.header = header, .offset = offset, .size = size, .end = end};
}

}  // namespace

TarReader::TarReader(std::string_view bytes, const std::string& name, std::int64_t begin)
    : bytes_(bytes), name_(name), at_(std::min(static_cast<std::size_t>(begin), bytes.size())) {}

std::optional<TarMember> TarReader::next() {
  Extension extension;
  bool extended = false;
  for (auto begin = at_;;) {
    const TarPlace place{.archive = name_, .offset = at_};
    const auto entry = entry_at(bytes_, extension, place);
    if (!entry) {
      if (extended) place.damaged("a file is missing after its extended header");
      return std::nullopt;
    }
    at_ = entry->end;
    const auto& header = entry->header;
    if (header.is_extension()) {
      add_to(extension, read_extension(header.type(), bytes_.substr(entry->offset, entry->size), place));
      extended = extended || header.type() != 'g';
    } else if (header.is_regular_file()) {
      return TarMember{.path = extension.path ? *std::move(extension.path) : header.path(),
                       .begin = static_cast<std::int64_t>(begin),
                       .offset = static_cast<std::int64_t>(entry->offset),
                       .size = static_cast<std::int64_t>(entry->size)};
    } else {
      extension = {};
      extended = false;
      begin = at_;
    }
  }
}

std::map<std::string, at::Tensor> read_tar(const at::Tensor& bytes, const std::string& name) {
  TarReader reader(as_text(bytes), name);
  std::map<std::string, at::Tensor> files;
  while (auto member = reader.next()) {
    files.insert_or_assign(std::move(member->path), bytes.narrow(0, member->offset, member->size));
  }
  return files;
}

}  // namespace lockstep::data
