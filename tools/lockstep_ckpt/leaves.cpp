// SPDX-License-Identifier: BSD-3-Clause
#include "leaves.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

namespace lockstep::ckpt {
namespace {

void collect(const std::string& path, const Value& value, std::vector<Leaf>& leaves) {
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  const bool has_items = value.is<List>() || value.is<Tuple>();
  if (const auto* dict = value.get_if<Dict>(); dict != nullptr && !dict->empty()) {
    for (const auto& [key, item] : *dict)
      collect(below(key.is<std::string>() ? key.as_string() : repr(key, 200)), item, leaves);
  } else if (has_items && !value.as_items().empty()) {
    std::size_t number = 0;
    for (const auto& item : value.as_items()) collect(below(std::to_string(number++)), item, leaves);
  } else {
    leaves.push_back({path, &value});
  }
}

constexpr std::int64_t kPiece = 1 << 20;  // elements

at::Tensor flat(const at::Tensor& tensor) {
  const auto dense = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
  return dense.detach().resolve_conj().resolve_neg().reshape(-1);
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// double has too few digits for all of these.
bool is_wide_integer(at::ScalarType type) { return type == at::kLong || type == at::kUInt64; }

at::Tensor widened(const at::Tensor& piece) {
  return piece.to(piece.is_complex() ? at::kComplexDouble : at::kDouble);
}

TensorDifference difference_of_pieces(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance) {
  const auto left = widened(a);
  const auto right = widened(b);
  // Where both are the same infinity or both NaN the difference is NaN, but there is none.
  const auto same = left.eq(right).logical_or(left.isnan().logical_and(right.isnan()));
  const auto distance =
      (left - right)
          .abs()
          .masked_fill(same, 0)
          .nan_to_num(std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity());
  auto beyond = distance.gt(right.abs().nan_to_num(0, 0).mul(tolerance.rtol).add(tolerance.atol));
  if (is_wide_integer(a.scalar_type()) && tolerance.rtol == 0 && tolerance.atol == 0) {
    beyond = a.view(at::kLong).ne(b.view(at::kLong));
  }
  const auto count = beyond.sum().item<std::int64_t>();
  return {.count = count, .largest = count == 0 ? 0 : distance.max().item<double>()};
}

}  // namespace

const at::Tensor* Leaf::tensor() const {
  if (const auto* parameter = value->get_if<Parameter>()) return &parameter->data;
  return value->get_if<at::Tensor>();
}

std::vector<Leaf> leaves_of(const Value& value) {
  std::vector<Leaf> leaves;
  collect("", value, leaves);
  return leaves;
}

std::uint64_t bytes_of(const at::Tensor& tensor) {
  if (tensor.layout() == at::kSparse) return bytes_of(tensor._values()) + bytes_of(tensor._indices());
  if (tensor.layout() != at::kStrided) return bytes_of(tensor.values());
  return static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
}

std::uint64_t total_bytes(const std::vector<Leaf>& leaves) {
  std::uint64_t bytes = 0;
  for (const auto& leaf : leaves) {
    if (const auto* tensor = leaf.tensor()) bytes += bytes_of(*tensor);
  }
  return bytes;
}

std::string dtype_name(at::ScalarType dtype) {
  constexpr std::string_view module = "torch.";
  return repr(Value(dtype)).substr(module.size());
}

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

std::string printable(const std::string& path) {
  std::string text;
  for (const char letter : path) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool control = byte < 0x20 || byte == 0x7f;
    text += control ? fmt::format("\\x{:02x}", byte) : std::string(1, letter);
  }
  return text;
}

TensorDifference difference(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance,
                            const std::function<void(std::uint64_t)>& advance) {
  const auto left = flat(a);
  const auto right = flat(b);
  TensorDifference total;
  for (std::int64_t start = 0; start < left.numel(); start += kPiece) {
    const auto length = std::min(kPiece, left.numel() - start);
    const auto left_piece = left.narrow(0, start, length).contiguous();
    const auto right_piece = right.narrow(0, start, length).contiguous();
    if (!same_bytes(left_piece, right_piece)) {
      const auto found = difference_of_pieces(left_piece, right_piece, tolerance);
      total.count += found.count;
      total.largest = std::max(total.largest, found.largest);
    }
    advance(left_piece.nbytes());
  }
  return total;
}

}  // namespace lockstep::ckpt
