// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <source_location>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/comm/process_group.h>

namespace lockstep {

class Joinable;

/// Options of Join under PyTorch's names.
struct JoinOptions {
  /// True: gradient sums are divided by the size of the group, so that every sample has the same weight.
  /// False: by the number of ranks that have data.
  bool divide_by_initial_world_size = true;
  /// False: the scope has no effect.
  bool enable = true;
  /// True: when the first rank runs out of data, it throws Error at the end of its scope, and every other
  /// rank in its next iteration. Needed if the loop makes collective calls that Join cannot repeat: those
  /// that no joinable makes.
  bool throw_on_early_termination = false;
};

/// One of the joinables of a Join: a reference, a pointer, a shared_ptr or a module holder, such as a
/// DistributedDataParallel.
class JoinableRef {
 public:
  JoinableRef(Joinable& joinable) : joinable_(&joinable) {}
  JoinableRef(Joinable* joinable) : joinable_(joinable) {}
  template <typename Pointer>
    requires requires(const Pointer& pointer) {
      { std::to_address(pointer.ptr()) } -> std::convertible_to<Joinable*>;
    }
  JoinableRef(const Pointer& holder) : joinable_(std::to_address(holder.ptr())) {}
  template <std::derived_from<Joinable> Pointee>
  JoinableRef(const std::shared_ptr<Pointee>& pointer) : joinable_(pointer.get()) {}

  /// The joinable, which the caller keeps alive.
  Joinable* get() const { return joinable_; }

 private:
  Joinable* joinable_;
};

/// Allows ranks to have different numbers of batches while it lives. At the end of the scope, a rank without
/// data makes the collective calls of the others' iterations with zeros until no rank has data left.
///
///     {
///       const auto join = ddp->join();
///       for (auto& [images, labels] : batches_of_this_rank) train(images, labels);
///     }
///
/// The module of a DistributedDataParallel may have SyncBatchNorm layers of the same group: they normalize
/// over the ranks that have data. While a rank has none, the others announce each call of an iteration by an
/// additional all-reduce of 16 bytes.
///
/// All ranks construct and destroy it. The destructor waits for the slowest rank; it throws the errors of
/// those calls, and does nothing if an exception ends the scope. The joinables must outlive it and share one
/// group. PyTorch: `torch.distributed.algorithms.join.Join`.
class [[nodiscard]] Join {
 public:
  explicit Join(const std::vector<JoinableRef>& joinables, const JoinOptions& options = {},
                std::source_location where = std::source_location::current());
  ~Join() noexcept(false);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

 private:
  void shadow_until_all_joined();
  int count_active();

  std::vector<Joinable*> joinables_;
  JoinOptions options_;
  std::source_location where_;
  int exceptions_;
};

/// A class that makes collective calls in each iteration and supports Join. PyTorch: `Joinable` and its
/// `JoinHook`.
class Joinable {
 public:
  /// The number of ranks that have data in an iteration.
  struct Notice {
    Work work;          ///< the pending sum
    at::Tensor active;  ///< [1], valid once `work` is complete
  };

  virtual ~Joinable() = default;

  /// Called when a Join begins. Throws if this object cannot take part.
  virtual void begin_join() {}
  /// Makes the collective calls of one iteration of the ranks that have data, in the same order. PyTorch:
  /// `main_hook`.
  virtual void shadow_iteration() = 0;
  /// Called once on all ranks when no rank has data left. PyTorch: `post_hook`.
  virtual void finish_join(bool is_last_joiner) = 0;
  /// The group of its calls; the same for all joinables of one Join.
  virtual ProcessGroup join_process_group() const = 0;
  /// The device of its tensors.
  virtual c10::Device join_device() const = 0;

 protected:
  Joinable() = default;
  Joinable(const Joinable&) = default;
  Joinable& operator=(const Joinable&) = default;

  /// Must be called in each iteration before its first collective call. Returns nothing outside of a Join, or
  /// if this is not its first joinable. Throws Error on early termination. PyTorch:
  /// `Join.notify_join_context`.
  std::optional<Notice> notify_join_context() const;

  /// The options of the Join that it is part of.
  const std::optional<JoinOptions>& join_options() const { return join_options_; }

 private:
  friend class Join;
  std::optional<JoinOptions> join_options_;
  bool is_first_joinable_ = false;
};

namespace algorithms {
using lockstep::Join, lockstep::Joinable;
}  // namespace algorithms

}  // namespace lockstep
