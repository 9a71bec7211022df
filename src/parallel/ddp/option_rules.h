// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>
#include <lockstep/ddp/options.h>

#include "ddp/bucket.h"

namespace lockstep::ddp {

// An option of DistributedDataParallel in use, or what its user does or wants.
enum class Feature : std::uint8_t {
  bucket_cap_mb,
  bucket_cap_mb_list,
  delay_all_reduce_named_params,
  find_unused_parameters,
  lazy_bucket_allocation,
  mixed_precision,
  optimizer_in_backward,
  skip_all_reduce_unused_params,
  skip_found_unused,
  static_graph,  // the last option
  between_hosts,
  comm_hook,
  elastic_run,
  graphed_step,
  ignored_tensors,
  join,
  local_sgd,
  module_change,
  python_ranks,
  recovery,
  sparse_gradient,
  trace,
  verified_step
};
using Features = std::vector<Feature>;

// For messages and the page.
inline constexpr std::array kFeatureNames{"bucket_cap_mb",
                                          "bucket_cap_mb_list",
                                          "delay_all_reduce_named_params",
                                          "find_unused_parameters",
                                          "lazy_bucket_allocation",
                                          "mixed_precision",
                                          "optimizer_in_backward",
                                          "skip_all_reduce_unused_params",
                                          "skip_all_reduce_unused_params with find_unused_parameters",
                                          "static_graph",
                                          "between_hosts()",
                                          "a communication hook",
                                          "an elastic run",
                                          "GraphedStep",
                                          "params_and_buffers_to_ignore",
                                          "join()",
                                          "PostLocalSGD",
                                          "a change of the module",
                                          "Python ranks",
                                          "another step after an exception",
                                          "a sparse gradient",
                                          "trace()",
                                          "StepVerifier"};
constexpr const char* name_of(Feature feature) { return kFeatureNames[static_cast<std::size_t>(feature)]; }

struct Exclusion {
  Feature option;
  Feature mode;
  const char* reason;
  const char* remedy;
};

inline constexpr const char* kOtherCalls = "its calls differ from Python's, or are not compared with them";
inline constexpr const char* kLeaveOut = "leave it out";
inline constexpr const char* kWrapAnew = "wrap the module anew";
inline constexpr const char* kResume = "end the run and resume from a checkpoint";
inline constexpr const char* kSameBatches = "give all ranks the same number of batches";

// What cannot be combined. docs/ddp.md shows this table.
inline constexpr auto kExclusions = [] {
  using enum Feature;
  return std::array{
      Exclusion{bucket_cap_mb, bucket_cap_mb_list, "both limit the buckets", "give one of them"},
      Exclusion{static_graph, mixed_precision,
                "each step casts the parameters, which makes new nodes of the graph", kLeaveOut},
      Exclusion{optimizer_in_backward, mixed_precision, "in backward the parameters are low-precision copies",
                "step after backward"},
      Exclusion{delay_all_reduce_named_params, mixed_precision,
                "the delayed gradients share a tensor of the parameters' own type", kLeaveOut},
      Exclusion{optimizer_in_backward, comm_hook,
                "a bucket is freed when it is reduced, and a hook may keep it", "step after backward"},
      Exclusion{mixed_precision, comm_hook, "it is a communication hook itself",
                "use Autocast with bf16_compress_hook"},
      Exclusion{optimizer_in_backward, elastic_run, "its optimizers keep states that no rank could restore",
                "step after backward"},
      Exclusion{delay_all_reduce_named_params, graphed_step, "its reduction waits on the host in every step",
                kLeaveOut},
      Exclusion{find_unused_parameters, graphed_step,
                "the host asks in every step which parameters were used",
                "static_graph asks in the first only"},
      Exclusion{lazy_bucket_allocation, graphed_step, "a graph needs the same memory in every step",
                "leave the option out"},
      Exclusion{optimizer_in_backward, graphed_step, "the order of steps depends on the speed of reductions",
                "step after backward"},
      Exclusion{mixed_precision, graphed_step, "parameters change their memory in every step",
                "use Autocast"},
      Exclusion{join, graphed_step, "the host asks in every step which ranks have data", kSameBatches},
      Exclusion{delay_all_reduce_named_params, join, "ranks without data do not repeat its reduction",
                kLeaveOut},
      Exclusion{skip_found_unused, join, "ranks without data do not know which buckets are skipped",
                "use static_graph"},
      Exclusion{mixed_precision, python_ranks, kOtherCalls, kLeaveOut},
      Exclusion{skip_all_reduce_unused_params, python_ranks, kOtherCalls, kLeaveOut},
      Exclusion{optimizer_in_backward, python_ranks, kOtherCalls, kLeaveOut},
      Exclusion{delay_all_reduce_named_params, python_ranks, kOtherCalls, kLeaveOut},
      Exclusion{between_hosts, python_ranks, kOtherCalls, "use the hook itself"},
      Exclusion{join, python_ranks, kOtherCalls, kSameBatches},
      Exclusion{sparse_gradient, python_ranks, kOtherCalls, "use dense ones"},
      Exclusion{trace, python_ranks, kOtherCalls, "profile the Python ranks"},
      Exclusion{verified_step, python_ranks, kOtherCalls, kLeaveOut},
      Exclusion{optimizer_in_backward, recovery, "some parameters may already have been stepped", kResume},
      Exclusion{python_ranks, recovery, "Python's class does not recover", kResume},
      Exclusion{delay_all_reduce_named_params, recovery, "the delayed reduction may be missing on some ranks",
                kResume},
      Exclusion{delay_all_reduce_named_params, module_change, "the delayed gradients share a tensor",
                kWrapAnew},
      Exclusion{optimizer_in_backward, module_change, "its optimizers were made for the old parameters",
                kWrapAnew},
      Exclusion{delay_all_reduce_named_params, verified_step, "the delayed gradients have no bucket",
                kLeaveOut},
      Exclusion{mixed_precision, verified_step, "each step casts the parameters", "use Autocast"},
      Exclusion{optimizer_in_backward, verified_step, "the optimizer steps before the gradients are compared",
                "step after backward"},
      Exclusion{graphed_step, verified_step, "a graph runs no code of the host", kLeaveOut},
      Exclusion{ignored_tensors, verified_step, "a rank cannot compute with tensors that only another has",
                kLeaveOut},
      Exclusion{local_sgd, verified_step, "the parameters of the ranks differ", kLeaveOut},
      Exclusion{join, verified_step, "ranks without data do not verify", kSameBatches},
      Exclusion{sparse_gradient, verified_step, "only dense gradients are compared", "use dense ones"},
  };
}();

Features features_of(const DistributedDataParallelOptions& options, const ProcessGroup& group);
// The first row of this mode with one of these features, or nullptr.
const Exclusion* find_exclusion(const Features& used, Feature mode);
// Throws the error of this mode if it excludes one of these features. `recovery` has none: FailedStep throws.
void check(const Features& used, Feature mode, const ProcessGroup& group);
// Throws ArgumentError if ranks of this group exclude `used`.
void check_on(const ProcessGroup& group, Feature used);

// Throws ArgumentError for values of options, and combinations, that are never allowed.
void check_options(const DistributedDataParallelOptions& options, const Features& used,
                   const ProcessGroup& group);
BucketLimits limits_of(const DistributedDataParallelOptions& options);
// The options that ranks must share to make the same calls. Ignored names may differ; those that are left
// are compared.
std::string options_text(const DistributedDataParallelOptions& options);

}  // namespace lockstep::ddp
