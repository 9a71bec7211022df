// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include <lockstep/base/error.h>
#include <lockstep/runtime/default_group.h>

#include "base/throw_error.h"
#include "fsdp/sharded_state_dict.h"
#include "serialize/safetensors_folder.h"

namespace lockstep::fsdp {
namespace {

std::uint64_t bytes_of(const at::Tensor& part, at::IntArrayRef sizes) {
  return static_cast<std::uint64_t>(c10::multiply_integers(sizes)) * part.element_size();
}

StateEntries entries_named(const StateEntries& entries, const std::vector<std::string>& names) {
  const auto is_in = [&](const auto& entry) { return std::ranges::find(names, entry.name) != names.end(); };
  StateEntries found{.owner = entries.owner, .parameters = {}, .buffers = {}};
  std::ranges::copy_if(entries.parameters, std::back_inserter(found.parameters), is_in);
  std::ranges::copy_if(entries.buffers, std::back_inserter(found.buffers), is_in);
  return found;
}

}  // namespace

void save_model_files(const StateEntries& entries, const std::filesystem::path& folder,
                      const safetensors::SaveDirectoryOptions& options) {
  refuse_experts(entries, "save_pretrained()");
  std::vector<safetensors::TensorSize> sizes;
  for (const auto& entry : entries.parameters)
    sizes.push_back({entry.name, bytes_of(entry.part, entry.sizes)});
  for (const auto& [name, buffer] : entries.buffers)
    sizes.push_back({name, bytes_of(buffer, buffer.sizes())});
  const safetensors::FolderPlan plan(sizes, options.max_shard_size);
  // After an error rank 0 takes part in the remaining calls, so that no rank waits for it.
  std::string error;
  const auto on_first_rank = [&](const std::function<void()>& write) {
    if (get_rank() != 0 || !error.empty()) return;
    try {
      write();
    } catch (const std::exception& caught) {
      error = caught.what();
    }
  };
  std::optional<safetensors::FolderWrite> write;
  on_first_rank([&] { write.emplace(plan, folder, options); });
  for (std::size_t i = 0; i < plan.files().size(); ++i) {
    const auto tensors = model_state_dict(entries_named(entries, plan.files()[i]),
                                          {.full_state_dict = true, .cpu_offload = true});
    on_first_rank([&] { write->write(i, tensors); });
  }
  on_first_rank([&] { write->finish(); });
  error = default_group().broadcast_object(error, 0);
  if (!error.empty()) throw_error<CheckpointError>("{}", error);
}

}  // namespace lockstep::fsdp
