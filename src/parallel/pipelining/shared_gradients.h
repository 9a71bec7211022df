// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <source_location>
#include <string>
#include <vector>

#include <lockstep/pipelining/pipeline.h>

#include "modules/change_agreement.h"
#include "pipelining/stage_check.h"

namespace lockstep::pipelining {

// What happens to the gradients after the last backward of a stage: the mean over the ranks that train the
// same stage, the scale, and the sum over the stages that have the same parameter.
class SharedGradients {
 public:
  // `first_tag`: of tags that no other message has.
  SharedGradients(ProcessGroup group, std::vector<PipelineStage> stages, int first_tag);

  // The line of the program that makes the next run, for records.
  void set_place(std::source_location where) { where_ = where; }

  // Once for each stage in a step. A parameter that several stages of this rank have waits for the last.
  void reduce(int stage_index, double divisor);
  // After reduce() of all stages, with the same divisor.
  void sum_tied(double divisor);
  // Before a run, except for the first one. Throws ArgumentError for a stage with other parameters, and
  // DesyncError for one with parameters that are frozen or unfrozen, but not in all replicas of the stage.
  // The runs of the other ranks of this host then end with DesyncError.
  void agree_on_changes();
  // The calls of a run. If they throw, those of the other ranks of this host end, too.
  template <typename Calls>
  auto run(const Calls& calls) const {
    return modules::run_in_all(agreements_, calls);
  }
  // After a run, also if it threw: what ended it does not end the next one.
  void end_run();
  // In the first run: replicas of a stage, and stages with the same parameter, have the same values from now
  // on. Throws DesyncError if the replicas of a stage have other parameters or train others.
  void begin_run();
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
  void agree_on_trained(std::size_t stage);
  modules::ModuleText text_of(std::size_t stage) const;
  void end_others(const std::string& why) const;
  void copy_replicas() const;
  void find_tied();
  void copy_tied();
  // Each owner's tensor, by stage, of which `own` is this rank's.
  Tensors exchange(const Tied& tied, const at::Tensor& own, int tag) const;

  ProcessGroup group_;
  std::vector<PipelineStage> stages_;
  int first_tag_;
  std::source_location where_;
  std::vector<StageCheck> checks_;                    // [stage of this rank] since the first run
  std::vector<modules::ChangeAgreement> agreements_;  // of the pipeline and of replicas of stages
  std::vector<std::size_t> of_replicas_;              // [stage of this rank]: in agreements_; 0: it has none
  std::map<std::string, Tied> tied_;
  std::map<const c10::TensorImpl*, int> waiting_;  // local stages that have not been reduced
};

}  // namespace lockstep::pipelining
