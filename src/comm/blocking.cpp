// SPDX-License-Identifier: BSD-3-Clause
// The blocking form of every call: issue, then wait.
#include <lockstep/comm/process_group.h>

#include "comm/direct.h"

namespace lockstep {

void ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op, Where where) const {
  if (!comm::all_reduce_directly(*state_, tensor, op, where)) all_reduce_async(tensor, op, where).wait();
}
void ProcessGroup::broadcast(const Tensor& tensor, int src, Where where) const {
  broadcast_async(tensor, src, where).wait();
}
void ProcessGroup::reduce(const Tensor& tensor, int dst, ReduceOp op, Where where) const {
  reduce_async(tensor, dst, op, where).wait();
}
void ProcessGroup::all_gather(const Tensors& output, const Tensor& input, Where where) const {
  all_gather_async(output, input, where).wait();
}
void ProcessGroup::all_gather_into_tensor(const Tensor& output, const Tensor& input, Where where) const {
  all_gather_into_tensor_async(output, input, where).wait();
}
void ProcessGroup::gather(const Tensor& input, const Tensors& output, int dst, Where where) const {
  gather_async(input, output, dst, where).wait();
}
void ProcessGroup::scatter(const Tensor& output, const Tensors& input, int src, Where where) const {
  scatter_async(output, input, src, where).wait();
}
void ProcessGroup::reduce_scatter(const Tensor& output, const Tensors& input, ReduceOp op,
                                  Where where) const {
  reduce_scatter_async(output, input, op, where).wait();
}
void ProcessGroup::reduce_scatter_tensor(const Tensor& output, const Tensor& input, ReduceOp op,
                                         Where where) const {
  reduce_scatter_tensor_async(output, input, op, where).wait();
}
void ProcessGroup::all_to_all(const Tensors& output, const Tensors& input, Where where) const {
  all_to_all_async(output, input, where).wait();
}
void ProcessGroup::all_to_all_single(const Tensor& output, const Tensor& input,
                                     const std::vector<std::int64_t>& output_split_sizes,
                                     const std::vector<std::int64_t>& input_split_sizes, Where where) const {
  all_to_all_single_async(output, input, output_split_sizes, input_split_sizes, where).wait();
}
void ProcessGroup::send(const Tensor& tensor, int dst, int tag, Where where) const {
  send_async(tensor, dst, tag, where).wait();
}
int ProcessGroup::recv(const Tensor& tensor, std::optional<int> src, int tag, Where where) const {
  auto work = recv_async(tensor, src, tag, where);
  work.wait();
  return src ? *src : work.source_rank();
}
void ProcessGroup::barrier(Where where) const {
  if (!comm::barrier_directly(*state_, where)) barrier_async(where).wait();
}

}  // namespace lockstep
