// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <lockstep/data/batch_sampler.h>
#include <lockstep/data/sampler.h>

namespace lockstep::data {

/// PyTorch: the arguments of DataLoader, in its order.
struct LoaderOptions {
  std::optional<std::int64_t> batch_size = {};  ///< samples a batch, on this rank; not given: 1
  std::optional<bool> shuffle = {};             ///< a new order each epoch; not given: false
  /// Which samples, in which order; excludes shuffle and seed, and the loader then adds no sharding of its
  /// own.
  std::shared_ptr<Sampler> sampler = {};
  /// Whole batches of indices; excludes batch_size, shuffle, sampler, seed and drop_last.
  std::shared_ptr<BatchSource> batch_sampler = {};
  /// Threads that load batches ahead of the loop; 0: each batch is loaded when it is asked for. get_batch()
  /// is then called by several threads at once. Any number gives the same batches in the same order.
  int num_workers = 0;
  /// Batches are put into pinned memory, from which they reach a device fast. Without an accelerator it warns
  /// and does nothing.
  bool pin_memory = false;
  std::optional<bool> drop_last = {};  ///< leave out a last batch that would be smaller; not given: false
  /// How long to wait for a batch from the workers; 0: as long as it takes. Needs workers.
  std::chrono::milliseconds timeout{0};
  /// Called in each worker with its number, 0 .. num_workers-1, before it loads. Not called without workers.
  std::function<void(int)> worker_init_fn = {};
  /// The order of epoch e follows from seed + e, as DistributedSampler's does; used when shuffling. Not
  /// given: 0 when there are several ranks; on one rank each epoch's order comes from `generator`.
  std::optional<std::int64_t> seed = {};
  /// Where a shuffle on one rank, and each epoch's base seed, are drawn from. Not given: LibTorch's default
  /// CPU generator.
  std::optional<at::Generator> generator = {};
  /// Batches that each worker is ahead; not given: 2. At most num_workers * prefetch_factor batches wait.
  /// Needs workers.
  std::optional<int> prefetch_factor = {};
  bool persistent_workers = false;  ///< workers stay from one pass to the next. Needs workers.
  /// False: batches come as they are ready, which no two runs need to do alike. With workers only.
  bool in_order = true;
  /// Batches arrive on this device, by way of pinned memory; with workers the next one is copied while the
  /// step runs. Not given, or the CPU: batches stay where the dataset makes them. In Python the loop says
  /// `batch.to(device, non_blocking=True)`.
  std::optional<c10::Device> device = {};
  /// When the current world has several ranks, each gets its own share, padded to the same number of samples
  /// by DistributedSampler. False: this rank sees everything.
  bool distributed = true;
};

/// The batch sampler that a loader over `dataset_size` samples uses under `options`: an order, sharded over
/// the ranks of the current world, in batches. Throws ArgumentError when the dataset is empty, when
/// batch_size is not positive, or when two options contradict each other.
std::shared_ptr<BatchSource> make_batch_source(std::int64_t dataset_size, const LoaderOptions& options);

}  // namespace lockstep::data
