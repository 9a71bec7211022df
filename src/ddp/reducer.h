// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mutex>
#include <source_location>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "ddp/bucket.h"
#include "ddp/gradient_hooks.h"

namespace lockstep::ddp {

struct ReducerOptions {
  BucketLimits limits = {};
  bool gradient_as_bucket_view = true;
  std::source_location where = {};  // what call records show
};

// Averages gradients across the group while backward runs. Follows c10d::Reducer: the same buckets in the
// same order, the same arithmetic, hence the same bits.
//
// Threads: prepare_*() from the thread that calls forward; gradients become ready on autograd's threads; the
// mutex keeps the two apart.
class Reducer {
 public:
  Reducer(std::vector<NamedTensor> parameters, ProcessGroup group, ReducerOptions options);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Throws Error naming the parameters that took no part in the last backward, if it was to be reduced.
  void check_last_backward_finished();
  // Once in a run, when the order of gradients is known; a collective call.
  void rebuild_buckets_if_due();
  // The next backward will be reduced.
  void expect_backward();

  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<NamedTensor>& parameters() const { return parameters_; }

 private:
  struct Place {
    std::size_t bucket;
    std::size_t slot;
  };

  void on_gradient_ready(std::size_t parameter);
  void refuse_second_gradient(std::size_t parameter) const;
  void take_gradient(const Bucket::Slot& slot);
  void launch_full_buckets();
  void finish_backward();
  void copy_back(const Bucket& bucket);
  void lay_out(const BucketPlan& plan);
  void move_gradients_into_buckets();
  std::vector<std::int64_t> arrival_on_rank_0() const;
  bool alone() const { return group_.size() == 1; }

  std::vector<NamedTensor> parameters_;
  ProcessGroup group_;
  ReducerOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;

  std::mutex mutex_;
  bool expecting_ = false;             // a backward that is to be reduced may come or is under way
  bool started_ = false;               // its first gradient is there
  std::size_t next_bucket_ = 0;        // the first one that is not under way
  std::vector<bool> ready_;            // in this backward
  std::vector<std::int64_t> arrival_;  // parameters in the order of the first reduced backward
  bool arrival_known_ = false;
  bool rebuilt_ = false;
  GradientHooks hooks_;  // last: gone before what its hooks use
};

}  // namespace lockstep::ddp
