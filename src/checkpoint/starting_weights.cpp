// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/checkpoint/starting_weights.h>
#include <lockstep/serialize/torch_file.h>

#include "checkpoint/share.h"

namespace lockstep {

void share_starting_weights(const ProcessGroup& group, torch::nn::Module& module,
                            const std::filesystem::path& file, CheckpointReading reading) {
  checkpointing::on_first(group, [&] { save(state_dict(module), file); });
  const auto weights = load_on_all(group, file, {}, reading);
  checkpointing::on_every(group, [&] { load_state_dict(module, weights.as_dict()); });
}

}  // namespace lockstep
