// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>
#include <lockstep/data/subset.h>

namespace lockstep::data {

/// Where a pass over an iterable dataset begins.
struct PassStart {
  StreamShare share = {};
  std::int64_t skip = 0;  ///< samples of the share that an interrupted pass has yielded
  bool drop_last = false;
};

/// One pass over a dataset: reads its batches, for a loader and its workers.
template <typename Dataset>
class DatasetPass;

template <BatchDataset Dataset>
class DatasetPass<Dataset> {
 public:
  using BatchType = BatchOf<Dataset>;

  DatasetPass(std::shared_ptr<const Dataset> dataset, const PassStart& /*start*/)
      : dataset_(std::move(dataset)) {}

  std::optional<BatchType> read(const at::Tensor& indices) const { return dataset_->get_batch(indices); }
  void skip(const at::Tensor& /*indices*/) const {}

 private:
  std::shared_ptr<const Dataset> dataset_;
};

/// The type of an iterable dataset's samples.
template <IterableDataset Dataset>
using SampleOf =
    std::remove_cvref_t<decltype(*std::declval<const Dataset&>().iter(std::declval<StreamShare>())->next())>;

/// Stacks the tensors of samples, given as the list of tensors of each. Throws ArgumentError when the samples
/// differ in their number of tensors or in a shape.
std::vector<at::Tensor> stack_tensors(const std::vector<std::vector<at::Tensor>>& samples);

/// The batch of the dataset's collate(), or the stacked tensors in the structure of a sample. PyTorch:
/// default_collate.
template <IterableDataset Dataset>
auto collate(const Dataset& dataset, std::vector<SampleOf<Dataset>> samples) {
  if constexpr (requires { dataset.collate(std::move(samples)); }) {
    return dataset.collate(std::move(samples));
  } else {
    static_assert(
        !requires(Dataset& changing) { changing.collate(std::move(samples)); },
        "The dataset's collate() must be const and take a vector of samples.");
    static_assert(
        is_mergeable_batch<SampleOf<Dataset>>,
        "Samples of this type cannot be stacked: next() should return a tensor, a pair, tuple, "
        "array, vector or optional of tensors, or a struct with visit_tensors(); or give the dataset "
        "a collate() function.");
    std::vector<std::vector<at::Tensor>> tensors;
    for (auto& sample : samples) tensors.push_back(tensors_of(sample));
    auto batch = std::move(samples.front());
    replace_tensors(batch, stack_tensors(tensors));
    return batch;
  }
}

// Note [Turns of a stream]
//
// Each call names the positions of its samples in the stream; it waits until all samples before them are
// read, so the stream is read in order by whichever worker has the turn. A call always ends its turn, even if
// the stream throws, because the workers after it wait for that.
template <IterableDataset Dataset>
class DatasetPass<Dataset> {
 public:
  using BatchType =
      decltype(collate(std::declval<const Dataset&>(), std::declval<std::vector<SampleOf<Dataset>>>()));

  DatasetPass(std::shared_ptr<const Dataset> dataset, const PassStart& start)
      : dataset_(std::move(dataset)),
        start_(start),
        next_(start.skip),
        stream_(dataset_->iter(start.share)) {}

  /// The batch of the samples at these positions; shorter, or nullopt, at the end of the stream.
  std::optional<BatchType> read(const at::Tensor& positions) {
    auto samples = read_samples(positions);
    if (samples.empty()) return std::nullopt;
    return collate(*dataset_, std::move(samples));
  }
  /// Ends the stream at these positions, for a worker that cannot read.
  void skip(const at::Tensor& positions) {
    const StreamTurn turn(*this, positions);
    ended_ = true;
  }

 private:
  class StreamTurn {
   public:
    StreamTurn(DatasetPass& pass, const at::Tensor& positions)
        : pass_(pass), lock_(pass.mutex_), end_(positions[0].item<std::int64_t>() + positions.size(0)) {
      pass_.turn_ended_.wait(lock_, [&] { return pass_.next_ == end_ - positions.size(0); });
    }
    ~StreamTurn() {
      pass_.next_ = end_;
      pass_.turn_ended_.notify_all();
    }
    StreamTurn(const StreamTurn&) = delete;
    StreamTurn& operator=(const StreamTurn&) = delete;

   private:
    DatasetPass& pass_;
    std::unique_lock<std::mutex> lock_;
    std::int64_t end_;
  };

  std::vector<SampleOf<Dataset>> read_samples(const at::Tensor& positions) {
    const StreamTurn turn(*this, positions);
    std::vector<SampleOf<Dataset>> samples;
    if (ended_) return samples;
    ended_ = true;  // also after an exception of the stream, as Python's generators end
    skip_to_start();
    while (static_cast<std::int64_t>(samples.size()) < positions.size(0)) {
      auto sample = stream_->next();
      if (!sample.has_value()) {
        if (start_.drop_last) samples.clear();
        return samples;
      }
      samples.push_back(*std::move(sample));
    }
    ended_ = false;
    return samples;
  }

  void skip_to_start() {
    const auto samples = std::exchange(start_.skip, 0);
    if constexpr (requires { stream_->skip(samples); }) {
      if (samples > 0) stream_->skip(samples);
    } else {
      for (std::int64_t i = 0; i < samples && stream_->next().has_value(); ++i) continue;
    }
  }

  std::shared_ptr<const Dataset> dataset_;
  PassStart start_;
  std::mutex mutex_{};
  std::condition_variable turn_ended_{};
  std::int64_t next_;  // the position of the next sample
  bool ended_ = false;
  decltype(std::declval<const Dataset&>().iter(std::declval<StreamShare>())) stream_;
};

}  // namespace lockstep::data
