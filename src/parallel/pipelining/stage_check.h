// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <source_location>
#include <string>
#include <vector>

#include <lockstep/pipelining/pipeline.h>

#include "device/module_snapshot.h"
#include "pipelining/local_stage.h"

namespace lockstep::pipelining {

// The ranks that have to agree on a schedule of these stages: those of the pipeline, then the replicas of
// each stage, each group once. Throws ArgumentError, which names `user`, without a stage or a group.
std::vector<ProcessGroup> groups_of(const std::vector<PipelineStage>& stages, const char* user);

constexpr const char* kScheduleUser = "a pipeline schedule";

// What a schedule runs. Making it makes no calls, and throws for what the schedule refuses.
struct ScheduleParts {
  Plan plan;
  at::Device device;
  std::map<int, LocalStage> stages;
};

// Parts that all ranks have alike. What one refuses is an error on all. `groups`: groups_of() the stages.
ScheduleParts parts_on_all_ranks(const std::vector<PipelineStage>& stages, const Plan& plan,
                                 const PipelineScheduleOptions& options, bool has_loss,
                                 const std::vector<ProcessGroup>& groups, std::source_location where);

// Notices that a stage no longer has the parameters of its first run, from which the schedule knows the
// shapes of messages, tied parameters and equal replicas.
class StageCheck {
 public:
  explicit StageCheck(const PipelineStage& stage);
  // An error message with the parameter's name; empty if nothing has changed. Parameters may be frozen and
  // unfrozen, on all replicas of the stage.
  std::string change() const;
  // The parameters that are frozen or unfrozen since note_trained(); empty if there are none.
  std::string change_of_trained() const;
  void note_trained();
  // What the replicas of the stage must have alike, a line for each parameter.
  std::string lines() const;

 private:
  struct Known {
    std::string name;
    at::Tensor parameter;
    bool trained;
    at::ScalarType dtype;
    at::Device device;
    std::vector<std::int64_t> sizes;
  };
  std::string changed_parameter() const;

  PipelineStage stage_;
  device::ModuleSnapshot module_;
  std::vector<Known> parameters_;
};

}  // namespace lockstep::pipelining
