// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/replica.h"

#include <cmath>
#include <limits>

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "ddp/module_sync.h"

namespace lockstep::ddp {
namespace {

constexpr std::size_t kMiB = 1024 * 1024;
constexpr std::size_t kFirstBucketBytes = kMiB;
constexpr std::size_t kBucketBytes = 25 * kMiB;

void refuse(bool set, const char* name, const char* advice) {
  if (!set) return;
  throw ArgumentError(
      fmt::format("DistributedDataParallel: option {} is not supported yet; {}", name, advice));
}

void check_options(const DistributedDataParallelOptions& options) {
  refuse(options.find_unused_parameters, "find_unused_parameters",
         "let every parameter contribute to the loss, or freeze those that do not");
  refuse(options.static_graph, "static_graph", "leave it false");
  refuse(!options.delay_all_reduce_named_params.empty(), "delay_all_reduce_named_params", "leave it empty");
  refuse(options.mixed_precision, "mixed_precision", "train in one precision");
  refuse(options.skip_all_reduce_unused_params, "skip_all_reduce_unused_params", "leave it false");
  refuse(options.output_device && options.output_device != options.device, "output_device",
         "leave it unset, or equal to device");
}

std::size_t to_bytes(double mebibytes, const char* name) {
  if (!std::isfinite(mebibytes) || mebibytes <= 0 || mebibytes > 1e9) {
    throw ArgumentError(
        fmt::format("DistributedDataParallel: {} of {} MiB; it must be positive", name, mebibytes));
  }
  return static_cast<std::size_t>(mebibytes * static_cast<double>(kMiB));
}

BucketLimits limits_from(const DistributedDataParallelOptions& options) {
  if (!options.bucket_cap_mb_list.empty()) {
    if (options.bucket_cap_mb) {
      throw ArgumentError("DistributedDataParallel: give bucket_cap_mb or bucket_cap_mb_list, not both");
    }
    std::vector<std::size_t> limits;
    for (const double cap : options.bucket_cap_mb_list) limits.push_back(to_bytes(cap, "bucket_cap_mb_list"));
    return {limits, limits};
  }
  // The first backward uses one bucket: the order in which gradients come is not known yet.
  const std::vector<std::size_t> all{static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())};
  if (!options.bucket_cap_mb) return {all, {kFirstBucketBytes, kBucketBytes}};
  const auto cap = to_bytes(*options.bucket_cap_mb, "bucket_cap_mb");
  return {all, {cap}};
}

std::string text_of(const DistributedDataParallelOptions& options) {
  return fmt::format("broadcast_buffers={} bucket_cap_mb={} bucket_cap_mb_list=[{}]",
                     options.broadcast_buffers, options.bucket_cap_mb.value_or(0),
                     fmt::join(options.bucket_cap_mb_list, ", "));
}

std::vector<NamedTensor> joined(std::vector<NamedTensor> first, const std::vector<NamedTensor>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

Replica::Replica(const torch::nn::Module& module, const DistributedDataParallelOptions& options,
                 std::source_location where)
    : group_(options.process_group ? *options.process_group : default_group()),
      broadcast_buffers_(options.broadcast_buffers),
      where_(where),
      buffers_(distinct(module.named_buffers())) {
  check_options(options);
  const auto limits = limits_from(options);
  const auto parameters = distinct(module.named_parameters());
  const auto trained = requiring_grad(parameters);
  if (trained.empty()) {
    throw ArgumentError(
        fmt::format("DistributedDataParallel: {} has no parameter that requires a gradient, so there "
                    "is nothing to reduce; use it unwrapped",
                    module.name()));
  }
  if (options.init_sync && group_.size() > 1) {
    check_same_on_all_ranks(group_, parameters, buffers_, text_of(options), where_);
    broadcast_from_rank_0(group_, joined(parameters, buffers_), where_);
  }
  reducer_ = std::make_unique<Reducer>(
      trained, group_,
      ReducerOptions{
          .limits = limits, .gradient_as_bucket_view = options.gradient_as_bucket_view, .where = where});
}

void Replica::before_forward(bool sync) {
  const bool training = c10::GradMode::is_enabled();
  if (training && sync) reducer_->check_last_backward_finished();
  if (training) reducer_->rebuild_buckets_if_due();
  if (broadcast_buffers_ && buffers_may_differ_ && !buffers_.empty() && group_.size() > 1) {
    broadcast_from_rank_0(group_, buffers_, where_);
  }
}

void Replica::after_forward(bool sync) {
  buffers_may_differ_ = c10::GradMode::is_enabled() && sync;
  if (buffers_may_differ_) reducer_->expect_backward();
}

}  // namespace lockstep::ddp
