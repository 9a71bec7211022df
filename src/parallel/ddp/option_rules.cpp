// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/option_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "ddp/buckets.h"
#include "graphs/graph_phase.h"

namespace lockstep::ddp {
namespace {

constexpr std::size_t kMiB = 1024 * 1024;
constexpr std::size_t kFirstBucketBytes = kMiB;
constexpr std::size_t kBucketBytes = 25 * kMiB;

std::size_t to_bytes(double mebibytes, const char* name) {
  if (!std::isfinite(mebibytes) || mebibytes <= 0 || mebibytes > 1e9) {
    throw_error<ArgumentError>("DistributedDataParallel: {} is {} MiB; it must be positive", name, mebibytes);
  }
  return static_cast<std::size_t>(mebibytes * static_cast<double>(kMiB));
}

void check_needs(const DistributedDataParallelOptions& options) {
  if (options.delay_all_reduce_named_params.empty() != options.param_to_hook_all_reduce.empty()) {
    throw ArgumentError(
        "DistributedDataParallel: set both or none of delay_all_reduce_named_params and "
        "param_to_hook_all_reduce");
  }
  if (options.skip_all_reduce_unused_params && !options.find_unused_parameters && !options.static_graph) {
    throw ArgumentError(
        "DistributedDataParallel: skip_all_reduce_unused_params needs find_unused_parameters or "
        "static_graph, which find the unused ones");
  }
}

void check_types(const MixedPrecision& types) {
  for (const auto& dtype : {types.param_dtype, types.reduce_dtype, types.buffer_dtype}) {
    if (!dtype || c10::isFloatingType(*dtype)) continue;
    throw_error<ArgumentError>("DistributedDataParallel: mixed_precision: {} is not a floating-point type",
                               c10::toString(*dtype));
  }
}

std::string text_of(const std::optional<MixedPrecision>& types) {
  if (!types) return "none";
  const auto name = [](const auto& dtype) { return dtype ? c10::toString(*dtype) : "-"; };
  return fmt::format("{}/{}/{}", name(types->param_dtype), name(types->reduce_dtype),
                     name(types->buffer_dtype));
}

}  // namespace

Features features_of(const DistributedDataParallelOptions& options, const ProcessGroup& group) {
  using enum Feature;
  const bool skips = options.skip_all_reduce_unused_params;
  const bool delays = !options.delay_all_reduce_named_params.empty();
  const bool with_python = comm::has_python_ranks(group);
  Features used;
  for (const auto& [feature, is_used] :
       {std::pair{bucket_cap_mb, options.bucket_cap_mb.has_value()},
        {bucket_cap_mb_list, !options.bucket_cap_mb_list.empty()},
        {delay_all_reduce_named_params, delays},
        {find_unused_parameters, options.find_unused_parameters && !options.static_graph},
        {lazy_bucket_allocation, options.lazy_bucket_allocation},
        {mixed_precision, options.mixed_precision.has_value()},
        {optimizer_in_backward, options.optimizer_in_backward != nullptr},
        {skip_all_reduce_unused_params, skips},
        {skip_found_unused, skips && !options.static_graph},
        {static_graph, options.static_graph},
        {python_ranks, with_python}})
    if (is_used) used.push_back(feature);
  return used;
}

const Exclusion* find_exclusion(const Features& used, Feature mode) {
  const auto* const found = std::ranges::find_if(kExclusions, [&](const Exclusion& each) {
    return each.mode == mode && std::ranges::find(used, each.option) != used.end();
  });
  return found == kExclusions.end() ? nullptr : found;
}

void check(const Features& used, Feature mode, const ProcessGroup& group) {
  using enum Feature;
  const auto* const found = find_exclusion(used, mode);
  if (found == nullptr) return;
  const std::string name = name_of(found->option);
  if (mode == graphed_step)
    refuse_in_graph("DistributedDataParallel with " + name,
                    fmt::format("{}; {}", found->reason, found->remedy));
  if (mode == python_ranks)
    comm::refuse_with_python(comm::state_of(group),
                             (found->option <= static_graph ? "DistributedDataParallel's " : "") + name,
                             found->remedy);
  if (mode == bucket_cap_mb_list)
    throw ArgumentError("DistributedDataParallel: give bucket_cap_mb or bucket_cap_mb_list, not both");
  if (mode == comm_hook)
    throw_error<ArgumentError>("{}: {} allows no communication hook", ddp_on_rank(group), name);
  if (mode == elastic_run)
    throw_error<ArgumentError>("DistributedDataParallel: an elastic run does not support {}: {}; {}", name,
                               found->reason, found->remedy);
  if (mode == join) throw_error<ArgumentError>("DistributedDataParallel: join() does not support {}", name);
  if (mode == verified_step)
    throw_error<ArgumentError>("StepVerifier: it does not support {}: {}; {}", name, found->reason,
                               found->remedy);
  if (mode == mixed_precision)
    throw_error<ArgumentError>("DistributedDataParallel: mixed_precision excludes {}", name);
  if (mode == module_change)
    throw_error<ArgumentError>("With {} this cannot be followed; {}", name, found->remedy);
}

void check_on(const ProcessGroup& group, Feature used) { check({used}, Feature::python_ranks, group); }

void check_options(const DistributedDataParallelOptions& options, const Features& used,
                   const ProcessGroup& group) {
  check_needs(options);
  if (options.mixed_precision) {
    check(used, Feature::mixed_precision, group);
    check_types(*options.mixed_precision);
  }
  check(used, Feature::python_ranks, group);
  if (!options.bucket_cap_mb_list.empty()) check(used, Feature::bucket_cap_mb_list, group);
  limits_of(options);
}

BucketLimits limits_of(const DistributedDataParallelOptions& options) {
  if (!options.bucket_cap_mb_list.empty()) {
    std::vector<std::size_t> limits;
    for (const double cap : options.bucket_cap_mb_list) limits.push_back(to_bytes(cap, "bucket_cap_mb_list"));
    return {limits, limits};
  }
  // The first backward uses one bucket: the order of gradients is not known yet.
  const std::vector<std::size_t> all{static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())};
  if (!options.bucket_cap_mb) return {all, {kFirstBucketBytes, kBucketBytes}};
  return {all, {to_bytes(*options.bucket_cap_mb, "bucket_cap_mb")}};
}

std::string options_text(const DistributedDataParallelOptions& options) {
  return fmt::format(
      "init_sync={} broadcast_buffers={} forward_sync_buffers={} bucket_cap_mb={} bucket_cap_mb_list=[{}] "
      "find_unused_parameters={} static_graph={} skip_all_reduce_unused_params={} "
      "delay_all_reduce_named_params=[{}] param_to_hook_all_reduce={} optimizer_in_backward={} "
      "mixed_precision={}",
      options.init_sync, options.broadcast_buffers,
      options.forward_sync_buffers.value_or(options.broadcast_buffers), options.bucket_cap_mb.value_or(0),
      fmt::join(options.bucket_cap_mb_list, ", "), options.find_unused_parameters, options.static_graph,
      options.skip_all_reduce_unused_params, fmt::join(options.delay_all_reduce_named_params, ", "),
      options.param_to_hook_all_reduce, options.optimizer_in_backward != nullptr,
      text_of(options.mixed_precision));
}

}  // namespace lockstep::ddp
