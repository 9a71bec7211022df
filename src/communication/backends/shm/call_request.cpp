// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/call_request.h"

#include <array>
#include <utility>

#include "backends/shm/layout.h"
#include "backends/shm/plan.h"
#include "base/throw_error.h"
#include "comm/fingerprint.h"
#include "comm/tensor_memory.h"

namespace lockstep::shm {
namespace {

using comm::Call;

// By CallKind. A message has no kind.
constexpr std::array kKinds{Kind::all_reduce,     Kind::broadcast,  Kind::reduce,     Kind::all_gather,
                            Kind::all_gather,     Kind::gather,     Kind::scatter,    Kind::reduce_scatter,
                            Kind::reduce_scatter, Kind::all_to_all, Kind::all_to_all, Kind::barrier,
                            Kind::barrier,        Kind::barrier};
static_assert(kKinds.size() == static_cast<std::size_t>(CallKind::barrier) + 1 &&
              kKinds[static_cast<std::size_t>(CallKind::reduce_scatter)] == Kind::reduce_scatter &&
              kKinds[static_cast<std::size_t>(CallKind::all_to_all_single)] == Kind::all_to_all);

Kind kind_of(CallKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

// Both enumerations list the operations in the same order.
Reduction reduction_of(ReduceOp op) { return static_cast<Reduction>(op); }
static_assert(static_cast<int>(Reduction::average) == static_cast<int>(ReduceOp::AVG) &&
              static_cast<int>(Reduction::max) == static_cast<int>(ReduceOp::MAX) &&
              static_cast<int>(Reduction::bxor) == static_cast<int>(ReduceOp::BXOR));

std::size_t bytes_of(at::TensorList tensors) {
  std::size_t sum = 0;
  for (const auto& tensor : tensors) sum += comm::byte_size(tensor);
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
  using c10::ScalarType;
  static constexpr std::array<std::pair<ScalarType, Element>, 13> elements{
      {{ScalarType::Float, Element::f32},
       {ScalarType::Double, Element::f64},
       {ScalarType::Half, Element::f16},
       {ScalarType::BFloat16, Element::bf16},
       {ScalarType::Char, Element::i8},
       {ScalarType::Byte, Element::u8},
       {ScalarType::Short, Element::i16},
       {ScalarType::Int, Element::i32},
       {ScalarType::Long, Element::i64},
       {ScalarType::UInt16, Element::u16},
       {ScalarType::UInt32, Element::u32},
       {ScalarType::UInt64, Element::u64},
       {ScalarType::Bool, Element::boolean}}};
  const auto real = c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype;
  for (const auto& [type, element] : elements) {
    if (type == real) return element;
  }
  throw_error<ArgumentError>("the shm backend does not carry {} tensors", c10::toString(dtype));
}

[[gnu::flatten]] Source source_of(const at::Tensor& tensor) {
  const auto place = comm::placed(tensor);
  if (place.bytes == 0) return {};
  return {static_cast<const std::byte*>(place.storage.data()) + place.offset, place.bytes};
}

[[gnu::flatten]] Target target_of(const at::Tensor& tensor) {
  const auto place = comm::placed(tensor);
  if (place.bytes == 0) return {};
  return {static_cast<std::byte*>(place.storage.mutable_data()) + place.offset, place.bytes};
}

[[gnu::flatten]] bool is_eager(const Call& call, int size) {
  if (call.kind == CallKind::barrier) return true;
  const auto bytes = bytes_of(call.inputs.empty() ? call.outputs : call.inputs);
  if (comm::is_message(call.kind)) return bytes > 0 && bytes <= kMessageChunkBytes;
  return table_bytes(kind_of(call.kind), size) + bytes <= kSmallBytes;
}

void fill(Request& request, const Call& call, int size) {
  const auto* tensor = comm::main_tensor(call);
  request.kind = kind_of(call.kind);
  request.element = tensor != nullptr ? element_of(tensor->scalar_type()) : Element::u8;
  request.reduction = comm::has_operation(call.kind) ? reduction_of(call.op) : Reduction::sum;
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
