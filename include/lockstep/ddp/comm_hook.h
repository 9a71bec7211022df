// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/comm/work.h>

namespace lockstep {

/// What a communication hook returns: a reduction that is under way, as a chain of calls and of steps between
/// them. PyTorch: the `Future[Tensor]` of a hook.
///
/// Nothing runs by itself: advance() waits for the call that is under way and takes the step after it. The
/// reducer advances all buckets in turns, in their order, so that all ranks issue the calls of later steps in
/// the same order.
class BucketWork {
 public:
  using Step = std::function<BucketWork()>;
  using Change = std::function<at::Tensor(at::Tensor)>;

  /// Done, with nothing.
  BucketWork() = default;
  /// Done: `reduced` is the result.
  explicit BucketWork(at::Tensor reduced) : result_(std::move(reduced)) {}
  /// When `work` is complete, `reduced` is the result.
  BucketWork(Work work, at::Tensor reduced)
      : BucketWork(std::move(work), [reduced = std::move(reduced)] { return BucketWork(reduced); }) {}
  /// When `work` is complete, `next` is called and its BucketWork takes this one's place.
  BucketWork(Work work, Step next) : work_(std::move(work)), next_(std::move(next)) {}

  /// The same with `change` applied to the result. PyTorch: `Future.then`.
  BucketWork then(Change change) const;

  bool is_done() const { return !next_; }
  /// Whether advance() would not block.
  bool is_ready() const { return is_done() || work_.is_completed(); }
  /// Waits for the call under way and takes the next step. Throws what Work::wait() and the step throw.
  void advance();
  /// Advances to the end and returns the result.
  at::Tensor wait();

 private:
  Work work_;
  Step next_;
  at::Tensor result_;
};

/// Gradients that are reduced together, as a communication hook sees them. PyTorch:
/// `torch.distributed.GradBucket`.
class GradBucket {
 public:
  struct Parameter {
    std::string name;         ///< in the wrapped module
    at::Tensor tensor;        ///< the parameter itself
    std::int64_t offset = 0;  ///< of its gradient in the buffer, in elements
  };

  GradBucket(std::size_t index, bool is_last, at::Tensor buffer, std::vector<Parameter> parameters,
             ProcessGroup group)
      : index_(index),
        is_last_(is_last),
        buffer_(std::move(buffer)),
        parameters_(std::move(parameters)),
        group_(std::move(group)) {}

  /// 0 for the bucket that is reduced first.
  std::size_t index() const { return index_; }
  /// Whether it is the last one to be reduced in this backward.
  bool is_last() const { return is_last_; }
  /// The gradients as one row [sum of the parameters' elements], not divided by the number of ranks; for a
  /// parameter with sparse gradients that gradient itself, alone.
  const at::Tensor& buffer() const { return buffer_; }
  void set_buffer(at::Tensor buffer) { buffer_ = std::move(buffer); }
  /// Views of the buffer in the parameters' shapes.
  std::vector<at::Tensor> gradients() const;
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// The group of the DistributedDataParallel.
  const ProcessGroup& process_group() const { return group_; }

 private:
  std::size_t index_;
  bool is_last_;
  at::Tensor buffer_;
  std::vector<Parameter> parameters_;
  ProcessGroup group_;
};

/// Replaces the averaging of a bucket. It is called in backward when all gradients of the bucket are there,
/// for the buckets in order, and starts the communication; the result has as many elements as the bucket (any
/// floating dtype) and is what the gradients become. It divides by the number of ranks itself. Any state is
/// the callable's own; all ranks have to make the same calls. PyTorch: `register_comm_hook(state, hook)`.
using CommHook = std::function<BucketWork(GradBucket&)>;

}  // namespace lockstep
