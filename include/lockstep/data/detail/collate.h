// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <lockstep/data/dataset.h>
#include <lockstep/data/subset.h>
#include <lockstep/device/pytree.h>

// How single samples become a batch.
namespace lockstep::data {

/// Stacks the tensors of samples, given as the list of tensors of each. Throws ArgumentError when the samples
/// differ in their number of tensors or in a shape.
std::vector<at::Tensor> stack_tensors(const std::vector<std::vector<at::Tensor>>& samples);

/// Numbers as a tensor: integers as int64, bool as bool, others in their own type.
template <typename Number>
at::Tensor stack_numbers(const std::vector<Number>& numbers) {
  if constexpr (std::is_floating_point_v<Number>) {
    return at::tensor(numbers);
  } else {
    const auto stacked = at::tensor(std::vector<std::int64_t>(numbers.begin(), numbers.end()), at::kLong);
    return std::is_same_v<Number, bool> ? stacked.to(at::kBool) : stacked;
  }
}

/// A sample that std::get() takes apart.
template <typename Sample>
concept TupleSample = requires { std::tuple_size<Sample>::value; };

/// Stacks tensors and numbers, in the structure of a sample. PyTorch: default_collate.
template <typename Sample>
auto default_collate(std::vector<Sample> samples) {
  if constexpr (is_mergeable_batch<Sample>) {
    std::vector<std::vector<at::Tensor>> tensors;
    for (auto& sample : samples) tensors.push_back(tensors_of(sample));
    auto batch = std::move(samples.front());
    replace_tensors(batch, stack_tensors(tensors));
    return batch;
  } else if constexpr (std::is_arithmetic_v<Sample>) {
    return stack_numbers(samples);
  } else if constexpr (TupleSample<Sample>) {
    const auto column = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
      std::vector<std::remove_cvref_t<std::tuple_element_t<I, Sample>>> values;
      for (auto& sample : samples) values.push_back(std::get<I>(sample));
      return default_collate(std::move(values));
    };
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::tuple(column(std::integral_constant<std::size_t, I>())...);
    }(std::make_index_sequence<std::tuple_size_v<Sample>>());
  } else if constexpr (requires(Sample& sample) { sample.data, sample.target; }) {
    std::vector<decltype(Sample::data)> data;
    std::vector<decltype(Sample::target)> targets;
    for (auto& sample : samples) {
      data.push_back(sample.data);
      targets.push_back(sample.target);
    }
    return Batch{.data = default_collate(std::move(data)), .target = default_collate(std::move(targets))};
  } else {
    static_assert(
        !sizeof(Sample),
        "Samples of this type cannot be stacked: get() or next() should return a tensor, a number, a "
        "tuple or pair of them, an array, vector or optional of tensors, or a struct with data and target "
        "or with visit_tensors(); or give the dataset a collate() function.");
  }
}

/// The batch of the dataset's collate(), or of default_collate().
template <typename Dataset, typename Sample>
auto collate(const Dataset& dataset, std::vector<Sample> samples) {
  if constexpr (requires { dataset.collate(std::move(samples)); }) {
    return dataset.collate(std::move(samples));
  } else {
    static_assert(
        !requires(Dataset& changing) { changing.collate(std::move(samples)); },
        "The dataset's collate() must be const and take a vector of samples.");
    return default_collate(std::move(samples));
  }
}

}  // namespace lockstep::data
