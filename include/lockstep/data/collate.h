// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <lockstep/base/error.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/sampler.h>
#include <lockstep/device/pytree.h>

// How single samples become a batch, and the batches of any dataset with random access.
namespace lockstep::data {

/// Whether batches of a type can be merged: a tensor, a pair, tuple, array, vector or optional of such types,
/// or a struct with visit_tensors(), such as Batch. Every tensor's first dimension is the batch.
template <typename T>
inline constexpr bool is_mergeable_batch = HasVisitTensors<T>;
template <>
inline constexpr bool is_mergeable_batch<at::Tensor> = true;
template <typename T>
inline constexpr bool is_mergeable_batch<std::optional<T>> = is_mergeable_batch<T>;
template <typename T>
inline constexpr bool is_mergeable_batch<std::vector<T>> = is_mergeable_batch<T>;
template <typename T, std::size_t N>
inline constexpr bool is_mergeable_batch<std::array<T, N>> = is_mergeable_batch<T>;
template <typename First, typename Second>
inline constexpr bool is_mergeable_batch<std::pair<First, Second>> =
    is_mergeable_batch<First> && is_mergeable_batch<Second>;
template <typename... Ts>
inline constexpr bool is_mergeable_batch<std::tuple<Ts...>> = (is_mergeable_batch<Ts> && ...);

/// The tensors of a batch, in the order of visit_tensors().
template <typename BatchType>
std::vector<at::Tensor> tensors_of(BatchType& batch) {
  std::vector<at::Tensor> tensors;
  visit_tensors(batch, [&tensors](at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

/// Replaces the tensors of a batch; `tensors` has as many as the batch.
template <typename BatchType>
void replace_tensors(BatchType& batch, std::vector<at::Tensor> tensors) {
  auto next = tensors.begin();
  visit_tensors(batch, [&next](at::Tensor& tensor) { tensor = std::move(*next++); });
}

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

/// A dataset whose samples are read without changing it: all but those of which get() is not const.
template <typename D>
concept ConstDataset =
    BatchDataset<D> || requires(const D& dataset, std::size_t index) { dataset.get(index); };

/// The pointer that shares a dataset: to a const one, unless the dataset has only a get() that is not const.
template <MapDataset Dataset>
using SharedDataset = std::shared_ptr<std::conditional_t<ConstDataset<Dataset>, const Dataset, Dataset>>;

/// One sample of a dataset, which is no const object unless its get() is const.
template <SampleDataset Dataset>
auto get_sample(const Dataset& dataset, std::size_t index) {
  if constexpr (requires { dataset.get(index); }) {
    return dataset.get(index);
  } else {
    return const_cast<Dataset&>(dataset).get(index);  // NOLINT: LibTorch's get() is not const
  }
}

/// A batch of a dataset: of its get_batch(), or of the samples of its get(). `where` goes to a get_batch() that
/// takes a place. Throws ArgumentError when an index of a sample is out of range, or there is none.
template <MapDataset Dataset>
auto get_batch_at(const Dataset& dataset, const at::Tensor& indices, std::source_location where) {
  if constexpr (requires { dataset.get_batch(indices, where); }) {
    return dataset.get_batch(indices, where);
  } else if constexpr (BatchDataset<Dataset>) {
    return dataset.get_batch(indices);
  } else {
    check_indices(indices, size_of_dataset(dataset), where);
    if (indices.size(0) == 0) throw ArgumentError("get_batch: there is no index; pass the index of a sample");
    const auto* const index = indices.const_data_ptr<std::int64_t>();
    std::vector<decltype(get_sample(dataset, std::size_t{}))> samples;
    for (std::int64_t i = 0; i < indices.size(0); ++i)
      samples.push_back(get_sample(dataset, static_cast<std::size_t>(index[i])));
    return collate(dataset, std::move(samples));
  }
}

/// The type of a dataset's batches, which a loader over it yields.
template <MapDataset Dataset>
using BatchOf = std::remove_cvref_t<decltype(get_batch_at(std::declval<const Dataset&>(), at::Tensor(),
                                                          std::source_location()))>;

}  // namespace lockstep::data
