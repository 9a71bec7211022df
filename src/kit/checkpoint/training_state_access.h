// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <optional>
#include <set>
#include <source_location>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <lockstep/checkpoint/training_state.h>

namespace lockstep::checkpointing {

// What TrainingState::commit() does.
class Committer {
 public:
  virtual ~Committer() = default;
  // `where`: the line that calls commit().
  virtual void commit(const TrainingState& state, std::source_location where) = 0;
};

// Parts of a state that stay as they are.
struct KeptParts {
  std::set<std::string> names{};
  bool positions = false;  // those of loaders
};

// For elastic::run() and Trainer. No function makes a call to other ranks.
struct TrainingStateAccess {
  // The states that this rank has, by part. Tensors share the data of the run. Throws ArgumentError that names a part
  // that is distributed over the ranks.
  static Dict own_state_dict(const TrainingState& state, const KeptParts& without = {});
  // Restores them in place: parameters, buffers and the tensors of optimizers keep their memory, where their shapes
  // have not changed. First drops the gradients of all modules and optimizers, as zero_grad(set_to_none = true). Throws
  // CheckpointError that names the part that does not fit.
  static void load_own_state_dict(const TrainingState& state, const Dict& saved,
                                  const KeptParts& without = {});

  // For runs that go on without a lost rank. Throws ArgumentError naming the first part that cannot.
  static void require_can_shrink(const TrainingState& state);
  // For them: throws ArgumentError if gradients are a part, and a parameter of an optimizer has one.
  static void require_no_gradients(const TrainingState& state);

  // The modules among the parts, as they were added: of a DistributedDataParallel itself.
  static std::vector<torch::nn::Module*> modules(const TrainingState& state);
  static const std::vector<torch::optim::Optimizer*>& optimizers(const TrainingState& state);
  // The optimizers by the name of their part. `own_states`: own_state_dict() with all parts.
  static std::map<std::string, const torch::optim::Optimizer*> optimizers_by_part(const TrainingState& state,
                                                                                  const Dict& own_states);
  // The group whose states are saved together; nullopt: this process alone.
  static const std::optional<ProcessGroup>& group(const TrainingState& state);
  // nullptr: commit() does nothing. The committer is not owned.
  static void set_committer(TrainingState& state, Committer* committer);
};

}  // namespace lockstep::checkpointing
