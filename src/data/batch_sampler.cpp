// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#include <lockstep/data/sampler.h>

#include "base/throw_error.h"

namespace lockstep::data {
namespace {

class BatchedStream : public BatchStream {
 public:
  BatchedStream(std::unique_ptr<IndexStream> indices, BatchSamplerOptions options)
      : indices_(std::move(indices)), options_(options) {}

  at::Tensor next() override {
    if (ended_) return {};
    auto batch = at::empty({options_.batch_size}, at::kLong);
    const auto count = indices_->read(
        {batch.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(options_.batch_size)});
    ended_ = count < options_.batch_size;
    if (!ended_) return batch;
    if (count == 0 || options_.drop_last) return {};
    return batch.narrow(0, 0, count);
  }

 private:
  std::unique_ptr<IndexStream> indices_;
  BatchSamplerOptions options_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<BatchStream> BatchSource::iter_from(std::int64_t batches, std::int64_t /*samples*/) const {
  auto stream = iter();
  for (std::int64_t i = 0; i < batches && stream->next().defined(); ++i) {
  }
  return stream;
}

BatchSampler::BatchSampler(std::shared_ptr<Sampler> sampler, BatchSamplerOptions options)
    : sampler_(std::move(sampler)), options_(options) {
  if (!sampler_) throw ArgumentError("BatchSampler: no sampler was given (null pointer)");
  if (options_.batch_size <= 0) {
    throw_error<ArgumentError>("BatchSampler: batch_size should be a positive number, but it is {}",
                               options_.batch_size);
  }
}

std::unique_ptr<BatchStream> BatchSampler::iter() const {
  return std::make_unique<BatchedStream>(sampler_->iter(), options_);
}

std::unique_ptr<BatchStream> BatchSampler::iter_from(std::int64_t /*batches*/, std::int64_t samples) const {
  return std::make_unique<BatchedStream>(sampler_->iter_from(samples), options_);
}

std::int64_t BatchSampler::size() const {
  const auto samples = sampler_->size();
  return (options_.drop_last ? samples : samples + options_.batch_size - 1) / options_.batch_size;
}

}  // namespace lockstep::data
