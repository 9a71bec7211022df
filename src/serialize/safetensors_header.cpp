// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/safetensors_header.h"

#include <algorithm>
#include <cstring>

#include <fmt/ranges.h>

#include "serialize/errors.h"

namespace lockstep::safetensors {
namespace {

constexpr std::uint64_t kLengthSize = 8;

std::uint64_t header_length(const serialize::ByteSource& source) {
  if (source.size() < kLengthSize) {
    throw_error("it has {} bytes, too few for a safetensors file; was it copied only in part?",
                source.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, source.read_text(0, kLengthSize).data(), kLengthSize);
  if (length > kLargestHeader) {
    throw_error("it is not a safetensors file: its header would have {} bytes, but the limit is {}", length,
                kLargestHeader);
  }
  if (length > source.size() - kLengthSize) {
    throw_error(
        "it is cut short, or not a safetensors file: its header should have {} bytes, but {} are left",
        length, source.size() - kLengthSize);
  }
  return length;
}

void check_size(const TensorInfo& tensor) {
  const auto wanted = bytes_of(tensor.shape, tensor.dtype);
  const auto there = tensor.end - tensor.begin;
  if (wanted == there) return;
  throw_error("tensor {} of shape [{}] needs {} bytes, but data_offsets gives it {}", shown(tensor.name),
              fmt::join(tensor.shape, ", "), wanted, there);
}

// One after the other, they fill all of the data.
void check_places(const std::vector<TensorInfo>& tensors, std::uint64_t data_size) {
  std::vector<const TensorInfo*> in_place;
  in_place.reserve(tensors.size());
  for (const auto& tensor : tensors) in_place.push_back(&tensor);
  std::ranges::sort(in_place, [](const TensorInfo* left, const TensorInfo* right) {
    return std::pair(left->begin, left->end) < std::pair(right->begin, right->end);
  });
  std::uint64_t filled = 0;
  for (const auto* tensor : in_place) {
    if (tensor->begin != filled) {
      throw_error("the data of tensor {} starts at {} instead of {}: there is {}", shown(tensor->name),
                  tensor->begin, filled, tensor->begin < filled ? "an overlap" : "a hole");
    }
    filled = tensor->end;
  }
  if (filled < data_size) {
    throw_error("{} bytes at its end belong to no tensor; the header is not that of this file",
                data_size - filled);
  }
  if (filled > data_size) {
    throw_error("it is cut short: the tensors have {} bytes, but the file has {} of them; copy it again",
                filled, data_size);
  }
}

Header checked_header(const serialize::ByteSource& source) {
  const auto length = header_length(source);
  auto header = parse_header(source.read_text(kLengthSize, length));
  header.data_start = kLengthSize + length;
  for (const auto& tensor : header.tensors) check_size(tensor);
  check_places(header.tensors, source.size() - header.data_start);
  return header;
}

}  // namespace

Header read_header(const serialize::ByteSource& source) {
  return with_source(source.name(), [&] { return checked_header(source); });
}

std::string shown(std::string_view name) {
  constexpr std::size_t longest = 200;
  return repr(Value(name), longest);
}

std::uint64_t bytes_of(const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  // Strides are products of sizes too, an empty one counting as 1: those must not overflow either.
  auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  for (const auto size : shape) {
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) {
      throw_error(
          "there is a tensor of impossible shape [{}]",
          fmt::join(shape.begin(), shape.begin() + std::min<std::ptrdiff_t>(std::ssize(shape), 20), ", "));
    }
  }
  return std::ranges::find(shape, 0) == shape.end() ? static_cast<std::uint64_t>(bytes) : 0;
}

}  // namespace lockstep::safetensors
