// SPDX-License-Identifier: BSD-3-Clause
#include <thread>

#include <lockstep/base/log.h>
#include <lockstep/base/world.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/sampler.h>

#include "base/throw_error.h"
#include "data/worker_pool.h"

namespace lockstep::data {
namespace {

void check_options(const LoaderOptions& options) {
  const bool shuffle = options.shuffle.value_or(false);
  if (options.batch_sampler && (options.batch_size || shuffle || options.sampler || options.seed ||
                                options.drop_last.value_or(false))) {
    throw ArgumentError(
        "make_loader: batch_sampler excludes batch_size, shuffle, sampler, seed and drop_last; it already "
        "determines the batches");
  }
  if (options.sampler && shuffle) {
    throw ArgumentError("make_loader: sampler excludes shuffle; the sampler already decides the order");
  }
  if (options.sampler && options.seed) {
    throw ArgumentError("make_loader: sampler excludes seed; give the seed to the sampler");
  }
}

void check_worker_options(const LoaderOptions& options) {
  if (options.num_workers < 0) {
    throw_error<ArgumentError>(
        "make_loader: num_workers should be non-negative, but it is {}; 0 loads batches without workers",
        options.num_workers);
  }
  if (options.timeout.count() < 0) throw ArgumentError("make_loader: timeout should be non-negative");
  if (options.prefetch_factor && *options.prefetch_factor <= 0) {
    throw_error<ArgumentError>("make_loader: prefetch_factor should be positive, but it is {}",
                               *options.prefetch_factor);
  }
  if (options.num_workers > 0) return;
  const char* const option = options.prefetch_factor        ? "prefetch_factor"
                             : options.persistent_workers   ? "persistent_workers"
                             : options.timeout.count() != 0 ? "timeout"
                                                            : nullptr;
  if (option != nullptr) {
    throw_error<ArgumentError>("make_loader: {} needs num_workers > 0", option);
  }
}

void warn_about_many_workers(int num_workers) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (cores == 0 || num_workers <= cores) return;
  log(LogLevel::warning, fmt::format("make_loader: {} workers, but this process may use {} cores; more "
                                     "workers than cores slow loading down",
                                     num_workers, cores));
}

std::shared_ptr<const TransferStream> make_transfer(const std::optional<c10::Device>& device) {
  if (!device || device->is_cpu()) return nullptr;
  return std::make_shared<const TransferStream>(*device);
}

bool checked_pin_memory(const LoaderOptions& options) {
  if (!options.pin_memory || can_pin_memory()) return options.pin_memory;
  log(LogLevel::warning, "make_loader: pin_memory is on, but no accelerator is found; memory is not pinned");
  return false;
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

LoaderBase::LoaderBase(std::int64_t dataset_size, const LoaderOptions& options,
                       const std::type_info& batch_type, bool is_pytree)
    : options_((check_worker_options(options), options)),
      batch_sampler_(make_batch_source(dataset_size, options)),
      progress_(options.generator, options.seed, options.persistent_workers),
      pin_memory_(checked_pin_memory(options)),
      transfer_(make_transfer(options.device)) {
  pin_memory_ = pin_memory_ || transfer_;
  if (pin_memory_ && !is_pytree) {
    throw_error<ArgumentError>(
        "make_loader: pin_memory and device cannot find the tensors in a batch of type {}; add a "
        "visit_tensors() member or specialize lockstep::TensorVisitor",
        type_name(batch_type));
  }
  warn_about_many_workers(options.num_workers);
}

void LoaderBase::set_epoch(std::int64_t epoch) {
  progress_.set_epoch(epoch);
  batch_sampler_->set_epoch(epoch);
}

LoaderPosition LoaderBase::position() const {
  auto position = progress_.position();
  if (position.batches > 0 && options_.num_workers > 0 && !options_.in_order) {
    throw ArgumentError(
        "loader: with in_order = false a position in the middle of a pass is not defined; save between "
        "passes, or leave in_order on");
  }
  return position;
}

void LoaderBase::seek(const LoaderPosition& position) {
  batch_sampler_->set_epoch(position.epoch);
  progress_.seek(position);
}

std::shared_ptr<LoaderWorkers> LoaderBase::workers(const LoaderProgress::Start& start, const void* dataset,
                                                   const std::type_info& type) {
  if (options_.num_workers == 0) return nullptr;
  if (persistent_workers_ && !persistent_workers_->stuck()) return persistent_workers_;
  auto workers = std::make_shared<LoaderWorkers>(options_, WorkerInfo{.num_workers = options_.num_workers,
                                                                      .seed = start.seeds.base,
                                                                      .dataset_address = dataset,
                                                                      .dataset_type = &type});
  if (options_.persistent_workers) persistent_workers_ = workers;
  return workers;
}

}  // namespace lockstep::data
