// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>
#include <lockstep/fsdp/state_dict.h>

#include "nn/named_tensors.h"

namespace lockstep::fsdp {

// How a parameter is distributed.
struct Cut {
  ProcessGroup ranks;
  std::int64_t dim = 0;
  std::int64_t first = 0;  // of this rank, along the dimension
  std::int64_t chunk = 0;  // of a rank with the most
};

struct ParameterEntry {
  std::string name;
  at::Tensor part;                  // this rank's: what the optimizer steps
  std::vector<std::int64_t> sizes;  // of the whole parameter
  std::optional<Cut> cut = {};      // nullopt: the part is the whole
};

struct StateEntries {
  const char* owner;  // of the parameters, for messages: "the module's"
  std::vector<ParameterEntry> parameters;
  std::vector<nn::NamedTensor> buffers;
};

// The functions of fsdp/state_dict.h.
Dict model_state_dict(const StateEntries& entries, const StateDictOptions& options);
void load_model_state_dict(const StateEntries& entries, const Dict& model_state_dict,
                           const StateDictOptions& options);
void save_model_files(const StateEntries& entries, const std::filesystem::path& folder,
                      const safetensors::SaveDirectoryOptions& options);
Dict optimizer_state_dict(const StateEntries& entries, torch::optim::Optimizer& optimizer,
                          const StateDictOptions& options);
void load_optimizer_state_dict(const StateEntries& entries, torch::optim::Optimizer& optimizer,
                               const Dict& optim_state_dict, const StateDictOptions& options);

}  // namespace lockstep::fsdp
