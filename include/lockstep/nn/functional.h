// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/functional.h>

#include <lockstep/comm/process_group.h>

/// Collectives and messages through which gradients flow. PyTorch: `torch.distributed.nn.functional`.
///
/// Each call returns its result and leaves the tensors that it sends as they are. The gradient of a rank's
/// input is that of the sum of all ranks' losses: backward makes the inverse call with the gradients, on all
/// ranks. So all ranks run backward, through these calls in the same order, and either all ranks' inputs
/// require gradients or none does. Collectives can be differentiated any number of times.
///
/// `group`: by default the default group. `src` and `dst` are ranks within it. Tensors that
/// are sent may have any strides. Arguments and errors are otherwise those of ProcessGroup.
namespace lockstep::nn::functional {

using namespace torch::nn::functional;

/// The group of a call; nullopt: the default group.
using Group = std::optional<ProcessGroup>;
/// A line of the program.
using Where = std::source_location;

/// The reduction of all ranks' `tensor`, on every rank. Its gradient is reduced by the same `op`, as in
/// PyTorch: derivatives are right for SUM and AVG.
at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::SUM, const Group& group = {},
                      Where where = Where::current());

/// The tensors of all ranks, in the order of the ranks.
std::vector<at::Tensor> all_gather(const at::Tensor& tensor, const Group& group = {},
                                   Where where = Where::current());

/// `output`, which becomes the reduction of all ranks' input_list[rank]. The gradient is that of SUM.
at::Tensor reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& input_list,
                          ReduceOp op = ReduceOp::SUM, const Group& group = {},
                          Where where = Where::current());

/// `output_tensor_list`, of which [i] becomes input_tensor_list[rank] of rank i.
std::vector<at::Tensor> all_to_all(const std::vector<at::Tensor>& output_tensor_list,
                                   const std::vector<at::Tensor>& input_tensor_list, const Group& group = {},
                                   Where where = Where::current());

/// Like all_to_all(), with one tensor that is split along dimension 0, into equal parts by default.
at::Tensor all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                             const std::vector<std::int64_t>& output_split_sizes = {},
                             const std::vector<std::int64_t>& input_split_sizes = {}, const Group& group = {},
                             Where where = Where::current());

/// The tensor of rank `src`. On other ranks only shape and dtype of `tensor` count, and its gradient is zero.
at::Tensor broadcast(const at::Tensor& tensor, int src, const Group& group = {},
                     Where where = Where::current());

/// On rank `dst` the reduction of all ranks' `tensor`; elsewhere the values are unspecified. The gradient of
/// every rank is that of rank `dst`.
at::Tensor reduce(const at::Tensor& tensor, int dst, ReduceOp op = ReduceOp::SUM, const Group& group = {},
                  Where where = Where::current());

/// On rank `dst` the tensors of all ranks; elsewhere as many of zeros.
std::vector<at::Tensor> gather(const at::Tensor& tensor, int dst = 0, const Group& group = {},
                               Where where = Where::current());

/// tensors[rank] of rank `src`. Every rank passes size() tensors; on other ranks only the shape and dtype of
/// the first count, and the gradients are zero.
at::Tensor scatter(const std::vector<at::Tensor>& tensors, int src = 0, const Group& group = {},
                   Where where = Where::current());

/// Sends `tensor` to rank `dst`, which calls recv() with the same `tag`. Backward of the result receives the
/// gradient: the result is a zero of no dimensions and dtype of `tensor`; add it to the loss or call
/// backward() of it. Not in PyTorch. Messages are differentiated once, by backward(), not by grad().
at::Tensor send(const at::Tensor& tensor, int dst, const Group& group = {}, int tag = 0,
                Where where = Where::current());

/// `tensor`, which becomes that of send() on rank `src`. Its backward sends the gradient there. `tensor` of a
/// floating or complex dtype requires gradients afterwards.
at::Tensor recv(const at::Tensor& tensor, int src, const Group& group = {}, int tag = 0,
                Where where = Where::current());

}  // namespace lockstep::nn::functional

namespace lockstep::nn {
// PyTorch: `torch.distributed.nn`, which has them, too.
using functional::all_gather, functional::all_reduce, functional::all_to_all, functional::all_to_all_single;
using functional::broadcast, functional::gather, functional::reduce, functional::reduce_scatter,
    functional::scatter;
}  // namespace lockstep::nn
