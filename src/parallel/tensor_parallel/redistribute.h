// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <lockstep/tensor_parallel/parallelize_module.h>

namespace lockstep::tensor_parallel {

// The part of a rank in `size` elements, as PyTorch's chunk() cuts them.
struct Chunk {
  Chunk(std::int64_t size, int ranks, int rank)
      : chunk((size + ranks - 1) / ranks),
        first(std::min(rank * chunk, size)),
        count(std::min(first + chunk, size) - first) {}
  std::int64_t chunk;  // of the first rank
  std::int64_t first;
  std::int64_t count;
};

// A tensor's way through the ranks: forward as the first pair says, its gradient as the second.
struct Route {
  Placement from, to;
  Placement gradient_from, gradient_to;
  // Elements of the whole tensor along the dimension that `from` and `to` cut; 0: equal parts.
  std::int64_t from_total = 0, to_total = 0;
};

at::Tensor redistribute(const at::Tensor& tensor, const ProcessGroup& group, const Route& route);

// The layout of the gradient of a tensor in that layout. That of a sum is the gradient of each term.
Placement gradient_layout(Placement layout);

// The tensors themselves, whose gradients are summed over the ranks.
std::vector<at::Tensor> with_summed_gradients(const std::vector<at::Tensor>& tensors,
                                              const ProcessGroup& group);

// The whole tensor, without gradients, of which this rank has a part along `dim`.
at::Tensor gather_chunks(const at::Tensor& part, const ProcessGroup& group, std::int64_t dim,
                         std::int64_t total);

}  // namespace lockstep::tensor_parallel
