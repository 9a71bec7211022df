// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/base/error.h>
#include <lockstep/base/world.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/data/loader.h>

namespace lockstep::data {
namespace {

void check_options(const LoaderOptions& options) {
  const bool shuffle = options.shuffle.value_or(false);
  if (options.batch_sampler && (options.batch_size || shuffle || options.sampler || options.seed ||
                                options.drop_last.value_or(false))) {
    throw ArgumentError(
        "make_loader: batch_sampler excludes batch_size, shuffle, sampler, seed and drop_last; it already "
        "says which samples are in which batch");
  }
  if (options.sampler && shuffle) {
    throw ArgumentError("make_loader: sampler excludes shuffle; the sampler already decides the order");
  }
  if (options.sampler && options.seed) {
    throw ArgumentError("make_loader: sampler excludes seed; give the seed to the sampler");
  }
}

std::shared_ptr<Sampler> default_sampler(std::int64_t dataset_size, const LoaderOptions& options) {
  const bool shuffle = options.shuffle.value_or(false);
  const World world = options.distributed ? current_world() : World{};
  if (world.size > 1 || (shuffle && options.seed)) {
    return std::make_shared<DistributedSampler>(dataset_size,
                                                DistributedSamplerOptions{.num_replicas = world.size,
                                                                          .rank = world.rank,
                                                                          .shuffle = shuffle,
                                                                          .seed = options.seed.value_or(0)});
  }
  if (!shuffle) return std::make_shared<SequentialSampler>(dataset_size);
  return std::make_shared<RandomSampler>(dataset_size, RandomSamplerOptions{.generator = options.generator});
}

}  // namespace

std::shared_ptr<BatchSource> make_batch_source(std::int64_t dataset_size, const LoaderOptions& options) {
  check_options(options);
  if (dataset_size <= 0) throw ArgumentError("make_loader: the dataset is empty; there is nothing to load");
  if (options.batch_sampler) return options.batch_sampler;
  auto sampler = options.sampler ? options.sampler : default_sampler(dataset_size, options);
  return std::make_shared<BatchSampler>(std::move(sampler),
                                        BatchSamplerOptions{.batch_size = options.batch_size.value_or(1),
                                                            .drop_last = options.drop_last.value_or(false)});
}

}  // namespace lockstep::data
