// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/call_request.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "backends/shm/layout.h"
#include "backends/shm/plan.h"
#include "comm/fingerprint.h"

namespace lockstep::shm {
namespace {

using comm::Call;

Kind kind_of(CallKind kind) {
  switch (kind) {
    case CallKind::all_reduce:
      return Kind::all_reduce;
    case CallKind::broadcast:
      return Kind::broadcast;
    case CallKind::reduce:
      return Kind::reduce;
    case CallKind::all_gather:
    case CallKind::all_gather_into_tensor:
      return Kind::all_gather;
    case CallKind::gather:
      return Kind::gather;
    case CallKind::scatter:
      return Kind::scatter;
    case CallKind::reduce_scatter:
    case CallKind::reduce_scatter_tensor:
      return Kind::reduce_scatter;
    case CallKind::all_to_all:
    case CallKind::all_to_all_single:
      return Kind::all_to_all;
    case CallKind::barrier:
    case CallKind::send:
    case CallKind::recv:
      break;
  }
  return Kind::barrier;
}

// Both enumerations list the operations in the same order.
Reduction reduction_of(ReduceOp op) { return static_cast<Reduction>(op); }
static_assert(static_cast<int>(Reduction::average) == static_cast<int>(ReduceOp::AVG) &&
              static_cast<int>(Reduction::max) == static_cast<int>(ReduceOp::MAX) &&
              static_cast<int>(Reduction::bxor) == static_cast<int>(ReduceOp::BXOR));

std::size_t bytes_of(at::TensorList tensors) {
  std::size_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.nbytes();
  return sum;
}

template <class Part>
Part part_of(const at::Tensor& tensor);
template <>
Source part_of<Source>(const at::Tensor& tensor) {
  return source_of(tensor);
}
template <>
Target part_of<Target>(const at::Tensor& tensor) {
  return target_of(tensor);
}

template <class Part>
void set_parts(std::vector<Part>& parts, at::TensorList tensors) {
  parts.clear();
  for (const auto& tensor : tensors) parts.push_back(part_of<Part>(tensor));
}

// One tensor for all ranks: equal parts, or the numbers of rows in `splits`.
template <class Part>
void set_cut(std::vector<Part>& parts, const at::Tensor& tensor, c10::IntArrayRef splits, int size) {
  const auto whole = part_of<Part>(tensor);
  const auto ranks = static_cast<std::size_t>(size);
  const auto rows = splits.empty() ? 0 : static_cast<std::size_t>(tensor.size(0));
  const auto row_bytes = rows > 0 ? whole.bytes / rows : 0;
  auto* start = whole.data;
  parts.clear();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto bytes =
        splits.empty() ? whole.bytes / ranks : static_cast<std::size_t>(splits[rank]) * row_bytes;
    parts.push_back({start, bytes});
    start += bytes;
  }
}

}  // namespace

Element element_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat:
      return Element::f32;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return Element::f64;
    case c10::ScalarType::Half:
    case c10::ScalarType::ComplexHalf:
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
      throw ArgumentError(fmt::format("the shm backend does not carry {} tensors", c10::toString(dtype)));
  }
}

Source source_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

Target target_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

bool is_eager(const Call& call, int size) {
  if (call.kind == CallKind::barrier) return true;
  const auto bytes = bytes_of(call.inputs.empty() ? call.outputs : call.inputs);
  if (comm::is_message(call.kind)) return bytes > 0 && bytes <= kMessageChunkBytes;
  return table_bytes(kind_of(call.kind), size) + bytes <= kSmallBytes;
}

void fill(Request& request, const Call& call, int size) {
  const auto* tensor = comm::main_tensor(call);
  request.kind = kind_of(call.kind);
  request.element = tensor != nullptr ? element_of(tensor->scalar_type()) : Request().element;
  request.reduction = comm::has_operation(call.kind) ? reduction_of(call.op) : Request().reduction;
  request.root = call.root;
  request.log_number = call.number;
  request.fingerprint = comm::fingerprint(call);
  const bool is_single = call.kind == CallKind::all_to_all_single;
  if (is_single || call.kind == CallKind::reduce_scatter_tensor) {
    set_cut(request.inputs, call.inputs.front(), call.input_splits, size);
  } else {
    set_parts(request.inputs, call.inputs);
  }
  if (is_single || call.kind == CallKind::all_gather_into_tensor) {
    set_cut(request.outputs, call.outputs.front(), call.output_splits, size);
  } else {
    set_parts(request.outputs, call.outputs);
  }
}

}  // namespace lockstep::shm
