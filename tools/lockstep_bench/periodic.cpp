// SPDX-License-Identifier: BSD-3-Clause
#include "periodic.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>

#include "pattern.h"

namespace lockstep::bench {

at::Tensor pattern_block(int rank, c10::ScalarType dtype, std::int64_t offset) {
  return at::arange(offset, offset + kBlock, at::kLong).remainder(kPeriod).add(rank + 1).to(dtype);
}

at::Tensor reduced_block(int ranks, ReduceOp op, c10::ScalarType dtype, std::int64_t offset) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(pattern_block(rank, at::kDouble, offset));
  const auto stack = at::stack(all);
  switch (op) {
    case ReduceOp::AVG:
      return stack.mean(0).to(dtype);
    case ReduceOp::MIN:
      return stack.amin(0).to(dtype);
    case ReduceOp::MAX:
      return stack.amax(0).to(dtype);
    default:
      return stack.sum(0).to(dtype);
  }
}

std::int64_t differing(const at::Tensor& tensor, const at::Tensor& block) {
  const auto whole = tensor.numel() / kBlock * kBlock;
  const auto rest = tensor.numel() - whole;
  const auto blocks = tensor.narrow(0, 0, whole).view({-1, kBlock});
  const auto tail = tensor.narrow(0, whole, rest);
  return blocks.ne(block).sum().item<std::int64_t>() +
         tail.ne(block.narrow(0, 0, rest)).sum().item<std::int64_t>();
}

void refill(const at::Tensor& tensor, const at::Tensor& block) {
  refill(tensor.data_ptr(), tensor.nbytes(), block.data_ptr(), block.nbytes());
}

}  // namespace lockstep::bench
