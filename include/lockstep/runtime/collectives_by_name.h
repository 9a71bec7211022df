// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <source_location>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/timeout.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/runtime/collectives.h>
#include <lockstep/runtime/typed_objects.h>

// The functions of runtime/collectives.h with PyTorch's keyword arguments by name, in PyTorch's order. They are templates,
// so that `{}` and a list without names are the arguments of those functions.
namespace lockstep {

/// Arguments of the functions that reduce, by name: `all_reduce(tensor, {.op = ReduceOp::AVG, .group = group})`.
struct ReduceOptions {
  ReduceOp op = ReduceOp::SUM;             ///< how the tensors of all ranks become one
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  AsyncOp async_op = false;  ///< true does not compile: call the function with the suffix _async
};
/// Arguments of broadcast(), by name: `broadcast(tensor, {.src = 0, .group = group})`.
struct BroadcastOptions {
  RequiredRank src;                        ///< global rank
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  AsyncOp async_op = false;  ///< true does not compile: call the function with the suffix _async
};
/// Arguments of reduce(), by name: `reduce(tensor, {.dst = 0, .op = ReduceOp::MAX})`.
struct ReduceToOptions {
  RequiredRank dst;                        ///< global rank
  ReduceOp op = ReduceOp::SUM;             ///< how the tensors of all ranks become one
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  AsyncOp async_op = false;  ///< true does not compile: call the function with the suffix _async
};
/// The last arguments of functions with a destination, by name: `gather(tensor, list, {.dst = 1})`.
struct DestinationOptions {
  int dst = 0;                             ///< global rank
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  AsyncOp async_op = false;  ///< true does not compile: call the function with the suffix _async
};
/// The last arguments of functions with a source, by name: `scatter(tensor, list, {.src = 1})`.
struct SourceOptions {
  int src = 0;                             ///< global rank
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  AsyncOp async_op = false;  ///< true does not compile: call the function with the suffix _async
};
/// Arguments of gather(), by name: `gather(tensor, {.gather_list = list, .dst = 1})`.
struct GatherOptions {
  std::vector<at::Tensor> gather_list = {};  ///< on rank `dst`
  int dst = 0;                               ///< global rank
  std::optional<ProcessGroup> group = {};    ///< default: the default group
  AsyncOp async_op = false;  ///< true does not compile: call the function with the suffix _async
};
/// Arguments of scatter(), by name: `scatter(tensor, {.scatter_list = list, .src = 1})`.
struct ScatterOptions {
  std::vector<at::Tensor> scatter_list = {};  ///< on rank `src`
  int src = 0;                                ///< global rank
  std::optional<ProcessGroup> group = {};     ///< default: the default group
  AsyncOp async_op = false;  ///< true does not compile: call the function with the suffix _async
};
/// The last arguments of send(), isend(), recv() and irecv(), by name: `send(tensor, 1, {.tag = 3})`.
struct MessageOptions {
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  int tag = 0;                             ///< of the call on the other rank
};
/// Arguments of send() and isend(), by name: `send(tensor, {.dst = 1, .tag = 3})`.
struct SendOptions {
  RequiredRank dst;                        ///< global rank
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  int tag = 0;                             ///< of the call on the other rank
};
/// Arguments of recv() and irecv(), by name: `recv(tensor, {.src = 0})`.
struct RecvOptions {
  std::optional<int> src = {};             ///< global rank; default: any
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  int tag = 0;                             ///< of the call on the other rank
};
/// Arguments of monitored_barrier(), by name: `monitored_barrier({.timeout = 30})`.
struct MonitoredBarrierOptions {
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  std::optional<Timeout> timeout = {};     ///< default: that of the group
  bool wait_all_ranks = false;             ///< names all missing ranks instead of the first
};

template <typename = void>
void broadcast(const at::Tensor& tensor, const BroadcastOptions& options,
               std::source_location where = std::source_location::current()) {
  broadcast(tensor, options.src, {options.group}, false, where);
}
template <typename = void>
Work broadcast_async(const at::Tensor& tensor, const BroadcastOptions& options,
                     std::source_location where = std::source_location::current()) {
  return broadcast_async(tensor, options.src, {options.group}, where);
}
template <typename = void>
void send(const at::Tensor& tensor, int dst, const MessageOptions& options,
          std::source_location where = std::source_location::current()) {
  send(tensor, dst, {options.group}, options.tag, where);
}
template <typename = void>
Work isend(const at::Tensor& tensor, int dst, const MessageOptions& options,
           std::source_location where = std::source_location::current()) {
  return isend(tensor, dst, {options.group}, options.tag, where);
}
template <typename = void>
int recv(const at::Tensor& tensor, std::optional<int> src, const MessageOptions& options,
         std::source_location where = std::source_location::current()) {
  return recv(tensor, src, {options.group}, options.tag, where);
}
template <typename = void>
Work irecv(const at::Tensor& tensor, std::optional<int> src, const MessageOptions& options,
           std::source_location where = std::source_location::current()) {
  return irecv(tensor, src, {options.group}, options.tag, where);
}
template <typename = void>
void monitored_barrier(const MonitoredBarrierOptions& options,
                       std::source_location where = std::source_location::current()) {
  monitored_barrier(options.group, options.timeout, options.wait_all_ranks, where);
}
template <typename = void>
void all_reduce(const at::Tensor& tensor, const ReduceOptions& options,
                std::source_location where = std::source_location::current()) {
  all_reduce(tensor, options.op, {options.group}, false, where);
}
template <typename = void>
Work all_reduce_async(const at::Tensor& tensor, const ReduceOptions& options,
                      std::source_location where = std::source_location::current()) {
  return all_reduce_async(tensor, options.op, {options.group}, where);
}
template <typename = void>
void reduce(const at::Tensor& tensor, int dst, const ReduceOptions& options,
            std::source_location where = std::source_location::current()) {
  reduce(tensor, dst, options.op, {options.group}, false, where);
}
template <typename = void>
Work reduce_async(const at::Tensor& tensor, int dst, const ReduceOptions& options,
                  std::source_location where = std::source_location::current()) {
  return reduce_async(tensor, dst, options.op, {options.group}, where);
}
template <typename = void>
void reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& input_list,
                    const ReduceOptions& options,
                    std::source_location where = std::source_location::current()) {
  reduce_scatter(output, input_list, options.op, {options.group}, false, where);
}
template <typename = void>
Work reduce_scatter_async(const at::Tensor& output, const std::vector<at::Tensor>& input_list,
                          const ReduceOptions& options,
                          std::source_location where = std::source_location::current()) {
  return reduce_scatter_async(output, input_list, options.op, {options.group}, where);
}
template <typename = void>
void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, const ReduceOptions& options,
                           std::source_location where = std::source_location::current()) {
  reduce_scatter_tensor(output, input, options.op, {options.group}, false, where);
}
template <typename = void>
Work reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                 const ReduceOptions& options,
                                 std::source_location where = std::source_location::current()) {
  return reduce_scatter_tensor_async(output, input, options.op, {options.group}, where);
}
template <typename = void>
void reduce(const at::Tensor& tensor, const ReduceToOptions& options,
            std::source_location where = std::source_location::current()) {
  reduce(tensor, options.dst, options.op, {options.group}, false, where);
}
template <typename = void>
Work reduce_async(const at::Tensor& tensor, const ReduceToOptions& options,
                  std::source_location where = std::source_location::current()) {
  return reduce_async(tensor, options.dst, options.op, {options.group}, where);
}
template <typename = void>
void gather(const at::Tensor& tensor, at::TensorList gather_list, const DestinationOptions& options,
            std::source_location where = std::source_location::current()) {
  gather(tensor, gather_list, options.dst, {options.group}, false, where);
}
/// Does not compile: one tensor is not a list.
template <std::same_as<at::Tensor> T>
void gather(const at::Tensor& tensor, const T& gather_list, const DestinationOptions& options,
            std::source_location where = std::source_location::current()) = delete;
template <typename = void>
Work gather_async(const at::Tensor& tensor, at::TensorList gather_list, const DestinationOptions& options,
                  std::source_location where = std::source_location::current()) {
  return gather_async(tensor, gather_list, options.dst, {options.group}, where);
}
/// Does not compile: one tensor is not a list.
template <std::same_as<at::Tensor> T>
Work gather_async(const at::Tensor& tensor, const T& gather_list, const DestinationOptions& options,
                  std::source_location where = std::source_location::current()) = delete;
template <typename = void>
void gather(const at::Tensor& tensor, const GatherOptions& options,
            std::source_location where = std::source_location::current()) {
  gather(tensor, options.gather_list, options.dst, {options.group}, false, where);
}
template <typename = void>
Work gather_async(const at::Tensor& tensor, const GatherOptions& options,
                  std::source_location where = std::source_location::current()) {
  return gather_async(tensor, options.gather_list, options.dst, {options.group}, where);
}
template <typename = void>
void scatter(const at::Tensor& tensor, at::TensorList scatter_list, const SourceOptions& options,
             std::source_location where = std::source_location::current()) {
  scatter(tensor, scatter_list, options.src, {options.group}, false, where);
}
/// Does not compile: one tensor is not a list.
template <std::same_as<at::Tensor> T>
void scatter(const at::Tensor& tensor, const T& scatter_list, const SourceOptions& options,
             std::source_location where = std::source_location::current()) = delete;
template <typename = void>
Work scatter_async(const at::Tensor& tensor, at::TensorList scatter_list, const SourceOptions& options,
                   std::source_location where = std::source_location::current()) {
  return scatter_async(tensor, scatter_list, options.src, {options.group}, where);
}
/// Does not compile: one tensor is not a list.
template <std::same_as<at::Tensor> T>
Work scatter_async(const at::Tensor& tensor, const T& scatter_list, const SourceOptions& options,
                   std::source_location where = std::source_location::current()) = delete;
template <typename = void>
void scatter(const at::Tensor& tensor, const ScatterOptions& options,
             std::source_location where = std::source_location::current()) {
  scatter(tensor, options.scatter_list, options.src, {options.group}, false, where);
}
template <typename = void>
Work scatter_async(const at::Tensor& tensor, const ScatterOptions& options,
                   std::source_location where = std::source_location::current()) {
  return scatter_async(tensor, options.scatter_list, options.src, {options.group}, where);
}
template <typename = void>
void send(const at::Tensor& tensor, const SendOptions& options,
          std::source_location where = std::source_location::current()) {
  send(tensor, options.dst, {options.group}, options.tag, where);
}
template <typename = void>
Work isend(const at::Tensor& tensor, const SendOptions& options,
           std::source_location where = std::source_location::current()) {
  return isend(tensor, options.dst, {options.group}, options.tag, where);
}
template <typename = void>
int recv(const at::Tensor& tensor, const RecvOptions& options,
         std::source_location where = std::source_location::current()) {
  return recv(tensor, options.src, {options.group}, options.tag, where);
}
template <typename = void>
Work irecv(const at::Tensor& tensor, const RecvOptions& options,
           std::source_location where = std::source_location::current()) {
  return irecv(tensor, options.src, {options.group}, options.tag, where);
}
/// Takes `src` by name, of strings and of values: `broadcast_object_list(objects, {.src = 1})`.
template <typename Object>
void broadcast_object_list(std::vector<Object>& object_list, const SourceOptions& options,
                           std::source_location where = std::source_location::current()) {
  broadcast_object_list(object_list, options.src, {options.group}, where);
}
/// Takes `dst` by name, of strings and of values: `gather_object(object, list, {.dst = 1})`.
template <typename Object>
void gather_object(const std::type_identity_t<Object>& obj, std::vector<Object>& object_gather_list,
                   const DestinationOptions& options,
                   std::source_location where = std::source_location::current()) {
  gather_object(obj, object_gather_list, options.dst, {options.group}, where);
}
/// Takes `src` by name, of strings and of values: `scatter_object_list(output, input, {.src = 1})`.
template <typename Object>
void scatter_object_list(std::vector<Object>& scatter_object_output_list,
                         const std::type_identity_t<std::vector<Object>>& scatter_object_input_list,
                         const SourceOptions& options,
                         std::source_location where = std::source_location::current()) {
  scatter_object_list(scatter_object_output_list, scatter_object_input_list, options.src, {options.group},
                      where);
}

}  // namespace lockstep
