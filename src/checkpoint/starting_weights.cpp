// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/starting_weights.h>
#include <lockstep/serialize/torch_file.h>

#include "checkpoint/share.h"

namespace lockstep {
namespace {

std::string digest_of_weights(const Dict& weights) {
  std::string digests;
  for (const auto& [name, value] : weights) {
    const auto data = value.as_tensor().cpu().contiguous();
    digests += checkpointing::digest_of({static_cast<const char*>(data.const_data_ptr()), data.nbytes()});
  }
  return checkpointing::digest_of(digests);
}

// Where each rank reads for itself, the file may be another one, or an old one, on another host.
void check_all_read_the_same(const ProcessGroup& group, const Dict& weights,
                             const std::filesystem::path& file) {
  const auto digests = group.all_gather_object(digest_of_weights(weights));
  const auto other =
      std::ranges::find_if(digests, [&](const auto& digest) { return digest != digests.front(); });
  if (other == digests.end()) return;
  throw CheckpointError(fmt::format(
      "rank {} of {}: rank {} has read other starting weights from {} than rank 0 has written: do all "
      "hosts see the same file? CheckpointReading::broadcast needs it on one only",
      group.rank(), group.size(), other - digests.begin(), file.string()));
}

}  // namespace

void share_starting_weights(const ProcessGroup& group, torch::nn::Module& module,
                            const std::filesystem::path& file, CheckpointReading reading) {
  checkpointing::on_first(group, [&] { save(state_dict(module), file); });
  const auto weights = load_on_all(group, file, {}, reading);
  if (reading != CheckpointReading::broadcast) check_all_read_the_same(group, weights.as_dict(), file);
  checkpointing::on_every(group, [&] { load_state_dict(module, weights.as_dict()); });
}

}  // namespace lockstep
