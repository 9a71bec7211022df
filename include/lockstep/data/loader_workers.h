// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/batch_sampler.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/data/loader_position.h>
#include <lockstep/data/worker_info.h>

namespace lockstep::data {

/// Where the batches of one pass are while nobody has them: all that workers know of a loader's types.
class BatchSlots {
 public:
  virtual ~BatchSlots() = default;
  /// Loads a batch into a slot. Called by workers, for different slots at once.
  virtual void fill(std::size_t slot, const at::Tensor& indices) = 0;
  /// Takes the batch out of a slot, for the loop.
  virtual void hand_out(std::size_t slot) = 0;
};

struct WorkerBoard;
struct PassBoard;

/// The threads that load batches for the passes of a loader. They end, and are joined, with the object. One
/// that has been in get_batch() for longer than the timeout, if there is one, is left to itself instead, and
/// said so: what it uses stays until it returns.
class LoaderWorkers {
 public:
  /// `info`: of the loader; the seed of worker 0.
  LoaderWorkers(const LoaderOptions& options, const WorkerInfo& info);
  ~LoaderWorkers();
  LoaderWorkers(const LoaderWorkers&) = delete;
  LoaderWorkers& operator=(const LoaderWorkers&) = delete;

  /// Batches that a pass may have on the way.
  std::size_t capacity() const;
  /// Whether one of them has outlived a timeout, so that the next pass needs others.
  bool stuck() const;

 private:
  friend class WorkerPass;
  void end() noexcept;

  std::shared_ptr<WorkerBoard> board_;
  std::vector<std::thread> threads_;
};

/// One pass whose batches workers load ahead. For one thread, the loop's.
class WorkerPass {
 public:
  /// Reads the first batches of indices and gives them to the workers.
  WorkerPass(std::shared_ptr<LoaderWorkers> workers, std::shared_ptr<BatchSlots> slots,
             LoaderProgress::Start start);
  /// Returns when no worker is busy with the pass any more, or is stuck.
  ~WorkerPass();
  WorkerPass(const WorkerPass&) = delete;
  WorkerPass& operator=(const WorkerPass&) = delete;

  struct Loaded {
    std::int64_t samples = 0;
    std::exception_ptr
        error{};  ///< what get_batch() threw, saying which worker it was; then no batch was handed out
  };
  /// Waits for the next batch and has it handed out; nothing at the end. Throws TimeoutError naming the
  /// worker and the indices, and what the sampler threw.
  std::optional<Loaded> next();
  /// Whether next() would hand out a batch at once.
  bool next_is_ready() const;

 private:
  std::optional<std::size_t> choose() const;
  std::size_t wait();
  void request(std::size_t slot);

  std::shared_ptr<LoaderWorkers> workers_;
  std::shared_ptr<WorkerBoard> board_;
  std::shared_ptr<PassBoard> pass_;
  std::unique_ptr<BatchStream> stream_;
  BatchSeeds seeds_;
  std::int64_t next_number_;
  std::vector<std::size_t> outstanding_;  // slots, in the order of their batches
  std::exception_ptr stream_error_;
};

}  // namespace lockstep::data
