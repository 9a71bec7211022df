// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <typeinfo>

namespace lockstep::data {

/// What a worker of a loader knows of itself. PyTorch: `torch.utils.data.get_worker_info()`.
struct WorkerInfo {
  int id = 0;              ///< 0 .. num_workers-1
  int num_workers = 0;     ///< of this loader
  std::uint64_t seed = 0;  ///< what worker_init_fn() draws from: the base seed + id
  /// What get_batch() draws from: decided by the batch and not by the worker, so that neither their number
  /// nor their pace matters. Seed generators of your own with it; LibTorch's operators draw from one already.
  std::uint64_t batch_seed = 0;

  /// The dataset of the loader; shared by all workers. Throws ArgumentError when it is of another type.
  template <typename Dataset>
  const Dataset& dataset() const {
    return *static_cast<const Dataset*>(dataset_of(typeid(Dataset)));
  }

  const void* dataset_address = nullptr;
  const std::type_info* dataset_type = nullptr;

 private:
  const void* dataset_of(const std::type_info& type) const;
};

/// The worker that the calling thread is; nothing in any other thread.
std::optional<WorkerInfo> get_worker_info();

}  // namespace lockstep::data
