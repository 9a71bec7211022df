// SPDX-License-Identifier: BSD-3-Clause
#include <map>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <lockstep/ddp/comm_hooks.h>

#include "base/throw_error.h"

namespace lockstep {
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
  if (!is_compressed) return allreduce_average(row, group);
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

}  // namespace lockstep
