// SPDX-License-Identifier: BSD-3-Clause
#include <thread>

#include <ATen/ops/arange.h>

#include <lockstep/base/log.h>
#include <lockstep/data/loader.h>

#include "base/caller_place.h"
#include "base/launched_rank.h"
#include "base/rank_progress.h"
#include "base/throw_error.h"
#include "data/worker_pool.h"

namespace lockstep::data {
namespace {

void check_worker_options(const DataLoaderOptions& options) {
  if (options.num_workers < 0) {
    throw_error<ArgumentError>(
        "DataLoader: num_workers should be non-negative, but it is {}; 0 loads batches without workers",
        options.num_workers);
  }
  if (options.prefetch_factor && *options.prefetch_factor <= 0) {
    throw_error<ArgumentError>("DataLoader: prefetch_factor should be positive, but it is {}",
                               *options.prefetch_factor);
  }
  if (options.num_workers > 0) return;
  const char* const option = options.prefetch_factor      ? "prefetch_factor"
                             : options.persistent_workers ? "persistent_workers"
                             : options.timeout            ? "timeout"
                                                          : nullptr;
  if (option != nullptr) {
    throw_error<ArgumentError>("DataLoader: {} needs num_workers > 0", option);
  }
}

void warn_about_many_workers(int num_workers) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (cores == 0 || num_workers <= cores) return;
  log(LogLevel::warning, fmt::format("DataLoader: {} workers, but this process may use {} cores; more "
                                     "workers than cores slow loading down",
                                     num_workers, cores));
}

std::shared_ptr<const TransferStream> make_transfer(const std::optional<c10::Device>& device) {
  if (!device || device->is_cpu()) return nullptr;
  return std::make_shared<const TransferStream>(*device);
}

bool checked_pin_memory(const DataLoaderOptions& options) {
  if (!options.pin_memory || can_pin_memory()) return options.pin_memory;
  if (current_world().local_rank == 0) {
    log(LogLevel::warning, "DataLoader: pin_memory is on, but no accelerator is found; memory is not pinned");
  }
  return false;
}

// Whether the loader shares the samples itself.
bool is_shared(const DataLoaderOptions& options) {
  return options.distributed && !options.sampler && !options.batch_sampler;
}

// The positions of the samples in the stream of an iterable dataset, without end.
class StreamPositions : public BatchStream {
 public:
  StreamPositions(std::int64_t first, std::int64_t batch_size) : next_(first), batch_size_(batch_size) {}
  at::Tensor next() override {
    const auto first = std::exchange(next_, next_ + batch_size_);
    return at::arange(first, next_, at::kLong);
  }

 private:
  std::int64_t next_;
  std::int64_t batch_size_;
};

class StreamBatches : public BatchSource {
 public:
  StreamBatches(std::int64_t batch_size, const World& made_in) : batch_size_(batch_size), made_in_(made_in) {
    if (batch_size > 0) return;
    throw_error<ArgumentError>("DataLoader: batch_size should be positive, but it is {}", batch_size);
  }
  std::unique_ptr<BatchStream> iter() const override { return iter_from(0, 0); }
  std::unique_ptr<BatchStream> iter_from(std::int64_t batches, std::int64_t samples) const override {
    if (samples != batches * batch_size_ * shares()) {
      throw_error<ArgumentError>(
          "loader: the position has {} samples after {} batches on each rank, which are not the {} ranks and "
          "the batch size of {} of this loader; a pass over an iterable dataset continues only with the same "
          "ones",
          samples, batches, shares(), batch_size_);
    }
    return std::make_unique<StreamPositions>(batches * batch_size_, batch_size_);
  }
  std::int64_t shares() const override { return world_since(made_in_).size; }
  std::int64_t size() const override {
    throw ArgumentError("loader: the number of batches of an iterable dataset is not known");
  }

 private:
  std::int64_t batch_size_;
  World made_in_;
};

std::shared_ptr<BatchSource> make_stream_source(const DataLoaderOptions& options) {
  const char* const option = options.shuffle.value_or(false) ? "shuffle"
                             : options.sampler               ? "sampler"
                             : options.batch_sampler         ? "batch_sampler"
                             : options.seed                  ? "seed"
                                                             : nullptr;
  if (option != nullptr) {
    throw_error<ArgumentError>("DataLoader: an iterable dataset determines its own order, which excludes {}",
                               option);
  }
  return std::make_shared<StreamBatches>(options.batch_size.value_or(1),
                                         options.distributed ? shared_world("DataLoader") : World{});
}

}  // namespace

LoaderBase::LoaderBase(std::optional<std::int64_t> dataset_size, const DataLoaderOptions& options,
                       const std::type_info& batch_type, bool is_pytree, std::source_location where)
    : LoaderBase(CallerPlace(where), dataset_size, options, batch_type, is_pytree) {
  where_ = where;
}

LoaderBase::LoaderBase(const CallerPlace& /*place*/, std::optional<std::int64_t> dataset_size,
                       const DataLoaderOptions& options, const std::type_info& batch_type, bool is_pytree)
    : options_((check_worker_options(options), options)),
      batch_sampler_(dataset_size ? make_batch_source(*dataset_size, options) : make_stream_source(options)),
      made_in_(is_shared(options) ? std::optional(current_world()) : std::nullopt),
      progress_(options.generator, options.seed, options.persistent_workers),
      pin_memory_(checked_pin_memory(options)),
      transfer_(make_transfer(options.device)) {
  pin_memory_ = pin_memory_ || transfer_;
  if (pin_memory_ && !is_pytree) {
    throw_error<ArgumentError>(
        "DataLoader: pin_memory and device cannot find the tensors in a batch of type {}; add a "
        "visit_tensors() member or specialize lockstep::TensorVisitor",
        type_name(batch_type));
  }
  warn_about_many_workers(options.num_workers);
}

const BatchSampler& LoaderBase::own_batches(const char* call) const {
  if (const auto* batches = dynamic_cast<const BatchSampler*>(batch_sampler_.get())) return *batches;
  throw_error<ArgumentError>(
      "loader: {}: the batches come from {}; only a BatchSampler has it", call,
      options_.batch_sampler ? "the batch_sampler of the options" : "an iterable dataset");
}

std::int64_t LoaderBase::batch_size() const {
  return options_.batch_sampler ? own_batches("batch_size()").batch_size() : options_.batch_size.value_or(1);
}

bool LoaderBase::drop_last() const {
  return options_.batch_sampler ? own_batches("drop_last()").drop_last() : options_.drop_last.value_or(false);
}

LoaderSampler LoaderBase::sampler() { return {*this, own_batches("sampler()").sampler()}; }

void LoaderSampler::set_epoch(std::int64_t epoch) const { loader_->set_epoch(epoch); }

void LoaderBase::set_epoch(std::int64_t epoch) {
  if (const auto& progress = current_progress()) progress->epoch = epoch;
  progress_.set_epoch(epoch);
  batch_sampler_->set_epoch(epoch);
}

LoaderPosition LoaderBase::position(std::source_location where) const {
  const CallerPlace place(where);
  auto position = progress_.position();
  if (position.batches > 0 && options_.num_workers > 0 && !options_.in_order) {
    throw ArgumentError(
        "loader: with in_order = false a position in the middle of a pass is not defined; save between "
        "passes, or leave in_order on");
  }
  return position;
}

void LoaderBase::seek(const LoaderPosition& position, std::source_location where) {
  const CallerPlace place(where);
  batch_sampler_->set_epoch(position.epoch);
  progress_.seek(position);
}

void LoaderBase::require_can_shrink() const {
  const auto refuse = [](const std::string& why) {
    throw_error<ArgumentError>(
        "loader: {}, so the ranks that are left after a loss could not share out the rest of an epoch; {}",
        why,
        "use a loader over a dataset with size() that shares the samples itself, or a DistributedSampler without "
        "num_replicas and rank, or run it with --on-loss replace");
  };
  const auto* const batches = dynamic_cast<const BatchSampler*>(batch_sampler_.get());
  if (batches == nullptr) {
    refuse(options_.batch_sampler ? "its batches come from a batch_sampler of the program"
                                  : "its dataset is iterable and has no position that ranks share");
  }
  const auto* const sampler = dynamic_cast<const DistributedSampler*>(&batches->sampler());
  if (sampler == nullptr) refuse("its sampler is no DistributedSampler");
  if (!sampler->is_of_current_world())
    refuse("its DistributedSampler has num_replicas or rank of the program, which would stay as they are");
  if (options_.num_workers > 0 && !options_.in_order) refuse("it has in_order = false");
}

bool LoaderBase::continues_pass_of_other_ranks() const {
  const auto* const batches = dynamic_cast<const BatchSampler*>(batch_sampler_.get());
  if (batches == nullptr) return false;
  const auto position = progress_.position();
  return position.samples != position.batches * batches->batch_size() * batches->shares();
}

BatchLoading LoaderBase::loading(const BatchSeeds& pass) const {
  BatchLoading loading{.pin = pin_memory_};
  if (options_.augmentation_seed) {
    loading.seeds = {.base = *options_.augmentation_seed, .epoch = pass.epoch, .passes = pass.passes};
  }
  return loading;
}

PassStart LoaderBase::pass_start(const LoaderProgress::Start& start) const {
  const CallerPlace place(where_);
  const auto world = made_in_ ? current_world() : World{};
  if (made_in_) require_same_world("DataLoader", world_since(*made_in_));
  return {.share = {.rank = world.rank, .num_replicas = world.size, .epoch = start.seeds.epoch},
          .skip = start.first_batch * options_.batch_size.value_or(1),
          .drop_last = options_.drop_last.value_or(false),
          .where = where_};
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
