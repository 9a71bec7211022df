// SPDX-License-Identifier: BSD-3-Clause
#include "data/tar.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/throw_error.h"

// The format: for each file a header of 512 bytes and its contents, filled up to a multiple of 512. Numbers
// are octal text. A header of zeros ends the archive.
namespace lockstep::data {
namespace {

constexpr std::int64_t kBlock = 512;

struct TarField {
  std::size_t offset;
  std::size_t size;
};

constexpr TarField kName{0, 100};
constexpr TarField kSize{124, 12};
constexpr TarField kChecksum{148, 8};
constexpr TarField kType{156, 1};
constexpr TarField kMagic{257, 5};
constexpr TarField kPrefix{345, 155};

class TarHeader {
 public:
  TarHeader(std::string_view block, const std::string& archive) : block_(block), archive_(archive) {}

  bool is_end() const { return block_.find_first_not_of('\0') == std::string_view::npos; }
  bool is_regular_file() const { return block_[kType.offset] == '0' || block_[kType.offset] == '\0'; }
  std::int64_t size() const { return number(kSize); }

  std::string path() const {
    const auto prefix = text(kMagic) == "ustar" ? text(kPrefix) : "";
    return prefix.empty() ? std::string(text(kName)) : fmt::format("{}/{}", prefix, text(kName));
  }

  // The sum of the bytes, where those of the sum itself count as spaces.
  void verify() const {
    std::int64_t sum = static_cast<std::int64_t>(kChecksum.size) * ' ';
    for (std::size_t i = 0; i < block_.size(); ++i) {
      if (i - kChecksum.offset >= kChecksum.size) sum += static_cast<unsigned char>(block_[i]);
    }
    if (sum != number(kChecksum)) fail();
  }

 private:
  [[noreturn]] void fail() const { throw_error<DataError>("{}: the tar archive is damaged", archive_); }

  std::string_view text(const TarField& field) const {
    const auto bytes = block_.substr(field.offset, field.size);
    return bytes.substr(0, bytes.find('\0'));
  }

  std::int64_t number(const TarField& field) const {
    auto digits = text(field);
    digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
    std::int64_t value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value, 8).ec != std::errc() ||
        value < 0) {
      fail();
    }
    return value;
  }

  std::string_view block_;
  const std::string& archive_;
};

}  // namespace

std::map<std::string, at::Tensor> read_tar(const at::Tensor& bytes, const std::string& name) {
  const auto* data = reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>());
  std::map<std::string, at::Tensor> files;
  std::int64_t at = 0;
  while (true) {
    if (bytes.numel() - at < kBlock) throw_error<DataError>("{}: the tar archive is cut short", name);
    const TarHeader header({data + at, static_cast<std::size_t>(kBlock)}, name);
    if (header.is_end()) return files;
    header.verify();
    at += kBlock;
    const auto size = header.size();
    if (size > bytes.numel() - at) throw_error<DataError>("{}: the tar archive is cut short", name);
    if (header.is_regular_file()) files.insert_or_assign(header.path(), bytes.narrow(0, at, size));
    // The last contents may lack their filling; the next header is then missing.
    at += std::min((size + kBlock - 1) / kBlock * kBlock, bytes.numel() - at);
  }
}

}  // namespace lockstep::data
