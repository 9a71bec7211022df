// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <map>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/comm_hooks.h>

#include "base/deadline.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "comm/non_member.h"
#include "ddp/bucket.h"
#include "modules/agreement.h"
#include "modules/broadcast.h"
#include "optim/optimizer_states.h"
#include "runtime/run.h"

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
  const comm::CallSite site(ddp::kGradients, static_cast<int>(bucket.index()));
  return allreduce_average_async(buffer.to(dtype), bucket.process_group()).then(copy_to(buffer));
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
  const auto* const part = pending();
  if (part == nullptr) return next(result());
  return {part->work, [before = *this, next = std::move(next)]() mutable {
            before.advance();
            return before.then(next);
          }};
}

void BucketWork::advance() {
  auto* const part = pending();
  if (part == nullptr) return;
  part->work.wait();
  run_step(*part);
}

void BucketWork::run_step(Chain& part) { part.rest = std::exchange(part.next, {})().chain_; }

at::Tensor BucketWork::wait() {
  while (!is_completed()) advance();
  return result();
}

at::Tensor BucketWork::wait(Timeout timeout) {
  const Deadline deadline(timeout);
  while (auto* const part = pending()) {
    part->work.wait(std::max(deadline.remaining(), std::chrono::milliseconds(1)));
    run_step(*part);
  }
  return result();
}

BucketWork::Chain* BucketWork::last() const {
  auto* part = chain_.get();
  while (part != nullptr && part->rest) part = part->rest.get();
  return part;
}

BucketWork::Chain* BucketWork::pending() const {
  auto* const part = last();
  return part != nullptr && part->next ? part : nullptr;
}

at::Tensor BucketWork::result() const {
  const auto* const part = last();
  return part != nullptr ? part->result : at::Tensor();
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

BucketWork allreduce_average_async(at::Tensor gradients, const ProcessGroup& process_group,
                                   std::source_location where) {
  gradients.div_(process_group.size());
  auto work = process_group.all_reduce_async(gradients, ReduceOp::SUM, where);
  return {std::move(work), std::move(gradients)};
}

BucketWork allreduce_hook(GradBucket& bucket) {
  const comm::CallSite site(ddp::kGradients, static_cast<int>(bucket.index()));
  return allreduce_average_async(only_dense(bucket, "allreduce_hook"), bucket.process_group());
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

namespace {

constexpr std::int64_t kScaleBytes = sizeof(float);

at::Tensor bit_values(const at::Tensor& row) {
  return at::arange(8, row.options().dtype(at::kByte)).exp2().to(at::kByte);
}

// A float for each parameter, then a bit for each element.
at::Tensor encode(const GradBucket& bucket) {
  const auto& row = bucket.buffer();
  std::vector<at::Tensor> message;
  for (const auto& gradient : bucket.gradients())
    message.push_back(gradient.abs().mean(at::kFloat).reshape({1}).view(at::kByte));
  const auto signs = at::constant_pad_nd(row.ge(0).to(at::kByte), {0, (8 - row.numel() % 8) % 8});
  message.push_back(signs.view({signs.numel() / 8, 8}).mul_(bit_values(row)).sum(1, false, at::kByte));
  return at::cat(message);
}

// The mean of the ranks' messages, which are the rows of `messages`.
void decode(const at::Tensor& messages, const GradBucket& bucket, const at::Tensor& into) {
  const auto& parameters = bucket.parameters();
  const auto values = bit_values(messages);
  into.zero_();
  for (const auto& message : messages.unbind()) {
    const auto bits = message.slice(0, kScaleBytes * static_cast<std::int64_t>(parameters.size()));
    const auto signs =
        bits.unsqueeze(1).bitwise_and(values).ne(0).view({-1}).to(into.dtype()).mul_(2).sub_(1);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i) * kScaleBytes;
      const auto scale = message.slice(0, at, at + kScaleBytes).clone().view(at::kFloat).to(into.dtype());
      const auto numel = parameters[i].tensor.numel();
      into.narrow(0, parameters[i].offset, numel)
          .addcmul_(signs.narrow(0, parameters[i].offset, numel), scale, 1.0 / double(messages.size(0)));
    }
  }
}

}  // namespace

struct OneBit::State {
  std::int64_t start_iter = 0;
  std::int64_t iteration = 0;
  std::map<std::size_t, at::Tensor> errors =
      {};  // [bucket]: what the ranks do not know of this rank's gradients
};

OneBit::OneBit(const OneBitOptions& options)
    : state_(std::make_shared<State>(State{.start_iter = options.start_iter})) {
  if (options.start_iter > 1) return;
  throw_error<ArgumentError>(
      "OneBit: start_iter is {}; it must be above 1, since buckets are laid out anew after the first "
      "iteration",
      options.start_iter);
}

BucketWork OneBit::operator()(GradBucket& bucket) const {
  const auto row = bucket.buffer();
  const auto& group = bucket.process_group();
  if (row.is_sparse()) {
    throw_error<ArgumentError>("OneBit: sparse gradients are not supported; that of {} is sparse",
                               bucket.parameters().front().name);
  }
  const bool is_compressed = state_->iteration >= state_->start_iter;
  if (bucket.is_last()) ++state_->iteration;
  const comm::CallSite site(ddp::kGradients, static_cast<int>(bucket.index()));
  if (!is_compressed) return allreduce_average_async(row, group);
  auto& error = state_->errors.try_emplace(bucket.index(), at::zeros_like(row)).first->second;
  row.add_(error);
  const auto message = encode(bucket);
  decode(message.unsqueeze(0), bucket, error);
  error.neg_().add_(row);
  const auto messages = at::empty({group.size(), message.numel()}, message.options());
  return BucketWork(group.all_gather_into_tensor_async(messages, message), messages)
      .then([bucket](const at::Tensor& all) {
        decode(all, bucket, bucket.buffer());
        return bucket.buffer();
      });
}

struct PostLocalSGD::State {
  PostLocalSGDOptions options;
  std::int64_t iteration = 0;
};

PostLocalSGD::PostLocalSGD(const PostLocalSGDOptions& options)
    : state_(std::make_shared<State>(State{.options = options})) {
  comm::require_member(options.subgroup, "PostLocalSGD");
  if (options.start_localSGD_iter < 0) {
    throw_error<ArgumentError>("PostLocalSGD: start_localSGD_iter is {}; it must not be negative",
                               options.start_localSGD_iter);
  }
}

std::int64_t PostLocalSGD::iteration() const { return state_->iteration; }

BucketWork PostLocalSGD::operator()(GradBucket& bucket) const {
  const auto& options = state_->options;
  if (state_->iteration < options.start_localSGD_iter) {
    if (bucket.is_last()) ++state_->iteration;
    return allreduce_hook(bucket);
  }
  if (!options.post_local_gradient_allreduce || !options.subgroup) return BucketWork(bucket.buffer());
  const comm::CallSite site(ddp::kGradients, static_cast<int>(bucket.index()));
  return allreduce_average_async(bucket.buffer(), *options.subgroup);
}

PeriodicModelAverager::PeriodicModelAverager(const PeriodicModelAveragerOptions& options)
    : options_(options), group_(runtime::required_group(options.process_group, "PeriodicModelAverager")) {
  if (options.period < 1) {
    throw_error<ArgumentError>("PeriodicModelAverager: period is {}; it must be positive", options.period);
  }
  if (options.warmup_steps < 0) {
    throw_error<ArgumentError>("PeriodicModelAverager: warmup_steps is {}; it must not be negative",
                               options.warmup_steps);
  }
}

bool PeriodicModelAverager::is_due() {
  const auto step = step_++;
  return step >= options_.warmup_steps && (step - options_.warmup_steps) % options_.period == 0;
}

void PeriodicModelAverager::average(const std::vector<at::Tensor>& parameters,
                                    std::source_location where) const {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> averaged;
  std::vector<modules::NamedTensor> sent;
  std::string lines;
  for (const auto& parameter : parameters) {
    const bool has_gradient = parameter.grad().defined();
    lines += fmt::format(
        "{}, {} gradient\n",
        modules::describe("parameter", {std::to_string(&parameter - parameters.data()), parameter}),
        has_gradient ? "with a" : "without a");
    if (!has_gradient) continue;
    averaged.push_back(parameter);
    sent.push_back(
        {.name = fmt::format("parameter {}", &parameter - parameters.data()), .tensor = parameter});
  }
  // Python ranks make one call only.
  if (!comm::has_python_ranks(group_)) {
    modules::check_same_on_all_ranks(
        group_,
        {.user = "PeriodicModelAverager",
         .lines = lines,
         .advice = "The parameters with gradients are averaged: use the same ones on every rank"},
        where);
  }
  if (averaged.empty()) return;
  modules::check_can_be_sent(group_, "PeriodicModelAverager", sent);
  const auto flat = modules::flattened(averaged);
  flat.div_(group_.size());
  const comm::CallSite site(where, "parameters");
  group_.all_reduce(flat, ReduceOp::SUM, where);
  modules::unflatten_into(averaged, flat);
}

void PeriodicModelAverager::average_parameters(const std::vector<at::Tensor>& parameters,
                                               std::source_location where) {
  if (is_due()) average(parameters, where);
}

void PeriodicModelAverager::average_parameters(const torch::optim::Optimizer& optimizer,
                                               std::source_location where) {
  if (is_due()) average(optim::parameters_of(optimizer), where);
}

}  // namespace lockstep
