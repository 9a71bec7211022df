// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/fsdp/state_dict.h>

#include "modules/cut.h"
#include "modules/gradient_norm.h"
#include "modules/named_tensors.h"

namespace lockstep::fsdp {

struct ParameterEntry {
  std::string name;
  at::Tensor part;                                // this rank's: what the optimizer steps
  std::vector<std::int64_t> sizes;                // of the whole parameter
  std::vector<modules::Cut> cuts = {};            // from the outermost on; none: the part is the whole
  std::optional<ProcessGroup> expert_ranks = {};  // each with other experts
};

struct StateEntries {
  const char* owner;  // of the parameters, for messages: "the module's"
  std::vector<ParameterEntry> parameters;
  std::vector<modules::NamedTensor> buffers;
  std::map<std::string, std::string> aliases = {};  // modules::aliases_of() the module
};

// That of a module's parameter which fully_shard() does not have.
ParameterEntry entry_of_parameter(const std::string& name, const at::Tensor& tensor);
// Of any module.
StateEntries entries_of(const torch::nn::Module& module, bool with_ignored = true);

// Throws ArgumentError if other ranks have other experts, for a function that takes rank 0 to have all names.
void refuse_experts(const StateEntries& entries, const char* function);

// The functions of fsdp/state_dict.h.
at::Tensor full_tensor(const StateEntries& entries, const std::string& name);
Dict model_state_dict(const StateEntries& entries, const StateDictOptions& options);
LoadReport load_model_state_dict(const StateEntries& entries, const Dict& model_state_dict,
                                 const StateDictOptions& options);
Dict optimizer_state_dict(const StateEntries& entries, torch::optim::Optimizer& optimizer,
                          const StateDictOptions& options);
void load_optimizer_state_dict(const StateEntries& entries, torch::optim::Optimizer& optimizer,
                               const Dict& optim_state_dict, const StateDictOptions& options);

// For modules::clip_gradients(), which takes the norm of whole gradients.
modules::CountedGradient counted_gradient(const ParameterEntry& entry);

}  // namespace lockstep::fsdp
