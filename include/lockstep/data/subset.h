// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

/// Some samples of a dataset, in the order of `indices`; an index may occur several times. Copies share the
/// dataset. PyTorch: torch.utils.data.Subset.
template <BatchDataset Dataset>
class Subset {
 public:
  /// `indices` int64 [n] on the CPU. Throws ArgumentError when one is not in 0 .. dataset.size()-1.
  Subset(Dataset dataset, at::Tensor indices)
      : Subset(std::make_shared<const Dataset>(std::move(dataset)), std::move(indices)) {}
  Subset(Dataset dataset, const std::vector<std::int64_t>& indices)
      : Subset(std::move(dataset), at::tensor(indices, at::kLong)) {}
  /// A subset that shares the dataset with others.
  Subset(std::shared_ptr<const Dataset> dataset, at::Tensor indices)
      : dataset_(std::move(dataset)), indices_(std::move(indices)) {
    check_indices(indices_, static_cast<std::int64_t>(dataset_->size()));
  }

  std::int64_t size() const { return indices_.size(0); }
  /// The dataset's batch of these samples. Throws ArgumentError when an index is out of range.
  auto get_batch(const at::Tensor& indices) const {
    check_indices(indices, size());
    return dataset_->get_batch(indices_.index_select(0, indices));
  }
  const Dataset& dataset() const { return *dataset_; }
  const at::Tensor& indices() const { return indices_; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  at::Tensor indices_;
};

}  // namespace lockstep::data
