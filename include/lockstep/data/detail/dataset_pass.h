// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/mutex.h>
#include <lockstep/data/collate.h>
#include <lockstep/data/dataset.h>

// How a loader reads the batches of a dataset.
namespace lockstep::data {

/// Where a pass over an iterable dataset begins.
struct PassStart {
  StreamShare share = {};
  std::int64_t skip = 0;  ///< samples of the share that an interrupted pass has yielded
  bool drop_last = false;
  std::source_location where = {};  ///< of the loader
};

/// One pass over a dataset: reads its batches, for a loader and its workers.
template <typename Dataset>
class DatasetPass;

template <MapDataset Dataset>
class DatasetPass<Dataset> {
 public:
  using BatchType = BatchOf<Dataset>;

  DatasetPass(std::shared_ptr<const Dataset> dataset, const PassStart& start)
      : dataset_(std::move(dataset)), where_(start.where) {}

  std::optional<BatchType> read(const at::Tensor& indices) const {
    return get_batch_at(*dataset_, indices, where_);
  }
  void skip(const at::Tensor& /*indices*/) const {}

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::source_location where_;
};

/// The type of an iterable dataset's samples.
template <IterableDataset Dataset>
using SampleOf =
    std::remove_cvref_t<decltype(*std::declval<const Dataset&>().iter(std::declval<StreamShare>())->next())>;

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
  class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) StreamTurn {
   public:
    StreamTurn(DatasetPass& pass, const at::Tensor& positions)
        LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(pass.mutex_))
        : pass_(pass), lock_(pass.mutex_), end_(positions[0].item<std::int64_t>() + positions.size(0)) {
      pass_.turn_ended_.wait(pass_.mutex_, [&]() LOCKSTEP_REQUIRES(pass_.mutex_) {
        return pass_.next_ == end_ - positions.size(0);
      });
    }
    ~StreamTurn() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) {
      pass_.next_ = end_;
      pass_.turn_ended_.notify_all();
    }
    StreamTurn(const StreamTurn&) = delete;
    StreamTurn& operator=(const StreamTurn&) = delete;

   private:
    DatasetPass& pass_;
    MutexLock lock_;
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

  void skip_to_start() LOCKSTEP_REQUIRES(mutex_) {
    const auto samples = std::exchange(start_.skip, 0);
    if constexpr (requires { stream_->skip(samples); }) {
      if (samples > 0) stream_->skip(samples);
    } else {
      for (std::int64_t i = 0; i < samples && stream_->next().has_value(); ++i) continue;
    }
  }

  std::shared_ptr<const Dataset> dataset_;
  PassStart start_ LOCKSTEP_GUARDED_BY(mutex_);
  Mutex mutex_{};
  Condition turn_ended_{};
  std::int64_t next_ LOCKSTEP_GUARDED_BY(mutex_);  // the position of the next sample
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  decltype(std::declval<const Dataset&>().iter(std::declval<StreamShare>())) stream_
      LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::data
