// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/serialize/torch_file.h>

#include "checkpoint/share.h"
#include "serialize/errors.h"

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

// If each rank reads the file, another host may have another or an older file.
void check_all_read_the_same(const ProcessGroup& group, const Dict& weights,
                             const std::filesystem::path& file) {
  const auto digests = group.all_gather_object(digest_of_weights(weights));
  const auto other =
      std::ranges::find_if(digests, [&](const auto& digest) { return digest != digests.front(); });
  if (other == digests.end()) return;
  throw_error(
      "rank {} of {}: the starting weights that rank {} read from {} differ from those that rank 0 wrote: do "
      "all hosts see the same file? With CheckpointReading::broadcast only rank 0 needs it",
      group.rank(), group.size(), other - digests.begin(), file.string());
}

}  // namespace

Value load_on_all(const std::filesystem::path& file, const LoadOptions& options, CheckpointReading reading,
                  const std::optional<ProcessGroup>& process_group) {
  const auto group = checkpointing::group_or_default(process_group);
  const auto on_readers =
      reading == CheckpointReading::every_rank ? checkpointing::on_every : checkpointing::on_first;
  Value value;
  on_readers(group, [&] { value = load(file, options); });
  if (reading == CheckpointReading::every_rank) return value;
  return checkpointing::share_value(group, value, options.map_location);
}

void share_starting_weights(torch::nn::Module& module, const std::filesystem::path& file,
                            CheckpointReading reading, const std::optional<ProcessGroup>& process_group) {
  const auto group = checkpointing::group_or_default(process_group);
  checkpointing::on_first(group, [&] { save(state_dict(module), file); });
  const auto weights = load_on_all(file, {}, reading, group);
  if (reading != CheckpointReading::broadcast && group)
    check_all_read_the_same(*group, weights.as_dict(), file);
  checkpointing::on_every(group, [&] { load_state_dict(module, weights.as_dict()); });
}

}  // namespace lockstep
