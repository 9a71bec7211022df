// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/base/error.h>
#include <lockstep/ddp/comm_hooks.h>

namespace lockstep {
namespace {

at::Tensor only_dense(const GradBucket& bucket, const char* hook) {
  if (!bucket.buffer().is_sparse()) return bucket.buffer();
  throw ArgumentError(std::string(hook) + ": sparse gradients are not supported; that of " +
                      bucket.parameters().front().name + " is sparse");
}

BucketWork::Change copy_to(const at::Tensor& buffer) {
  return [buffer](const at::Tensor& reduced) { return buffer.copy_(reduced); };
}

// The bucket keeps its buffer, as in PyTorch.
BucketWork compress(const GradBucket& bucket, at::ScalarType dtype, const char* name) {
  const auto buffer = only_dense(bucket, name);
  return allreduce_average(buffer.to(dtype), bucket.process_group()).then(copy_to(buffer));
}

CommHook wrapped(CommHook hook, at::ScalarType dtype, const char* name) {
  if (!hook) throw ArgumentError(std::string(name) + ": the hook to wrap is empty");
  return [hook = std::move(hook), dtype, name](GradBucket& bucket) {
    const auto buffer = only_dense(bucket, name);
    bucket.set_buffer(buffer.to(dtype));
    return hook(bucket).then(copy_to(buffer));
  };
}

}  // namespace

BucketWork BucketWork::then(Change change) const {
  return then(
      [change = std::move(change)](at::Tensor result) { return BucketWork(change(std::move(result))); });
}

BucketWork BucketWork::then(Next next) const {
  if (is_done()) return next(result_);
  return {work_, [step = next_, next = std::move(next)] { return step().then(next); }};
}

void BucketWork::advance() {
  if (is_done()) return;
  work_.wait();
  *this = std::exchange(next_, {})();
}

at::Tensor BucketWork::wait() {
  while (!is_done()) advance();
  return result_;
}

std::vector<at::Tensor> GradBucket::gradients() const {
  if (buffer_.is_sparse()) return {buffer_};
  std::vector<at::Tensor> views;
  views.reserve(parameters_.size());
  for (const auto& parameter : parameters_) {
    views.push_back(
        buffer_.narrow(0, parameter.offset, parameter.tensor.numel()).view(parameter.tensor.sizes()));
  }
  return views;
}

BucketWork allreduce_average(at::Tensor gradients, const ProcessGroup& process_group) {
  gradients.div_(process_group.size());
  auto work = process_group.all_reduce_async(gradients);
  return {std::move(work), std::move(gradients)};
}

BucketWork allreduce_hook(GradBucket& bucket) {
  return allreduce_average(only_dense(bucket, "allreduce_hook"), bucket.process_group());
}

BucketWork fp16_compress_hook(GradBucket& bucket) {
  return compress(bucket, at::kHalf, "fp16_compress_hook");
}

BucketWork bf16_compress_hook(GradBucket& bucket) {
  return compress(bucket, at::kBFloat16, "bf16_compress_hook");
}

CommHook fp16_compress_wrapper(CommHook hook) {
  return wrapped(std::move(hook), at::kHalf, "fp16_compress_wrapper");
}

CommHook bf16_compress_wrapper(CommHook hook) {
  return wrapped(std::move(hook), at::kBFloat16, "bf16_compress_wrapper");
}

}  // namespace lockstep
