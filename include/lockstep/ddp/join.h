// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/comm/process_group.h>

namespace lockstep {

class Joinable;

/// Options of Join under PyTorch's names.
struct JoinOptions {
  /// True: sums are always divided by the size of the group, so that every sample counts the same. False: by
  /// the number of ranks that still have data.
  bool divide_by_initial_world_size = true;
  /// False: the scope does nothing.
  bool enable = true;
  /// True: when the first rank runs out of data, every rank throws Error in its next iteration, and that rank
  /// at the end of its scope. Needed when the loop makes collective calls that Join does not know of, e.g.
  /// those of SyncBatchNorm.
  bool throw_on_early_termination = false;
};

/// While it lives, ranks may have different numbers of batches: those that are through make the collective
/// calls of the others' iterations, with zeros, at the end of this scope, until all are through. PyTorch:
/// `torch.distributed.algorithms.join.Join`.
///
///     {
///       const auto join = ddp->join();
///       for (auto& [images, labels] : batches_of_this_rank) { ... }
///     }
///
/// Made and ended by all ranks. The end waits for the slowest rank, and throws what those calls throw; when
/// the scope is left by an exception it does nothing. The joinables must outlive it and share one group.
class [[nodiscard]] Join {
 public:
  explicit Join(std::vector<Joinable*> joinables, const JoinOptions& options = {});
  ~Join() noexcept(false);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

 private:
  void shadow_until_all_joined();
  int count_active();
  void leave();

  std::vector<Joinable*> joinables_;
  JoinOptions options_;
  int exceptions_;
};

/// Something that makes collective calls in each iteration and can take part in a Join. PyTorch: `Joinable`
/// and its `JoinHook`.
class Joinable {
 public:
  virtual ~Joinable() = default;

  /// Called when a Join begins: throws where the others could not be followed.
  virtual void check_join() const {}
  /// The collective calls of one iteration of the ranks that have data, in the same order. PyTorch:
  /// `main_hook`.
  virtual void shadow_iteration() = 0;
  /// Called once by all ranks when all are through. PyTorch: `post_hook`.
  virtual void finish_join(bool is_last_joiner) = 0;
  /// Which must be the same for all joinables of one Join.
  virtual ProcessGroup join_process_group() const = 0;
  /// Where its tensors are.
  virtual c10::Device join_device() const = 0;

 protected:
  Joinable() = default;
  Joinable(const Joinable&) = default;
  Joinable& operator=(const Joinable&) = default;

  /// To be called in each iteration before its first collective call; does nothing outside of a Join. The
  /// number of ranks that have data comes with the Work; nothing unless this is the first joinable. Throws
  /// Error where early termination is to be told. PyTorch: `Join.notify_join_context`.
  struct Notice {
    Work work;
    at::Tensor active;  ///< [1], once `work` is complete
  };
  std::optional<Notice> notify_join_context() const;

  /// Those of the Join that it is part of.
  const std::optional<JoinOptions>& join_options() const { return join_options_; }

 private:
  friend class Join;
  std::optional<JoinOptions> join_options_;
  bool is_first_joinable_ = false;
};

}  // namespace lockstep
