// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/direct_request.h"

#include <algorithm>
#include <type_traits>

#include <lockstep/base/error.h>

#include "backends/shm/kernels.h"
#include "backends/shm/layout.h"
#include "backends/shm/plan.h"
#include "backends/shm/tensor_request.h"

namespace lockstep::shm {
namespace {

using comm::DirectCall;

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
      return Kind::barrier;
    case CallKind::send:
    case CallKind::recv:
      break;
  }
  throw ArgumentError("the shm backend does not make this call directly");
}

Reduction reduction_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::AVG:
      return Reduction::average;
    case ReduceOp::PRODUCT:
      return Reduction::product;
    case ReduceOp::MIN:
      return Reduction::min;
    case ReduceOp::MAX:
      return Reduction::max;
    case ReduceOp::BAND:
      return Reduction::band;
    case ReduceOp::BOR:
      return Reduction::bor;
    case ReduceOp::BXOR:
      return Reduction::bxor;
    case ReduceOp::SUM:
      break;
  }
  return Reduction::sum;
}

// Any tensor of the call: all have its dtype.
const at::Tensor& model_of(const DirectCall& call) {
  return call.outputs.empty() ? call.inputs.front() : call.outputs.front();
}

bool are_plain(at::TensorList tensors, c10::ScalarType dtype) {
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_cpu() && tensor.layout() == c10::kStrided &&
           tensor.scalar_type() == dtype && tensor.is_contiguous() && !tensor.is_neg() && tensor.numel() > 0;
  });
}

bool are_shaped_like(at::TensorList tensors, const at::Tensor& model) {
  return std::ranges::all_of(tensors,
                             [&](const at::Tensor& tensor) { return tensor.sizes() == model.sizes(); });
}

// As many tensors as the kind of call needs, of the shapes that it needs.
bool is_well_formed(const DirectCall& call, int rank, int size) {
  const auto& [kind, in, out, op, root, peer, tag, waits] = call;
  const auto all = static_cast<std::size_t>(size);
  const auto own = static_cast<std::size_t>(rank);
  const bool is_of_message = peer >= 0 && peer < size && peer != rank && tag >= 0;
  switch (kind) {
    case CallKind::all_reduce:
    case CallKind::broadcast:
    case CallKind::reduce:
      return in.empty() && out.size() == 1;
    case CallKind::all_gather:
      return in.size() == 1 && out.size() == all && out[own].sizes() == in[0].sizes();
    case CallKind::all_gather_into_tensor:
      return in.size() == 1 && out.size() == 1 && out[0].numel() == in[0].numel() * size;
    case CallKind::gather:
      return in.size() == 1 && out.size() == (rank == root ? all : 0) && are_shaped_like(out, in[0]);
    case CallKind::scatter:
      return out.size() == 1 && in.size() == (rank == root ? all : 0) && are_shaped_like(in, out[0]);
    case CallKind::reduce_scatter:
      return out.size() == 1 && in.size() == all && are_shaped_like(in, out[0]);
    case CallKind::reduce_scatter_tensor:
      return out.size() == 1 && in.size() == 1 && in[0].numel() == out[0].numel() * size;
    case CallKind::all_to_all:
      return in.size() == all && out.size() == all && out[own].sizes() == in[own].sizes();
    case CallKind::all_to_all_single:
      return in.size() == 1 && out.size() == 1 && in[0].dim() > 0 && out[0].dim() > 0 &&
             in[0].size(0) % size == 0 && out[0].size(0) % size == 0;
    case CallKind::send:
      return in.size() == 1 && out.empty() && is_of_message;
    case CallKind::recv:
      return in.empty() && out.size() == 1 && is_of_message;
    case CallKind::barrier:
      return true;
  }
  return false;
}

bool is_message(const DirectCall& call) { return call.kind == CallKind::send || call.kind == CallKind::recv; }

bool can_be_carried(const DirectCall& call) {
  const auto dtype = model_of(call).scalar_type();
  const auto element = find_element(dtype);
  if (!element || c10::isComplexType(dtype)) return false;
  return is_message(call) || !has_reduction(kind_of(call.kind)) ||
         reduce_kernel(*element, reduction_of(call.op)) != nullptr;
}

std::size_t bytes_in(at::TensorList tensors) {
  std::size_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.nbytes();
  return sum;
}

template <class Part>
void set_parts(std::vector<Part>& parts, at::TensorList tensors) {
  parts.clear();
  for (const auto& tensor : tensors) {
    if constexpr (std::is_same_v<Part, Source>)
      parts.push_back({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
    else
      parts.push_back({static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
  }
}

// One tensor for all ranks, in equal parts.
template <class Part>
void cut(std::vector<Part>& parts, int size) {
  const auto whole = parts.front();
  const auto length = whole.bytes / static_cast<std::size_t>(size);
  parts.clear();
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(size); ++rank) {
    parts.push_back({whole.data + rank * length, length});
  }
}

}  // namespace

bool fits_directly(const DirectCall& call, int rank, int size) {
  if (call.kind == CallKind::barrier) return true;
  if (call.inputs.empty() && call.outputs.empty()) return false;
  const auto& model = model_of(call);
  if (!model.defined()) return false;
  const auto dtype = model.scalar_type();
  if (!are_plain(call.inputs, dtype) || !are_plain(call.outputs, dtype)) return false;
  if (!is_well_formed(call, rank, size)) return false;
  if (!can_be_carried(call)) return false;
  const auto brought = bytes_in(call.inputs.empty() ? call.outputs : call.inputs);
  if (is_message(call)) return brought <= kMessageChunkBytes;
  const auto kind = kind_of(call.kind);
  if (has_root(kind) && (call.root < 0 || call.root >= size)) return false;
  return table_bytes(kind, size) + brought <= kSmallBytes;
}

void fill(Request& request, const DirectCall& call, int size) {
  request.kind = kind_of(call.kind);
  request.root = call.root;
  set_parts(request.inputs, call.inputs);
  set_parts(request.outputs, call.outputs);
  if (call.kind == CallKind::barrier) {
    request.element = Request().element;
    request.reduction = Request().reduction;
    return;
  }
  request.element = element_of(model_of(call).scalar_type());
  request.reduction = reduction_of(call.op);
  const bool cuts_input =
      call.kind == CallKind::reduce_scatter_tensor || call.kind == CallKind::all_to_all_single;
  const bool cuts_output =
      call.kind == CallKind::all_gather_into_tensor || call.kind == CallKind::all_to_all_single;
  if (cuts_input) cut(request.inputs, size);
  if (cuts_output) cut(request.outputs, size);
}

}  // namespace lockstep::shm
