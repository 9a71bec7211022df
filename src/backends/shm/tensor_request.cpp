// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/tensor_request.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "backends/shm/kernels.h"

namespace lockstep::shm {
namespace {

using Tensors = std::vector<at::Tensor>;

std::size_t bytes_of(const at::Tensor& tensor) { return tensor.nbytes(); }

// What goes over the wire is the memory as it lies there.
void check(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.layout() != c10::kStrided) {
    throw ArgumentError(fmt::format("the shm backend needs dense CPU tensors, and this one is {} on {}",
                                    c10::str(tensor.layout()), tensor.device().str()));
  }
  if (!tensor.is_contiguous() && !tensor.is_non_overlapping_and_dense()) {
    throw ArgumentError("the shm backend needs tensors without gaps; pass tensor.contiguous()");
  }
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return Reduction::sum;
    case c10d::ReduceOp::AVG:
      return Reduction::average;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::product;
    case c10d::ReduceOp::MIN:
      return Reduction::min;
    case c10d::ReduceOp::MAX:
      return Reduction::max;
    case c10d::ReduceOp::BAND:
      return Reduction::band;
    case c10d::ReduceOp::BOR:
      return Reduction::bor;
    case c10d::ReduceOp::BXOR:
      return Reduction::bxor;
    default:
      throw ArgumentError("the shm backend does not have this reduction (PREMUL_SUM, a custom one)");
  }
}

// The bytes of each rank's part of a contiguous tensor: equal parts, or as many rows as `rows` says.
std::vector<std::size_t> part_lengths(const at::Tensor& tensor, int size,
                                      const std::vector<std::int64_t>& rows) {
  if (!tensor.is_contiguous()) throw ArgumentError("the shm backend cuts contiguous tensors only");
  const auto parts = static_cast<std::size_t>(size);
  std::vector<std::size_t> lengths(parts, bytes_of(tensor) / parts);
  if (rows.empty() && tensor.numel() % size != 0) {
    throw ArgumentError(
        fmt::format("a tensor of {} elements cannot be cut into {} equal parts", tensor.numel(), size));
  }
  const auto row_bytes = tensor.dim() > 0 && tensor.size(0) > 0
                             ? bytes_of(tensor) / static_cast<std::size_t>(tensor.size(0))
                             : std::size_t{0};
  for (std::size_t i = 0; i < rows.size(); ++i) lengths.at(i) = static_cast<std::size_t>(rows[i]) * row_bytes;
  return lengths;
}

}  // namespace

std::optional<Element> find_element(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat:
      return Element::f32;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return Element::f64;
    case c10::ScalarType::Half:
      return Element::f16;
    case c10::ScalarType::BFloat16:
      return Element::bf16;
    case c10::ScalarType::Char:
      return Element::i8;
    case c10::ScalarType::Byte:
      return Element::u8;
    case c10::ScalarType::Short:
      return Element::i16;
    case c10::ScalarType::Int:
      return Element::i32;
    case c10::ScalarType::Long:
      return Element::i64;
    case c10::ScalarType::UInt16:
      return Element::u16;
    case c10::ScalarType::UInt32:
      return Element::u32;
    case c10::ScalarType::UInt64:
      return Element::u64;
    case c10::ScalarType::Bool:
      return Element::boolean;
    default:
      return std::nullopt;
  }
}

Element element_of(c10::ScalarType dtype) {
  if (const auto element = find_element(dtype)) return *element;
  throw ArgumentError(fmt::format("the shm backend does not carry {} tensors", c10::toString(dtype)));
}

Source source_of(const at::Tensor& tensor) {
  check(tensor);
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), bytes_of(tensor)};
}

Target target_of(const at::Tensor& tensor) {
  check(tensor);
  return {static_cast<std::byte*>(tensor.data_ptr()), bytes_of(tensor)};
}

std::vector<Source> sources_of(const Tensors& tensors) {
  std::vector<Source> sources;
  sources.reserve(tensors.size());
  for (const auto& tensor : tensors) sources.push_back(source_of(tensor));
  return sources;
}

std::vector<Target> targets_of(const Tensors& tensors) {
  std::vector<Target> targets;
  targets.reserve(tensors.size());
  for (const auto& tensor : tensors) targets.push_back(target_of(tensor));
  return targets;
}

Request reducing(Kind kind, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  Request request{.kind = kind, .element = element_of(tensor.scalar_type()), .reduction = reduction_of(op)};
  const bool additive = request.reduction == Reduction::sum || request.reduction == Reduction::average;
  if ((tensor.is_complex() && !additive) || reduce_kernel(request.element, request.reduction) == nullptr) {
    throw ArgumentError(fmt::format("the shm backend cannot reduce {} tensors by {}",
                                    c10::toString(tensor.scalar_type()), name_of(request.reduction)));
  }
  return request;
}

Request copying(Kind kind, const at::Tensor& tensor, int root) {
  return {.kind = kind, .element = element_of(tensor.scalar_type()), .root = root};
}

std::vector<Source> source_parts(const at::Tensor& tensor, int size, const std::vector<std::int64_t>& rows) {
  const auto whole = source_of(tensor);
  std::vector<Source> parts;
  const auto* start = whole.data;
  for (const auto length : part_lengths(tensor, size, rows)) {
    parts.push_back({start, length});
    start += length;
  }
  return parts;
}

std::vector<Target> target_parts(const at::Tensor& tensor, int size, const std::vector<std::int64_t>& rows) {
  const auto whole = target_of(tensor);
  std::vector<Target> parts;
  auto* start = whole.data;
  for (const auto length : part_lengths(tensor, size, rows)) {
    parts.push_back({start, length});
    start += length;
  }
  return parts;
}

}  // namespace lockstep::shm
