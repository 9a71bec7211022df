// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <lockstep/comm/process_group.h>
#include <lockstep/ddp/options.h>

#include "ddp/bucket.h"

namespace lockstep::ddp {

// An option of DistributedDataParallel in use, or something that its user does.
enum class Feature : std::uint8_t {
  bucket_cap_mb,
  delay_all_reduce_named_params,
  find_unused_parameters,  // without static_graph
  lazy_bucket_allocation,
  mixed_precision,
  optimizer_in_backward,
  skip_all_reduce_unused_params,
  skip_found_unused,
  static_graph,
  between_hosts,
  join,
  python_ranks,
  sparse_gradient,
  trace
};
inline constexpr std::array kFeatureNames{"bucket_cap_mb",
                                          "delay_all_reduce_named_params",
                                          "find_unused_parameters",
                                          "lazy_bucket_allocation",
                                          "mixed_precision",
                                          "optimizer_in_backward",
                                          "skip_all_reduce_unused_params",
                                          "skip_all_reduce_unused_params with find_unused_parameters",
                                          "static_graph",
                                          "between_hosts()",
                                          "join()",
                                          "Python ranks",
                                          "a sparse gradient",
                                          "trace()"};
constexpr const char* name_of(Feature feature) { return kFeatureNames[static_cast<std::size_t>(feature)]; }
constexpr bool is_option(Feature feature) { return feature < Feature::between_hosts; }

class Features {
 public:
  constexpr Features with(Feature feature, bool is_used = true) const {
    auto more = *this;
    if (is_used) more.bits_ |= 1U << static_cast<unsigned>(feature);
    return more;
  }
  constexpr bool has(Feature feature) const { return (bits_ >> static_cast<unsigned>(feature) & 1U) != 0; }

 private:
  unsigned bits_ = 0;
};

// Where a feature may be excluded.
enum class Mode : std::uint8_t {
  bucket_cap_mb_list,
  comm_hook,
  graphed_step,
  join,
  mixed_precision,
  module_change,
  python_ranks,
  recovery  // of a step that an exception has ended
};

struct Exclusion {
  Feature feature;
  Mode mode;
  const char* reason;
  const char* remedy;
};

inline constexpr const char* kOtherCalls = "its calls differ from Python's, or are not compared with them";
inline constexpr const char* kLeaveOut = "leave it out";
inline constexpr const char* kWrapAnew = "wrap the module anew";
inline constexpr const char* kResume = "end the run and resume from a checkpoint";
inline constexpr const char* kSameBatches = "give all ranks the same number of batches";

// What cannot be combined. docs/ddp.md shows this table.
inline constexpr std::array kExclusions{
    Exclusion{Feature::bucket_cap_mb, Mode::bucket_cap_mb_list, "both limit the buckets", "give one of them"},
    Exclusion{Feature::static_graph, Mode::mixed_precision,
              "each step casts the parameters, which makes new nodes of the graph", kLeaveOut},
    Exclusion{Feature::optimizer_in_backward, Mode::mixed_precision,
              "in backward the parameters are low-precision copies", "step after backward"},
    Exclusion{Feature::delay_all_reduce_named_params, Mode::mixed_precision,
              "the delayed gradients share a tensor of the parameters' own type", kLeaveOut},
    Exclusion{Feature::optimizer_in_backward, Mode::comm_hook,
              "a bucket is freed when it is reduced, and a hook may keep it", "step after backward"},
    Exclusion{Feature::mixed_precision, Mode::comm_hook, "it is a communication hook itself",
              "use Autocast with bf16_compress_hook"},
    Exclusion{Feature::delay_all_reduce_named_params, Mode::graphed_step,
              "its reduction waits on the host in every step", kLeaveOut},
    Exclusion{Feature::find_unused_parameters, Mode::graphed_step,
              "the host asks in every step which parameters were used",
              "static_graph asks in the first only"},
    Exclusion{Feature::lazy_bucket_allocation, Mode::graphed_step,
              "a graph needs the same memory in every step", "leave the option out"},
    Exclusion{Feature::optimizer_in_backward, Mode::graphed_step,
              "the order of steps depends on the speed of reductions", "step after backward"},
    Exclusion{Feature::mixed_precision, Mode::graphed_step, "parameters change their memory in every step",
              "use Autocast"},
    Exclusion{Feature::join, Mode::graphed_step, "the host asks in every step which ranks have data",
              kSameBatches},
    Exclusion{Feature::delay_all_reduce_named_params, Mode::join,
              "ranks without data do not repeat its reduction", kLeaveOut},
    Exclusion{Feature::skip_found_unused, Mode::join,
              "ranks without data do not know which buckets are skipped", "use static_graph"},
    Exclusion{Feature::mixed_precision, Mode::python_ranks, kOtherCalls, kLeaveOut},
    Exclusion{Feature::skip_all_reduce_unused_params, Mode::python_ranks, kOtherCalls, kLeaveOut},
    Exclusion{Feature::optimizer_in_backward, Mode::python_ranks, kOtherCalls, kLeaveOut},
    Exclusion{Feature::delay_all_reduce_named_params, Mode::python_ranks, kOtherCalls, kLeaveOut},
    Exclusion{Feature::between_hosts, Mode::python_ranks, kOtherCalls, "use the hook itself"},
    Exclusion{Feature::join, Mode::python_ranks, kOtherCalls, kSameBatches},
    Exclusion{Feature::sparse_gradient, Mode::python_ranks, kOtherCalls, "use dense ones"},
    Exclusion{Feature::trace, Mode::python_ranks, kOtherCalls, "profile the Python ranks"},
    Exclusion{Feature::optimizer_in_backward, Mode::recovery, "some parameters may already have been stepped",
              kResume},
    Exclusion{Feature::python_ranks, Mode::recovery, "Python's class does not recover", kResume},
    Exclusion{Feature::delay_all_reduce_named_params, Mode::recovery,
              "the delayed reduction may be missing on some ranks", kResume},
    Exclusion{Feature::delay_all_reduce_named_params, Mode::module_change,
              "the delayed gradients share a tensor", kWrapAnew},
    Exclusion{Feature::optimizer_in_backward, Mode::module_change,
              "its optimizers were made for the old parameters", kWrapAnew},
};

Features features_of(const DistributedDataParallelOptions& options, const ProcessGroup& group);
// The first row that excludes one of these features, or nullptr.
const Exclusion* find_exclusion(Features used, Mode mode);
// Throws the error of this mode if it excludes one of these features.
void check(Features used, Mode mode, const ProcessGroup& group);

// Throws ArgumentError for values of options, and combinations, that are never allowed.
void check_options(const DistributedDataParallelOptions& options, Features used, const ProcessGroup& group);
BucketLimits limits_of(const DistributedDataParallelOptions& options);
// The options that ranks must share to make the same calls. Ignored names may differ; those that are left
// are compared.
std::string options_text(const DistributedDataParallelOptions& options);

}  // namespace lockstep::ddp
