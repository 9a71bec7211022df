// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/timeout.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/serialize/value.h>

// The collectives as free functions with the names and the order of arguments of `torch.distributed`. They are
// the functions of ProcessGroup, whose rules and errors apply, with two differences:
//
// - `options` is a group, or `{.group = group}`, where the group may be a std::optional; by default the default group,
//   of init() or init_process_group(). Without one they throw ArgumentError. On a rank that is not in the group, as
//   new_group() returns it there, they log a warning once and do nothing: results stay as they are, a Work is complete,
//   and recv() returns -1, as in Python.
// - `src` and `dst` are global ranks, as in Python; ProcessGroup takes ranks within the group. A rank outside of
//   the group is an ArgumentError.
//
// They also take PyTorch's keyword arguments by name: `all_reduce(tensor, {.op = ReduceOp::AVG})`,
// `gather(tensor, list, {.dst = 1})`, `send(tensor, {.dst = 1, .tag = 3})`: runtime/collectives_by_name.h.
// PyTorch's `async_op=True` is the function with the suffix `_async`, or isend() and irecv().
namespace lockstep {

/// PyTorch's argument `async_op` of a collective. Only false compiles, as its value chooses the type of the result
/// in Python; for true call the function with the suffix `_async`.
class AsyncOp {
 public:
  consteval AsyncOp(bool async_op) {  // NOLINT: implicit
    if (async_op) for_true_call_the_function_with_the_suffix_async();
  }

 private:
  static void for_true_call_the_function_with_the_suffix_async() {}
};

/// A rank that has no default: `{}` does not compile.
class RequiredRank {
 public:
  RequiredRank(int rank) : rank_(rank) {}  // NOLINT: implicit by design
  operator int() const { return rank_; }   // NOLINT: implicit by design

 private:
  int rank_;
};

/// PyTorch's last arguments of a collective. A group converts to it: `all_reduce(tensor, op, group)` is
/// `all_reduce(tensor, op, {.group = group})`.
struct CollectiveOptions {
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  AsyncOp async_op = false;  ///< true does not compile: call the function with the suffix _async
};

inline ProcessGroup::operator CollectiveOptions() const { return {.group = *this}; }

/// The rank within `group` of a global rank. Throws ArgumentError if it is not in the group. PyTorch:
/// `torch.distributed.get_group_rank`.
int get_group_rank(const ProcessGroup& group, int global_rank,
                   std::source_location where = std::source_location::current());
/// The global rank of a rank within `group`. PyTorch: `torch.distributed.get_global_rank`.
int get_global_rank(const ProcessGroup& group, int group_rank);

/// ProcessGroup::all_reduce(): every rank's `tensor` becomes the reduction of all, in place. PyTorch:
/// `torch.distributed.all_reduce`.
void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::SUM, const CollectiveOptions& options = {},
                AsyncOp async_op = false, std::source_location where = std::source_location::current());
/// ProcessGroup::all_reduce_async(): all_reduce() without waiting. PyTorch: `all_reduce(async_op=True)`.
Work all_reduce_async(const at::Tensor& tensor, ReduceOp op = ReduceOp::SUM,
                      const CollectiveOptions& options = {},
                      std::source_location where = std::source_location::current());

/// ProcessGroup::broadcast(): every rank's `tensor` becomes that of global rank `src`. PyTorch:
/// `torch.distributed.broadcast`.
void broadcast(const at::Tensor& tensor, RequiredRank src, const CollectiveOptions& options = {},
               AsyncOp async_op = false, std::source_location where = std::source_location::current());
/// ProcessGroup::broadcast_async(): broadcast() without waiting. PyTorch: `broadcast(async_op=True)`.
Work broadcast_async(const at::Tensor& tensor, RequiredRank src, const CollectiveOptions& options = {},
                     std::source_location where = std::source_location::current());

/// ProcessGroup::reduce(): `tensor` of global rank `dst` becomes the reduction; on other ranks its contents are
/// unspecified afterwards. PyTorch: `torch.distributed.reduce`.
void reduce(const at::Tensor& tensor, int dst, ReduceOp op = ReduceOp::SUM,
            const CollectiveOptions& options = {}, AsyncOp async_op = false,
            std::source_location where = std::source_location::current());
/// ProcessGroup::reduce_async(): reduce() without waiting. PyTorch: `reduce(async_op=True)`.
Work reduce_async(const at::Tensor& tensor, int dst, ReduceOp op = ReduceOp::SUM,
                  const CollectiveOptions& options = {},
                  std::source_location where = std::source_location::current());

/// ProcessGroup::all_gather(): tensor_list[i] becomes `tensor` of rank i of the group; one tensor for each rank,
/// of the shape and dtype of `tensor`. PyTorch: `torch.distributed.all_gather`.
void all_gather(const std::vector<at::Tensor>& tensor_list, const at::Tensor& tensor,
                const CollectiveOptions& options = {}, AsyncOp async_op = false,
                std::source_location where = std::source_location::current());
/// ProcessGroup::all_gather_async(): all_gather() without waiting. PyTorch: `all_gather(async_op=True)`.
Work all_gather_async(const std::vector<at::Tensor>& tensor_list, const at::Tensor& tensor,
                      const CollectiveOptions& options = {},
                      std::source_location where = std::source_location::current());

/// ProcessGroup::all_gather_into_tensor(): `output_tensor` holds the inputs of all ranks, one behind the other.
/// PyTorch: `torch.distributed.all_gather_into_tensor`.
void all_gather_into_tensor(const at::Tensor& output_tensor, const at::Tensor& input_tensor,
                            const CollectiveOptions& options = {}, AsyncOp async_op = false,
                            std::source_location where = std::source_location::current());
/// all_gather_into_tensor() without waiting. PyTorch: `all_gather_into_tensor(async_op=True)`.
Work all_gather_into_tensor_async(const at::Tensor& output_tensor, const at::Tensor& input_tensor,
                                  const CollectiveOptions& options = {},
                                  std::source_location where = std::source_location::current());

/// ProcessGroup::gather(): on global rank `dst`, gather_list[i] becomes `tensor` of rank i of the group; on
/// other ranks the list is empty. PyTorch: `torch.distributed.gather`.
void gather(const at::Tensor& tensor, at::TensorList gather_list = {}, int dst = 0,
            const CollectiveOptions& options = {}, AsyncOp async_op = false,
            std::source_location where = std::source_location::current());
/// Does not compile: one tensor is not a list; write `{tensor}`.
template <std::same_as<at::Tensor> T>
void gather(const at::Tensor& tensor, const T& gather_list, int dst = 0,
            const CollectiveOptions& options = {}, AsyncOp async_op = false,
            std::source_location where = std::source_location::current()) = delete;
/// ProcessGroup::gather_async(): gather() without waiting. PyTorch: `gather(async_op=True)`.
Work gather_async(const at::Tensor& tensor, at::TensorList gather_list = {}, int dst = 0,
                  const CollectiveOptions& options = {},
                  std::source_location where = std::source_location::current());
/// Does not compile: one tensor is not a list; write `{tensor}`.
template <std::same_as<at::Tensor> T>
Work gather_async(const at::Tensor& tensor, const T& gather_list, int dst = 0,
                  const CollectiveOptions& options = {},
                  std::source_location where = std::source_location::current()) = delete;

/// ProcessGroup::scatter(): `tensor` becomes the tensor that scatter_list of global rank `src` has for this
/// rank; on other ranks the list is empty. PyTorch: `torch.distributed.scatter`.
void scatter(const at::Tensor& tensor, at::TensorList scatter_list = {}, int src = 0,
             const CollectiveOptions& options = {}, AsyncOp async_op = false,
             std::source_location where = std::source_location::current());
/// Does not compile: one tensor is not a list; write `{tensor}`.
template <std::same_as<at::Tensor> T>
void scatter(const at::Tensor& tensor, const T& scatter_list, int src = 0,
             const CollectiveOptions& options = {}, AsyncOp async_op = false,
             std::source_location where = std::source_location::current()) = delete;
/// ProcessGroup::scatter_async(): scatter() without waiting. PyTorch: `scatter(async_op=True)`.
Work scatter_async(const at::Tensor& tensor, at::TensorList scatter_list = {}, int src = 0,
                   const CollectiveOptions& options = {},
                   std::source_location where = std::source_location::current());
/// Does not compile: one tensor is not a list; write `{tensor}`.
template <std::same_as<at::Tensor> T>
Work scatter_async(const at::Tensor& tensor, const T& scatter_list, int src = 0,
                   const CollectiveOptions& options = {},
                   std::source_location where = std::source_location::current()) = delete;

/// ProcessGroup::reduce_scatter(): `output` becomes the reduction of what all ranks have in `input_list` for
/// this rank. PyTorch: `torch.distributed.reduce_scatter`.
void reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& input_list,
                    ReduceOp op = ReduceOp::SUM, const CollectiveOptions& options = {},
                    AsyncOp async_op = false, std::source_location where = std::source_location::current());
/// reduce_scatter() without waiting. PyTorch: `reduce_scatter(async_op=True)`.
Work reduce_scatter_async(const at::Tensor& output, const std::vector<at::Tensor>& input_list,
                          ReduceOp op = ReduceOp::SUM, const CollectiveOptions& options = {},
                          std::source_location where = std::source_location::current());

/// ProcessGroup::reduce_scatter_tensor(): reduce_scatter() with one `input` for all ranks. PyTorch:
/// `torch.distributed.reduce_scatter_tensor`.
void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::SUM,
                           const CollectiveOptions& options = {}, AsyncOp async_op = false,
                           std::source_location where = std::source_location::current());
/// reduce_scatter_tensor() without waiting. PyTorch: `reduce_scatter_tensor(async_op=True)`.
Work reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                 ReduceOp op = ReduceOp::SUM, const CollectiveOptions& options = {},
                                 std::source_location where = std::source_location::current());

/// ProcessGroup::all_to_all(): output_tensor_list[i] becomes what rank i of the group has in input_tensor_list
/// for this rank. PyTorch: `torch.distributed.all_to_all`.
void all_to_all(const std::vector<at::Tensor>& output_tensor_list,
                const std::vector<at::Tensor>& input_tensor_list, const CollectiveOptions& options = {},
                AsyncOp async_op = false, std::source_location where = std::source_location::current());
/// all_to_all() without waiting. PyTorch: `all_to_all(async_op=True)`.
Work all_to_all_async(const std::vector<at::Tensor>& output_tensor_list,
                      const std::vector<at::Tensor>& input_tensor_list, const CollectiveOptions& options = {},
                      std::source_location where = std::source_location::current());

/// ProcessGroup::all_to_all_single(): all_to_all() with one tensor that is split along dimension 0. PyTorch:
/// `torch.distributed.all_to_all_single`.
void all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                       const std::vector<std::int64_t>& output_split_sizes = {},
                       const std::vector<std::int64_t>& input_split_sizes = {},
                       const CollectiveOptions& options = {}, AsyncOp async_op = false,
                       std::source_location where = std::source_location::current());
/// all_to_all_single() without waiting. PyTorch: `all_to_all_single(async_op=True)`.
Work all_to_all_single_async(const at::Tensor& output, const at::Tensor& input,
                             const std::vector<std::int64_t>& output_split_sizes = {},
                             const std::vector<std::int64_t>& input_split_sizes = {},
                             const CollectiveOptions& options = {},
                             std::source_location where = std::source_location::current());

/// ProcessGroup::send(): sends to global rank `dst`. PyTorch: `torch.distributed.send`, `isend`.
void send(const at::Tensor& tensor, int dst, const CollectiveOptions& options = {}, int tag = 0,
          std::source_location where = std::source_location::current());
/// send() without waiting. PyTorch: `torch.distributed.isend`.
Work isend(const at::Tensor& tensor, int dst, const CollectiveOptions& options = {}, int tag = 0,
           std::source_location where = std::source_location::current());

/// ProcessGroup::recv(): receives from global rank `src`, or from any rank when `src` is nullopt. Returns the
/// global rank of the sender. PyTorch: `torch.distributed.recv`, `irecv`.
int recv(const at::Tensor& tensor, std::optional<int> src = std::nullopt,
         const CollectiveOptions& options = {}, int tag = 0,
         std::source_location where = std::source_location::current());
/// recv() without waiting. PyTorch: `torch.distributed.irecv`.
Work irecv(const at::Tensor& tensor, std::optional<int> src = std::nullopt,
           const CollectiveOptions& options = {}, int tag = 0,
           std::source_location where = std::source_location::current());

/// A message of batch_isend_irecv(): `{isend, tensor, 1}`. PyTorch: `torch.distributed.P2POp`.
struct P2POp {
  /// The function isend or irecv.
  class Op {
   public:
    Op(decltype(isend)& /*send*/) : sends_(true) {}
    Op(decltype(irecv)& /*recv*/) : sends_(false) {}
    /// Whether it is isend.
    bool sends() const { return sends_; }

   private:
    bool sends_;
  };

  Op op;                                         ///< isend or irecv
  at::Tensor tensor;                             ///< sent, or received into
  std::optional<int> peer = std::nullopt;        ///< global rank that receives, or sends; or group_peer
  std::optional<ProcessGroup> group = {};        ///< default: the default group
  int tag = 0;                                   ///< of the call on the other rank
  std::optional<int> group_peer = std::nullopt;  ///< the rank within `group`, instead of peer
};

/// Starts the messages of one group and returns a Work for each. Sends and receives may be in any order;
/// messages in one direction between two ranks with one tag meet in the order of both lists. All arguments
/// are checked before the first message starts. Throws ArgumentError, also outside of the group, and for GPU
/// tensors with NCCL, whose messages block each other. PyTorch: `torch.distributed.batch_isend_irecv`.
std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& p2p_op_list,
                                    std::source_location where = std::source_location::current());

/// ProcessGroup::barrier(): returns when every rank has called it. PyTorch: `torch.distributed.barrier`.
void barrier(const CollectiveOptions& options = {}, AsyncOp async_op = false,
             std::source_location where = std::source_location::current());
/// barrier() without waiting. PyTorch: `barrier(async_op=True)`.
Work barrier_async(const CollectiveOptions& options = {},
                   std::source_location where = std::source_location::current());
/// ProcessGroup::monitored_barrier(): a barrier with a limit of its own that names missing ranks. PyTorch:
/// `torch.distributed.monitored_barrier`.
void monitored_barrier(const std::optional<ProcessGroup>& group = std::nullopt,
                       std::optional<Timeout> timeout = std::nullopt, bool wait_all_ranks = false,
                       std::source_location where = std::source_location::current());

/// ProcessGroup::all_gather_object(): `object_list` becomes the objects, strings or bytes, of all ranks of the
/// group. PyTorch: `torch.distributed.all_gather_object`.
void all_gather_object(std::vector<std::string>& object_list, const std::string& obj,
                       const CollectiveOptions& options = {},
                       std::source_location where = std::source_location::current());
/// Each object becomes that of global rank `src`, whose list has as many. PyTorch:
/// `torch.distributed.broadcast_object_list`.
void broadcast_object_list(std::vector<std::string>& object_list, int src = 0,
                           const CollectiveOptions& options = {},
                           std::source_location where = std::source_location::current());
/// ProcessGroup::gather_object(): on global rank `dst`, `object_gather_list` becomes the objects of all ranks of
/// the group; on other ranks it becomes empty. PyTorch: `torch.distributed.gather_object`.
void gather_object(const std::string& obj, std::vector<std::string>& object_gather_list, int dst = 0,
                   const CollectiveOptions& options = {},
                   std::source_location where = std::source_location::current());
/// ProcessGroup::scatter_object(): `scatter_object_output_list` becomes the one object that
/// `scatter_object_input_list` of global rank `src` has for this rank. PyTorch:
/// `torch.distributed.scatter_object_list`.
void scatter_object_list(std::vector<std::string>& scatter_object_output_list,
                         const std::vector<std::string>& scatter_object_input_list = {}, int src = 0,
                         const CollectiveOptions& options = {},
                         std::source_location where = std::source_location::current());

// For values: numbers, strings, tensors, and lists and dicts of them, as a file of save() holds them. Tensors arrive on
// the CPU. All receivers throw CheckpointError if a value cannot be saved, such as one with a ShardedTensor. Arguments
// and errors are otherwise those of the functions for strings.

/// `object_list` becomes the values of all ranks of the group: `all_gather_object(all, {{"rank", rank}})`. PyTorch:
/// `torch.distributed.all_gather_object`.
void all_gather_object(std::vector<Value>& object_list, const Value& obj,
                       const CollectiveOptions& options = {},
                       std::source_location where = std::source_location::current());
/// Each value becomes that of global rank `src`, whose list has as many. PyTorch:
/// `torch.distributed.broadcast_object_list`.
void broadcast_object_list(std::vector<Value>& object_list, int src = 0,
                           const CollectiveOptions& options = {},
                           std::source_location where = std::source_location::current());
/// On global rank `dst`, `object_gather_list` becomes the values of all ranks of the group; on other ranks it becomes
/// empty. PyTorch: `torch.distributed.gather_object`.
void gather_object(const Value& obj, std::vector<Value>& object_gather_list, int dst = 0,
                   const CollectiveOptions& options = {},
                   std::source_location where = std::source_location::current());
/// `scatter_object_output_list` becomes the one value that `scatter_object_input_list` of global rank `src` has for
/// this rank. PyTorch: `torch.distributed.scatter_object_list`.
void scatter_object_list(std::vector<Value>& scatter_object_output_list,
                         const std::vector<Value>& scatter_object_input_list = {}, int src = 0,
                         const CollectiveOptions& options = {},
                         std::source_location where = std::source_location::current());

}  // namespace lockstep
