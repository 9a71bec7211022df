// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <lockstep/data/dataset.h>
#include <lockstep/data/loader_position.h>
#include <lockstep/data/loader_workers.h>
#include <lockstep/device/find_tensors.h>
#include <lockstep/device/transfer.h>

namespace lockstep::data {

/// What a loader over a dataset yields.
template <BatchDataset Dataset>
using BatchOf = std::remove_cvref_t<decltype(std::declval<const Dataset&>().get_batch(at::Tensor()))>;

/// A batch on its way to the loop.
template <typename BatchType>
struct LoadedBatch {
  BatchType batch;
  std::optional<c10::Event> made{};  ///< what whoever uses it has to wait for, if it lies on a device
};

/// Has the dataset make a batch, in pinned memory if asked.
template <BatchDataset Dataset>
LoadedBatch<BatchOf<Dataset>> load_batch(const Dataset& dataset, const at::Tensor& indices, bool pins) {
  LoadedBatch<BatchOf<Dataset>> loaded{.batch = dataset.get_batch(indices)};
  if constexpr (device::Findable<BatchOf<Dataset>>) {
    if (pins) visit_tensors(loaded.batch, [](at::Tensor& tensor) { tensor = pin_memory(tensor); });
  }
  return loaded;
}

/// The batches of one pass that workers make of a dataset.
template <BatchDataset Dataset>
class DatasetSlots : public BatchSlots {
 public:
  using Loaded = LoadedBatch<BatchOf<Dataset>>;

  DatasetSlots(std::shared_ptr<const Dataset> dataset, std::size_t count, bool pins)
      : dataset_(std::move(dataset)), slots_(count), pins_(pins) {}

  void fill(std::size_t slot, const at::Tensor& indices) override {
    auto loaded = load_batch(*dataset_, indices, pins_);
    if constexpr (device::Findable<BatchOf<Dataset>>) loaded.made = mark_tensors(loaded.batch);
    slots_[slot].emplace(std::move(loaded));
  }
  void hand_out(std::size_t slot) override {
    handed_out_.emplace(std::move(*slots_[slot]));
    slots_[slot].reset();
  }
  /// What was handed out last, once.
  Loaded take() {
    Loaded loaded = std::move(*handed_out_);
    handed_out_.reset();
    return loaded;
  }

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::vector<std::optional<Loaded>> slots_;
  std::optional<Loaded> handed_out_{};
  bool pins_;
};

/// What a pass needs of its loader, beside where it starts.
template <BatchDataset Dataset>
struct PassPlan {
  std::shared_ptr<const Dataset> dataset;
  std::int64_t shares = 1;  ///< of BatchSource
  bool pins = false;
  std::shared_ptr<const TransferStream> transfer{};  ///< where batches go; none: they stay
  std::shared_ptr<LoaderWorkers> workers{};          ///< none: each batch is loaded when it is asked for
};

/// One pass over a loader. For one thread.
template <BatchDataset Dataset>
class LoaderPass {
 public:
  LoaderPass(PassPlan<Dataset> plan, LoaderProgress::Start start) : plan_(std::move(plan)) {
    if (!plan_.workers) {
      stream_ = std::move(start.stream);
      return;
    }
    slots_ = std::make_shared<DatasetSlots<Dataset>>(plan_.dataset, plan_.workers->capacity(), plan_.pins);
    workers_ = std::make_unique<WorkerPass>(plan_.workers, slots_, std::move(start));
  }

  /// The next batch in its place, after the one before is let go; nothing at the end.
  void advance(LoaderProgress& progress) {
    batch_.reset();
    auto next = staged_ ? std::exchange(staged_, std::nullopt) : load();
    if (!next) return progress.finish();
    progress.count(next->samples * plan_.shares);
    if (next->error) std::rethrow_exception(next->error);
    deliver(*next->loaded);
    batch_.emplace(std::move(next->loaded->batch));
    stage();
  }
  std::optional<BatchOf<Dataset>>& batch() { return batch_; }

 private:
  using Loaded = LoadedBatch<BatchOf<Dataset>>;
  struct Next {
    std::int64_t samples = 0;
    std::exception_ptr error{};
    std::optional<Loaded> loaded{};
  };

  std::optional<Next> load() { return workers_ ? load_from_workers() : load_here(); }

  std::optional<Next> load_from_workers() {
    auto done = workers_->next();
    if (!done) return std::nullopt;
    Next next{.samples = done->samples, .error = std::move(done->error)};
    if (!next.error) send(next.loaded.emplace(slots_->take()));
    return next;
  }

  std::optional<Next> load_here() {
    const at::Tensor indices = stream_->next();
    if (!indices.defined()) return std::nullopt;
    Next next{.samples = indices.numel()};
    try {
      send(next.loaded.emplace(load_batch(*plan_.dataset, indices, plan_.pins)));
    } catch (...) {
      next.error = std::current_exception();
    }
    return next;
  }

  void send(Loaded& loaded) const {
    if constexpr (device::Findable<BatchOf<Dataset>>) {
      if (plan_.transfer) loaded.made = plan_.transfer->send(loaded.batch, loaded.made);
    }
  }
  static void deliver(Loaded& loaded) {
    if constexpr (device::Findable<BatchOf<Dataset>>) {
      if (loaded.made) take_over(loaded.batch, *loaded.made);
    }
  }
  // The next batch is copied to the device while the loop's step runs.
  void stage() {
    if (plan_.transfer && workers_ && workers_->next_is_ready()) staged_ = load();
  }

  PassPlan<Dataset> plan_;
  std::unique_ptr<BatchStream> stream_{};           // without workers
  std::shared_ptr<DatasetSlots<Dataset>> slots_{};  // with them
  std::unique_ptr<WorkerPass> workers_{};
  std::optional<BatchOf<Dataset>> batch_{};
  std::optional<Next> staged_{};
};

}  // namespace lockstep::data
