// SPDX-License-Identifier: BSD-3-Clause
#include "comm/call.h"

namespace lockstep::comm {

bool is_message(CallKind kind) { return kind == CallKind::send || kind == CallKind::recv; }

bool has_operation(CallKind kind) {
  return kind == CallKind::all_reduce || kind == CallKind::reduce || kind == CallKind::reduce_scatter ||
         kind == CallKind::reduce_scatter_tensor;
}

bool is_uneven(CallKind kind) {
  return kind == CallKind::all_gather || kind == CallKind::gather || kind == CallKind::all_to_all ||
         kind == CallKind::all_to_all_single;
}

const at::Tensor* main_tensor(const Call& call) {
  const bool by_input =
      is_uneven(call.kind) || call.kind == CallKind::all_gather_into_tensor || call.kind == CallKind::send;
  const auto tensors = by_input ? call.inputs : call.outputs;
  return tensors.empty() ? nullptr : &tensors.front();
}

std::vector<at::Tensor> tensors_of(const Call& call) {
  auto tensors = call.inputs.vec();
  tensors.insert(tensors.end(), call.outputs.begin(), call.outputs.end());
  return tensors;
}

}  // namespace lockstep::comm
