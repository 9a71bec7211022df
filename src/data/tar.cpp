// SPDX-License-Identifier: BSD-3-Clause
#include "data/tar.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::data {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::size_t kBlock = 512;

std::string text_field(Bytes field) {
  return {field.begin(), std::find(field.begin(), field.end(), std::uint8_t{0})};
}

std::optional<std::size_t> octal_field(Bytes field) {
  std::size_t value = 0;
  bool any = false;
  for (const std::uint8_t c : field) {
    if (c == ' ' && !any) continue;
    if (c == 0 || c == ' ') break;
    if (c < '0' || c > '7') return std::nullopt;
    value = value * 8 + (c - '0');
    any = true;
  }
  return any ? std::optional(value) : std::nullopt;
}

// The sum of the header's bytes, those of the sum itself counted as spaces.
bool checksum_holds(Bytes header) {
  std::size_t sum = 8 * std::size_t{' '};
  for (std::size_t i = 0; i < kBlock; ++i) sum += i >= 148 && i < 156 ? 0 : header[i];
  return octal_field(header.subspan(148, 8)) == sum;
}

std::string entry_name(Bytes header) {
  const auto name = text_field(header.first(100));
  const auto prefix = text_field(header.subspan(345, 155));
  return prefix.empty() ? name : prefix + "/" + name;
}

}  // namespace

std::vector<TarEntry> read_tar(Bytes archive, const std::string& name) {
  std::vector<TarEntry> entries;
  while (true) {
    if (archive.size() < kBlock) throw DataError(fmt::format("{}: the tar archive is cut short", name));
    const auto header = archive.first(kBlock);
    if (header[0] == 0) return entries;  // a block of zeros ends an archive
    const auto size = octal_field(header.subspan(124, 12));
    if (!checksum_holds(header) || !size) {
      throw DataError(fmt::format("{}: is not a tar archive, or a damaged one", name));
    }
    archive = archive.subspan(kBlock);
    const std::size_t blocks = (*size + kBlock - 1) / kBlock * kBlock;
    if (blocks > archive.size()) {
      throw DataError(fmt::format("{}: the tar archive is cut short in {}", name, entry_name(header)));
    }
    const std::uint8_t type = header[156];
    if (type == '0' || type == 0)
      entries.push_back({.name = entry_name(header), .contents = archive.first(*size)});
    archive = archive.subspan(blocks);
  }
}

}  // namespace lockstep::data
