// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/microbatches.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "base/throw_error.h"

namespace lockstep::pipelining {

using Tensors = AnyPyTree::Tensors;

namespace {

void check_dim(const at::Tensor& tensor, std::int64_t dim, const char* what) {
  if (dim < -tensor.dim() || dim >= tensor.dim())
    throw_error<ArgumentError>("{} of {} dimensions has no dimension chunk_dim = {}", what, tensor.dim(),
                               dim);
}

}  // namespace

std::vector<AnyPyTree> split_batch(const AnyPyTree& batch, int count, std::int64_t dim, const char* what) {
  std::vector<Tensors> parts(static_cast<std::size_t>(count));
  for (const auto& tensor : batch.tensors()) {
    check_dim(tensor, dim, what);
    if (tensor.size(dim) % count != 0 || tensor.size(dim) == 0) {
      throw_error<ArgumentError>("{} of size {} in dimension {} cannot be split into {} equal micro-batches",
                                 what, tensor.size(dim), dim, count);
    }
    const auto chunks = tensor.tensor_split(count, dim);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].push_back(chunks[i]);
  }
  std::vector<AnyPyTree> batches;
  for (const auto& part : parts) batches.push_back(batch.with_tensors(part));
  return batches;
}

AnyPyTree detached(const AnyPyTree& value) {
  auto tensors = value.tensors();
  for (auto& tensor : tensors) tensor = tensor.detach();
  return value.try_with_tensors(tensors).value_or(AnyPyTree(tensors));
}

AnyPyTree merge_batches(const std::vector<AnyPyTree>& batches, std::int64_t dim) {
  std::vector<Tensors> parts(batches.front().tensors().size());  // [tensor][micro-batch]
  for (const auto& batch : batches) {
    const auto tensors = batch.tensors();
    if (tensors.size() != parts.size())
      throw_error<ArgumentError>("the last stage returns {} tensors for one micro-batch and {} for another",
                                 parts.size(), tensors.size());
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].push_back(tensors[i]);
  }
  Tensors merged;
  for (const auto& part : parts) {
    const bool is_scalar = part.front().dim() == 0;
    if (!is_scalar) check_dim(part.front(), dim, "an output");
    merged.push_back(is_scalar ? at::stack(part) : at::cat(part, dim));
  }
  return batches.front().with_tensors(merged);
}

}  // namespace lockstep::pipelining
