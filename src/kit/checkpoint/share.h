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

// Collective steps around files. Without a group this process is alone.
namespace lockstep::checkpointing {

using Group = std::optional<ProcessGroup>;

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
