// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>
#include <vector>

#include <c10/util/ScopeExit.h>

#include <lockstep/pipelining/pipeline.h>

#include "ddp/step_abort.h"
#include "pipelining/stage_check.h"

namespace lockstep::pipelining {

// What happens to the gradients after the last backward of a stage: the mean over the ranks that train the
// same stage, the scale, and the sum over the stages that have the same parameter.
class SharedGradients {
 public:
  // `first_tag`: of tags that no other message has.
  SharedGradients(ProcessGroup group, std::vector<PipelineStage> stages, int first_tag);

  // Once for each stage in a step. A parameter that several stages of this rank have waits for the last.
  void reduce(int stage_index, double divisor);
  // After reduce() of all stages, with the same divisor.
  void sum_tied(double divisor);
  // Before the first run: replicas of a stage, and stages with the same parameter, have the same values.
  // Later: throws ArgumentError for a stage with other parameters, on the other ranks of this host
  // DesyncError.
  void begin_run();
  // While the result lives, this rank's waits end when begin_run() throws on another rank.
  [[nodiscard]] auto listen() const {
    for (const auto& each : aborts_) each.begin_listening();
    return c10::make_scope_exit([this] {
      for (const auto& each : aborts_) each.end_listening();
    });
  }
  void begin_step();
  // Returns the norm.
  double clip(double max_norm, const ClipGradNormOptions& options, std::source_location where) const;

 private:
  struct Owner {
    int stage, rank;
    std::string sizes;
  };
  struct Tied {
    at::Tensor parameter;       // what this rank has of it; undefined: not on this rank
    std::vector<Owner> owners;  // by stage
    at::Tensor before = {};     // the gradient of earlier steps, equal on all owners
  };

  void check_stages() const;
  void copy_replicas() const;
  void find_tied();
  void copy_tied();
  // Each owner's tensor, by stage, of which `own` is this rank's.
  Tensors exchange(const Tied& tied, const at::Tensor& own, int tag) const;

  ProcessGroup group_;
  std::vector<PipelineStage> stages_;
  int first_tag_;
  std::vector<StageCheck> checks_;      // since the first run
  std::vector<ddp::StepAbort> aborts_;  // of the pipeline and of replicas of stages
  std::map<std::string, Tied> tied_;
  std::map<const c10::TensorImpl*, int> waiting_;  // local stages that have not been reduced
};

}  // namespace lockstep::pipelining
