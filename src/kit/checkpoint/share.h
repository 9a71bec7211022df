// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/comm/process_group.h>
#include <lockstep/serialize/torch_file.h>

#include "base/throw_error.h"
#include "runtime/run.h"

// Collective steps around files. Without a group this process is alone.
namespace lockstep::checkpointing {

using Group = std::optional<ProcessGroup>;

// The group that the options of a public function choose: without no_dist the given one, the default group or,
// without a context, none. Throws ArgumentError for options that contradict each other. `what`: who asks.
template <typename Options>
Group group_of(const Options& options, const char* what) {
  if (!options.no_dist) return runtime::group_or_default(options.process_group, what);
  if (!options.process_group) return std::nullopt;
  throw_error<ArgumentError>(
      "{}: no_dist and process_group are set; leave no_dist out, or process_group if this process is to work alone",
      what);
}

// Throws ArgumentError unless the call names one folder, which its options may repeat.
inline void check_folder(const std::filesystem::path& folder, const std::filesystem::path& checkpoint_id,
                         const char* what) {
  if (!folder.empty() && (checkpoint_id.empty() || checkpoint_id == folder)) return;
  throw_error<ArgumentError>(
      "{}: {}; give the folder as the argument, or as checkpoint_id", what,
      folder.empty() ? "no folder is given" : "the folder and checkpoint_id name two folders");
}

// The ranks that share what one of them reads: those of `group`, but none in a replacement that has not met the others
// yet. It reads by itself, because its calls are simulated.
Group sharers(const Group& group);
bool is_first(const Group& group);
// 0 without a group.
std::size_t rank_of(const Group& group);

// Runs `action` on rank 0. If it throws, all ranks throw CheckpointError with its message.
void on_first(const Group& group, const std::function<void()>& action);

// Runs `action` on every rank. If it throws on one, all ranks throw CheckpointError that names the rank.
void on_every(const Group& group, const std::function<void()>& action);

// A digest that is equal on all ranks for equal bytes.
std::string digest_of(std::string_view bytes);

// Every rank's text, by rank.
std::vector<std::string> gather_texts(const Group& group, const std::string& text);

// Broadcasts rank 0's text.
std::string share_text(const Group& group, const std::string& text);

// Broadcasts rank 0's value, with tensors on `device` on the other ranks.
Value share_value(const Group& group, const Value& value, at::Device device);

}  // namespace lockstep::checkpointing
