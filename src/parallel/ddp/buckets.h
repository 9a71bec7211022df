// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/ddp/options.h>

#include "base/throw_error.h"
#include "ddp/bucket.h"

namespace lockstep::ddp {

struct ReducerOptions : DistributedDataParallelOptions {
  // In mixed precision: a function to call after the reduction.
  std::function<void()> after_reduction = {};
  const bool* sync = nullptr;       // false while no_sync() is open; nullptr: always true
  std::source_location where = {};  // for call records

  bool finds_unused() const { return find_unused_parameters && !static_graph; }
  // In mixed precision: the type of gradients in backward.
  std::optional<at::ScalarType> gradient_dtype() const {
    return mixed_precision ? mixed_precision->param_dtype : std::nullopt;
  }
};

// The beginning of messages.
inline std::string ddp_on_rank(const ProcessGroup& group) {
  return numbered_rank(group.rank(), group.size()) + ": DistributedDataParallel";
}

// Which parameters have had a gradient since the last reduction: on this rank, and then on any rank. PyTorch:
// the reducer's `local_used_map`.
class UsedParameters {
 public:
  UsedParameters(std::size_t parameters, c10::Device device);

  void mark(std::size_t parameter) { here_.data_ptr<std::int32_t>()[parameter] = 1; }
  // A collective call; used_anywhere() returns its result.
  void reduce(const ProcessGroup& group, std::source_location where);
  // Waits for the reduction if this rank did not use the parameter.
  bool used_anywhere(std::size_t parameter);
  // Waits for the reduction and starts over.
  void clear();

 private:
  void wait();

  at::Tensor here_;  // int32, on the CPU
  at::Tensor sent_;  // on the parameters' device
  Work work_;
  bool waited_ = true;
};

// The memory of a reducer: copies gradients into buckets and divides them, and copies the averages back.
// Makes no call on the group. The reducer's lock protects it.
class Buckets {
 public:
  // The group and the options outlive it.
  Buckets(std::vector<TrainedParameter> parameters, const ProcessGroup& group, const ReducerOptions& options);

  // Continues with these parameters, which keep their gradients; lay_out() follows.
  void replace_parameters(std::vector<TrainedParameter> parameters);
  // Until the result is destroyed: `tensor(i)` stands for parameter i.
  [[nodiscard]] std::shared_ptr<void> stand_in(const std::function<at::Tensor(std::size_t)>& tensor);
  void lay_out(const BucketPlan& plan);
  // In the order of construction.
  void lay_out();
  // A communication hook divides the sums.
  void leave_division_to_hook() { has_hook_ = true; }
  // Called once a backward for the divisor of the sums. Default: the size of the group.
  void set_divisor(std::function<int()> divisor) { divisor_source_ = std::move(divisor); }

  // `unused`: parameters, ascending, that this rank's graph does not reach.
  void begin_step(const std::vector<std::size_t>& unused);
  // The gradient is ready. Returns whether its bucket is full.
  bool copy_in(std::size_t parameter);
  // What copy_in() makes of this gradient with this division.
  at::Tensor divided(const at::Tensor& gradient, Division division);
  // With batched_grad_copy: copies all gradients of a full bucket.
  void copy_batch_in(Bucket& bucket);
  // The bucket's reduction is done: its result becomes the gradients.
  void finish(Bucket& bucket, UsedParameters& used);
  void zero();

  // A group of one has nothing to reduce: gradients stay where autograd puts them, and there are no buckets.
  bool has_nothing_to_reduce() const { return group_.size() == 1 && !has_hook_; }
  const std::vector<Bucket>& all() const { return buckets_; }
  std::vector<Bucket>& all() { return buckets_; }
  const std::vector<TrainedParameter>& parameters() const { return parameters_; }
  c10::Device device() const { return parameters_.front().tensor.device(); }
  // With optimizer_in_backward: one for each parameter.
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers() const { return optimizers_; }
  std::string description(const Bucket& bucket) const;

 private:
  struct Location {
    std::size_t bucket;
    std::size_t slot;
  };

  void copy_in(Bucket& bucket, Bucket::Slot& slot);
  void take_sparse_gradient(Bucket& bucket);
  void finish_dense(Bucket& bucket, UsedParameters& used);
  void finish_cast(const Bucket& bucket, const at::Tensor& reduced, UsedParameters& used);
  bool was_used(std::size_t parameter, UsedParameters& used) const;
  void step_in_backward(std::size_t parameter);
  void move_gradients_into_buckets();
  int divisor();
  bool keeps_memory() const { return optimizers_.empty() && !options_.lazy_bucket_allocation; }

  std::vector<TrainedParameter> parameters_;
  const ProcessGroup& group_;
  const ReducerOptions& options_;
  bool has_hook_ = false;
  std::function<int()> divisor_source_;
  int divisor_ = 0;  // 0: not asked for yet
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<at::ScalarType> dtypes_;  // of the parameters, outside of backward
  std::vector<Bucket> buckets_;
  std::vector<Location> locations_;  // [parameter]
};

}  // namespace lockstep::ddp
