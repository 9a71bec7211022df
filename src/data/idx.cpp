// SPDX-License-Identifier: BSD-3-Clause
#include <limits>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/data/idx.h>

#include "data/file_bytes.h"
#include "data/idx_format.h"

// The format: two zero bytes, a type code, the number of dimensions, each dimension as a big-endian 32-bit
// number, then the values, big-endian, the last dimension running fastest.
namespace lockstep::data {
namespace {

struct Header {
  at::ScalarType type = at::kByte;
  std::vector<std::int64_t> dims{};
  std::int64_t size = 0;     // bytes of the header itself
  std::int64_t payload = 0;  // bytes that should follow
};

std::optional<at::ScalarType> scalar_type(std::uint8_t code) {
  switch (code) {
    case 0x08:
      return at::kByte;
    case 0x09:
      return at::kChar;
    case 0x0b:
      return at::kShort;
    case 0x0c:
      return at::kInt;
    case 0x0d:
      return at::kFloat;
    case 0x0e:
      return at::kDouble;
    default:
      return std::nullopt;
  }
}

std::int64_t big_endian(ByteSpan bytes) {
  std::int64_t value = 0;
  for (const std::uint8_t byte : bytes.first(4)) value = value << 8 | byte;
  return value;
}

Header parse_header(ByteSpan bytes, const std::string& name) {
  const auto type = bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0 ? std::nullopt : scalar_type(bytes[2]);
  if (!type || bytes[3] == 0) {
    throw DataError(fmt::format("{}: is not an IDX file (its first bytes are {:02x})", name,
                                fmt::join(bytes.first(std::min<std::size_t>(bytes.size(), 4)), " ")));
  }
  Header header{.type = *type, .size = 4 + 4 * std::int64_t{bytes[3]}};
  if (static_cast<std::int64_t>(bytes.size()) < header.size) {
    throw DataError(fmt::format("{}: is cut short in its header, after {} bytes", name, bytes.size()));
  }
  header.payload = static_cast<std::int64_t>(c10::elementSize(header.type));
  for (std::int64_t at = 4; at < header.size; at += 4) {
    const auto dim = big_endian(bytes.subspan(static_cast<std::size_t>(at)));
    header.dims.push_back(dim);
    if (dim != 0 && header.payload > std::numeric_limits<std::int64_t>::max() / dim / 2) {
      throw DataError(fmt::format("{}: its header's dimensions [{}, ...] are absurdly large", name,
                                  fmt::join(header.dims, ", ")));
    }
    header.payload *= dim;
  }
  return header;
}

}  // namespace

at::Tensor parse_idx(const at::Tensor& bytes, const std::string& name) {
  const auto header = parse_header(as_bytes(bytes), name);
  const auto found = bytes.numel() - header.size;
  if (found != header.payload) {
    throw DataError(fmt::format("{}: {}: its header says [{}], {} bytes of values, but there are {}", name,
                                found < header.payload ? "is cut short" : "has bytes too many",
                                fmt::join(header.dims, ", "), header.payload, found));
  }
  auto values = bytes.narrow(0, header.size, header.payload);
  const auto width = static_cast<std::int64_t>(c10::elementSize(header.type));
  // Big-endian to this machine's order; also moves the values to where their type may lie.
  if (width > 1) values = values.view({-1, width}).flip(1).contiguous().view({-1});
  return values.view(header.type).view(header.dims);
}

at::Tensor read_idx(const std::filesystem::path& file) {
  return parse_idx(read_file_bytes(file), file.string());
}

}  // namespace lockstep::data
