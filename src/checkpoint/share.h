// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/comm/process_group.h>
#include <lockstep/serialize/torch_file.h>

// What ranks do together around a file. Without a group this process is alone.
namespace lockstep::checkpointing {

using Group = std::optional<ProcessGroup>;

bool is_first(const Group& group);

/// Runs `action` on rank 0. When it throws, all ranks throw CheckpointError with its text.
void on_first(const Group& group, const std::function<void()>& action);

/// Runs `action` on every rank. When it throws on any, all throw CheckpointError naming the rank.
void on_every(const Group& group, const std::function<void()>& action);

/// Tells contents apart: the same on every rank for the same bytes.
std::string digest_of(std::string_view bytes);

/// Rank 0's text on all ranks.
std::string share_text(const Group& group, const std::string& text);

/// Rank 0's value on all ranks, tensors on `device` where it differs from rank 0's.
Value share_value(const Group& group, const Value& value, at::Device device);

}  // namespace lockstep::checkpointing
