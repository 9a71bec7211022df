// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <lockstep/data/loader.h>

// Datasets for tests of loaders.
namespace lockstep::data {

// A dataset whose batches are what a function makes of indices.
template <typename Make>
struct Made {
  std::int64_t count;
  Make make;

  std::int64_t size() const { return count; }
  auto get_batch(const at::Tensor& indices) const { return make(indices); }
};

template <typename Make>
Made<Make> dataset_of(std::int64_t count, Make make) {
  return {count, std::move(make)};
}

inline TensorDataset hundred() { return {at::arange(100), at::arange(100) * 10}; }

template <typename Loader>
std::vector<at::Tensor> one_pass(Loader& loader) {
  std::vector<at::Tensor> batches;
  for (auto& batch : loader) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(batch)>, Batch>) {
      batches.push_back(batch.data);
    } else {
      batches.push_back(batch);
    }
  }
  return batches;
}

}  // namespace lockstep::data
