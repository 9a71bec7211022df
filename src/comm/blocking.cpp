// SPDX-License-Identifier: BSD-3-Clause
// The blocking form of every call: directly where the backend can, else issue, then wait.
#include <lockstep/comm/process_group.h>

#include "comm/direct.h"

namespace lockstep {
namespace {

using comm::call_directly;
using comm::DirectCall;

}  // namespace

void ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op, Where where) const {
  const DirectCall call{.kind = CallKind::all_reduce, .outputs = tensor, .op = op};
  if (!call_directly(*state_, call, where)) all_reduce_async(tensor, op, where).wait();
}
void ProcessGroup::broadcast(const Tensor& tensor, int src, Where where) const {
  const DirectCall call{.kind = CallKind::broadcast, .outputs = tensor, .root = src};
  if (!call_directly(*state_, call, where)) broadcast_async(tensor, src, where).wait();
}
void ProcessGroup::reduce(const Tensor& tensor, int dst, ReduceOp op, Where where) const {
  const DirectCall call{.kind = CallKind::reduce, .outputs = tensor, .op = op, .root = dst};
  if (!call_directly(*state_, call, where)) reduce_async(tensor, dst, op, where).wait();
}
void ProcessGroup::all_gather(const Tensors& output, const Tensor& input, Where where) const {
  const DirectCall call{.kind = CallKind::all_gather, .inputs = input, .outputs = output};
  if (!call_directly(*state_, call, where)) all_gather_async(output, input, where).wait();
}
void ProcessGroup::all_gather_into_tensor(const Tensor& output, const Tensor& input, Where where) const {
  const DirectCall call{.kind = CallKind::all_gather_into_tensor, .inputs = input, .outputs = output};
  if (!call_directly(*state_, call, where)) all_gather_into_tensor_async(output, input, where).wait();
}
void ProcessGroup::gather(const Tensor& input, const Tensors& output, int dst, Where where) const {
  const DirectCall call{.kind = CallKind::gather, .inputs = input, .outputs = output, .root = dst};
  if (!call_directly(*state_, call, where)) gather_async(input, output, dst, where).wait();
}
void ProcessGroup::scatter(const Tensor& output, const Tensors& input, int src, Where where) const {
  const DirectCall call{.kind = CallKind::scatter, .inputs = input, .outputs = output, .root = src};
  if (!call_directly(*state_, call, where)) scatter_async(output, input, src, where).wait();
}
void ProcessGroup::reduce_scatter(const Tensor& output, const Tensors& input, ReduceOp op,
                                  Where where) const {
  const DirectCall call{.kind = CallKind::reduce_scatter, .inputs = input, .outputs = output, .op = op};
  if (!call_directly(*state_, call, where)) reduce_scatter_async(output, input, op, where).wait();
}
void ProcessGroup::reduce_scatter_tensor(const Tensor& output, const Tensor& input, ReduceOp op,
                                         Where where) const {
  const DirectCall call{
      .kind = CallKind::reduce_scatter_tensor, .inputs = input, .outputs = output, .op = op};
  if (!call_directly(*state_, call, where)) reduce_scatter_tensor_async(output, input, op, where).wait();
}
void ProcessGroup::all_to_all(const Tensors& output, const Tensors& input, Where where) const {
  const DirectCall call{.kind = CallKind::all_to_all, .inputs = input, .outputs = output};
  if (!call_directly(*state_, call, where)) all_to_all_async(output, input, where).wait();
}
void ProcessGroup::all_to_all_single(const Tensor& output, const Tensor& input,
                                     const std::vector<std::int64_t>& output_split_sizes,
                                     const std::vector<std::int64_t>& input_split_sizes, Where where) const {
  const DirectCall call{.kind = CallKind::all_to_all_single, .inputs = input, .outputs = output};
  const bool in_equal_parts = output_split_sizes.empty() && input_split_sizes.empty();
  if (in_equal_parts && call_directly(*state_, call, where)) return;
  all_to_all_single_async(output, input, output_split_sizes, input_split_sizes, where).wait();
}
void ProcessGroup::send(const Tensor& tensor, int dst, int tag, Where where) const {
  const DirectCall call{.kind = CallKind::send, .inputs = tensor, .peer = dst, .tag = tag};
  if (!call_directly(*state_, call, where)) send_async(tensor, dst, tag, where).wait();
}
int ProcessGroup::recv(const Tensor& tensor, std::optional<int> src, int tag, Where where) const {
  if (src) {
    const DirectCall call{.kind = CallKind::recv, .outputs = tensor, .peer = *src, .tag = tag};
    if (call_directly(*state_, call, where)) return *src;
  }
  auto work = recv_async(tensor, src, tag, where);
  work.wait();
  return src ? *src : work.source_rank();
}
void ProcessGroup::barrier(Where where) const {
  if (!call_directly(*state_, {.kind = CallKind::barrier}, where)) barrier_async(where).wait();
}

}  // namespace lockstep
