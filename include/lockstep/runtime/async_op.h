// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>

// PyTorch's last argument of a collective, `async_op`, does not compile, as its value chooses the type of the result:
// the static_assert says what to call.
namespace lockstep {

template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void all_reduce(const at::Tensor&, ReduceOp, const Group&, AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call all_reduce_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void broadcast(const at::Tensor&, int, const Group&, AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call broadcast_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void reduce(const at::Tensor&, int, ReduceOp, const Group&, AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call reduce_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void all_gather(const std::vector<at::Tensor>&, const at::Tensor&, const Group&, AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call all_gather_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void all_gather_into_tensor(const at::Tensor&, const at::Tensor&, const Group&, AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call all_gather_into_tensor_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void gather(const at::Tensor&, const std::vector<at::Tensor>&, int, const Group&, AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call gather_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void scatter(const at::Tensor&, const std::vector<at::Tensor>&, int, const Group&, AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call scatter_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void reduce_scatter(const at::Tensor&, const std::vector<at::Tensor>&, ReduceOp, const Group&,
                    AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call reduce_scatter_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void reduce_scatter_tensor(const at::Tensor&, const at::Tensor&, ReduceOp, const Group&,
                           AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call reduce_scatter_tensor_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void all_to_all(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&, const Group&,
                AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call all_to_all_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void all_to_all_single(const at::Tensor&, const at::Tensor&, const std::vector<std::int64_t>&,
                       const std::vector<std::int64_t>&, const Group&, AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call all_to_all_single_async()");
}
template <typename Group = std::optional<ProcessGroup>, std::same_as<bool> AsyncOp>
void barrier(const Group&, AsyncOp /*async_op*/) {
  static_assert(!std::same_as<AsyncOp, bool>, "leave async_op out, or call barrier_async()");
}

}  // namespace lockstep
