// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <source_location>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/runtime/collective_options.h>
#include <lockstep/runtime/collectives.h>

// The collectives of runtime/collectives.h with a group that may be missing, as a function has it whose own argument
// is PyTorch's `group=None`: `all_reduce(tensor, op, maybe)`. CollectiveOptions cannot convert from it: an aggregate
// has no constructors, and its fields have names.
namespace lockstep::detail::optional_group {

template <typename Group>
concept MaybeGroup = std::same_as<Group, std::optional<ProcessGroup>> || std::same_as<Group, std::nullopt_t>;
using Where = std::source_location;

template <MaybeGroup Group>
void all_reduce(const at::Tensor& tensor, ReduceOp op, const Group& group, Where where = Where::current()) {
  lockstep::all_reduce(tensor, op, CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work all_reduce_async(const at::Tensor& tensor, ReduceOp op, const Group& group,
                      Where where = Where::current()) {
  return lockstep::all_reduce_async(tensor, op, CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void broadcast(const at::Tensor& tensor, int src, const Group& group, Where where = Where::current()) {
  lockstep::broadcast(tensor, src, CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work broadcast_async(const at::Tensor& tensor, int src, const Group& group, Where where = Where::current()) {
  return lockstep::broadcast_async(tensor, src, CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void reduce(const at::Tensor& tensor, int dst, ReduceOp op, const Group& group,
            Where where = Where::current()) {
  lockstep::reduce(tensor, dst, op, CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work reduce_async(const at::Tensor& tensor, int dst, ReduceOp op, const Group& group,
                  Where where = Where::current()) {
  return lockstep::reduce_async(tensor, dst, op, CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void all_gather(const std::vector<at::Tensor>& tensor_list, const at::Tensor& tensor, const Group& group,
                Where where = Where::current()) {
  lockstep::all_gather(tensor_list, tensor, CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work all_gather_async(const std::vector<at::Tensor>& tensor_list, const at::Tensor& tensor,
                      const Group& group, Where where = Where::current()) {
  return lockstep::all_gather_async(tensor_list, tensor, CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void all_gather_into_tensor(const at::Tensor& output_tensor, const at::Tensor& input_tensor,
                            const Group& group, Where where = Where::current()) {
  lockstep::all_gather_into_tensor(output_tensor, input_tensor, CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work all_gather_into_tensor_async(const at::Tensor& output_tensor, const at::Tensor& input_tensor,
                                  const Group& group, Where where = Where::current()) {
  return lockstep::all_gather_into_tensor_async(output_tensor, input_tensor, CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void gather(const at::Tensor& tensor, const std::vector<at::Tensor>& gather_list, int dst, const Group& group,
            Where where = Where::current()) {
  lockstep::gather(tensor, gather_list, dst, CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work gather_async(const at::Tensor& tensor, const std::vector<at::Tensor>& gather_list, int dst,
                  const Group& group, Where where = Where::current()) {
  return lockstep::gather_async(tensor, gather_list, dst, CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void scatter(const at::Tensor& tensor, const std::vector<at::Tensor>& scatter_list, int src,
             const Group& group, Where where = Where::current()) {
  lockstep::scatter(tensor, scatter_list, src, CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work scatter_async(const at::Tensor& tensor, const std::vector<at::Tensor>& scatter_list, int src,
                   const Group& group, Where where = Where::current()) {
  return lockstep::scatter_async(tensor, scatter_list, src, CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& input_list, ReduceOp op,
                    const Group& group, Where where = Where::current()) {
  lockstep::reduce_scatter(output, input_list, op, CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work reduce_scatter_async(const at::Tensor& output, const std::vector<at::Tensor>& input_list, ReduceOp op,
                          const Group& group, Where where = Where::current()) {
  return lockstep::reduce_scatter_async(output, input_list, op, CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, ReduceOp op, const Group& group,
                           Where where = Where::current()) {
  lockstep::reduce_scatter_tensor(output, input, op, CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                 const Group& group, Where where = Where::current()) {
  return lockstep::reduce_scatter_tensor_async(output, input, op, CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void all_to_all(const std::vector<at::Tensor>& output_tensor_list,
                const std::vector<at::Tensor>& input_tensor_list, const Group& group,
                Where where = Where::current()) {
  lockstep::all_to_all(output_tensor_list, input_tensor_list, CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work all_to_all_async(const std::vector<at::Tensor>& output_tensor_list,
                      const std::vector<at::Tensor>& input_tensor_list, const Group& group,
                      Where where = Where::current()) {
  return lockstep::all_to_all_async(output_tensor_list, input_tensor_list, CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                       const std::vector<std::int64_t>& output_split_sizes,
                       const std::vector<std::int64_t>& input_split_sizes, const Group& group,
                       Where where = Where::current()) {
  lockstep::all_to_all_single(output, input, output_split_sizes, input_split_sizes, CollectiveOptions{group},
                              false, where);
}
template <MaybeGroup Group>
Work all_to_all_single_async(const at::Tensor& output, const at::Tensor& input,
                             const std::vector<std::int64_t>& output_split_sizes,
                             const std::vector<std::int64_t>& input_split_sizes, const Group& group,
                             Where where = Where::current()) {
  return lockstep::all_to_all_single_async(output, input, output_split_sizes, input_split_sizes,
                                           CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void barrier(const Group& group, Where where = Where::current()) {
  lockstep::barrier(CollectiveOptions{group}, false, where);
}
template <MaybeGroup Group>
Work barrier_async(const Group& group, Where where = Where::current()) {
  return lockstep::barrier_async(CollectiveOptions{group}, where);
}
template <MaybeGroup Group>
void send(const at::Tensor& tensor, int dst, const Group& group, int tag = 0,
          Where where = Where::current()) {
  lockstep::send(tensor, dst, CollectiveOptions{group}, tag, where);
}
template <MaybeGroup Group>
Work isend(const at::Tensor& tensor, int dst, const Group& group, int tag = 0,
           Where where = Where::current()) {
  return lockstep::isend(tensor, dst, CollectiveOptions{group}, tag, where);
}
template <MaybeGroup Group>
int recv(const at::Tensor& tensor, std::optional<int> src, const Group& group, int tag = 0,
         Where where = Where::current()) {
  return lockstep::recv(tensor, src, CollectiveOptions{group}, tag, where);
}
template <MaybeGroup Group>
Work irecv(const at::Tensor& tensor, std::optional<int> src, const Group& group, int tag = 0,
           Where where = Where::current()) {
  return lockstep::irecv(tensor, src, CollectiveOptions{group}, tag, where);
}

}  // namespace lockstep::detail::optional_group

namespace lockstep {
using detail::optional_group::all_gather, detail::optional_group::all_gather_async;
using detail::optional_group::all_gather_into_tensor, detail::optional_group::all_gather_into_tensor_async;
using detail::optional_group::all_reduce, detail::optional_group::all_reduce_async;
using detail::optional_group::all_to_all, detail::optional_group::all_to_all_async;
using detail::optional_group::all_to_all_single, detail::optional_group::all_to_all_single_async;
using detail::optional_group::barrier, detail::optional_group::barrier_async;
using detail::optional_group::broadcast, detail::optional_group::broadcast_async;
using detail::optional_group::gather, detail::optional_group::gather_async;
using detail::optional_group::recv, detail::optional_group::irecv;
using detail::optional_group::reduce, detail::optional_group::reduce_async;
using detail::optional_group::reduce_scatter, detail::optional_group::reduce_scatter_async;
using detail::optional_group::reduce_scatter_tensor, detail::optional_group::reduce_scatter_tensor_async;
using detail::optional_group::scatter, detail::optional_group::scatter_async;
using detail::optional_group::send, detail::optional_group::isend;
}  // namespace lockstep
