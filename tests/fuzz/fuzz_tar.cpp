// SPDX-License-Identifier: BSD-3-Clause
// Whatever the bytes are, reading them as a shard gives a DataError, or samples that can be read one by one.
// The first byte says whether the checksums of headers are corrected before, so that more than checksums is
// fuzzed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <ATen/Functions.h>

#include <lockstep/base/error.h>

#include "data/shards.h"
#include "data/tar.h"

namespace {

constexpr std::size_t kHeader = 512;

void correct_checksum(std::span<std::uint8_t> header) {
  const auto field = header.subspan(148, 8);
  std::ranges::fill(field, ' ');
  unsigned sum = 0;
  for (const auto byte : header) sum += byte;
  for (std::size_t i = 6; i-- > 0; sum /= 8) field[i] = static_cast<std::uint8_t>('0' + sum % 8);
}

void correct_checksums(std::span<std::uint8_t> archive) {
  for (std::size_t at = 0; at + kHeader <= archive.size(); at += kHeader) {
    const auto header = archive.subspan(at, kHeader);
    if (std::ranges::equal(header.subspan(257, 5), std::string_view("ustar"))) correct_checksum(header);
  }
}

std::optional<lockstep::data::ShardOffsets> try_to_scan(const at::Tensor& archive) {
  try {
    lockstep::data::read_tar(archive, "fuzz.tar");
    return lockstep::data::scan_shard(archive, "fuzz.tar");
  } catch (const lockstep::DataError&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const auto archive = at::empty({static_cast<std::int64_t>(size) - 1}, at::kByte);
  std::copy_n(bytes + 1, size - 1, archive.mutable_data_ptr<std::uint8_t>());
  if (bytes[0] % 2 == 1) correct_checksums({archive.mutable_data_ptr<std::uint8_t>(), size - 1});
  const auto offsets = try_to_scan(archive);
  for (std::size_t i = 0; offsets && i + 1 < offsets->size(); ++i) {
    const auto sample = lockstep::data::read_sample(archive, "fuzz.tar", (*offsets)[i], (*offsets)[i + 1]);
    for (const auto& [extension, contents] : sample.fields) contents.sum();
  }
  return 0;
}
