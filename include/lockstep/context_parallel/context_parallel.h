// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>

#include <ATen/core/Tensor.h>

#include <lockstep/runtime/device_mesh.h>

/// Context parallel: each rank of a mesh has a part of the sequence, in all layers. Only attention needs the
/// other parts. PyTorch: `torch.distributed.tensor.experimental.context_parallel`, a prototype for GPUs.
///
/// `mesh` has one dimension, and all its ranks make the same calls; arguments that are wrong are
/// ArgumentErrors. As with nn::functional, the gradient of a rank's input is that of the sum of all ranks'
/// losses, and all ranks run backward. So DistributedDataParallel over the mesh gives the gradients of one
/// process if each rank's loss is the mean over its part.
namespace lockstep::context_parallel {

/// The positions of a rank, of n ranks.
enum class LoadBalancer {
  head_tail,  ///< parts r and 2n-1-r of 2n parts: with a causal mask all ranks compute equally much
  none,       ///< part r of n parts
};

/// This rank's part of `tensor`, which is equal on all ranks, along `dim`: of tokens, targets or position
/// numbers, e.g. `at::arange(length)`. The size is a multiple of 2n with head_tail, of n otherwise. Sends
/// nothing. PyTorch: the `buffers` of `context_parallel`.
at::Tensor shard(const at::Tensor& tensor, const DeviceMesh& mesh, std::int64_t dim,
                 LoadBalancer load_balancer = LoadBalancer::head_tail,
                 std::source_location where = std::source_location::current());

/// The whole tensor on all ranks, in the order of the sequence, of which each rank has the part of shard().
/// Gradients flow. PyTorch: `context_parallel_unshard`, without gradients.
at::Tensor unshard(const at::Tensor& part, const DeviceMesh& mesh, std::int64_t dim,
                   LoadBalancer load_balancer = LoadBalancer::head_tail,
                   std::source_location where = std::source_location::current());

/// Options of scaled_dot_product_attention().
struct AttentionOptions {
  /// A position attends to itself and to earlier ones of the whole sequence.
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;  ///< default: 1 / sqrt(head_dim)
  /// That of shard(). Makes a difference only with is_causal.
  LoadBalancer load_balancer = LoadBalancer::head_tail;
};

/// The attention of this rank's queries to the keys of all ranks. `query`: [batch, heads, length, head_dim];
/// `key` and `value`: [batch, key heads, key length, head_dim], where `heads` is a multiple of `key heads`;
/// lengths are those of a rank's part, equal on all ranks. Returns [batch, heads, length, head_dim].
///
/// Keys and values go around the ranks, one part at a time, while each rank computes with the part that it
/// has; backward does the same, and their gradients follow (Liu, Zaharia, Abbeel, "Ring Attention with
/// Blockwise Transformers", 2023). A rank holds two parts of keys and values at a time. Sums over the parts
/// are in float32, or in float64 for float64. Runs LibTorch's flash kernels: on the CPU in every floating
/// dtype, on GPUs in float16 and bfloat16; under Autocast in its dtype. No dropout and no mask. Backward with
/// create_graph is an Error. PyTorch: `scaled_dot_product_attention` within `context_parallel`, with
/// `set_rotate_method("alltoall")`.
at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value, const DeviceMesh& mesh,
                                        const AttentionOptions& options = {},
                                        std::source_location where = std::source_location::current());

}  // namespace lockstep::context_parallel
