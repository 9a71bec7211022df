// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include <lockstep/backends/backends.h>
#include <lockstep/base/timeout.h>
#include <lockstep/comm/process_group.h>

namespace lockstep {

/// Whether there is a default group: between init() and the end of its context, or between init_process_group()
/// and destroy_process_group(). PyTorch: `torch.distributed.is_initialized`.
bool is_initialized();
/// True: process groups are part of every build. PyTorch: `torch.distributed.is_available`.
constexpr bool is_available() { return true; }
/// The default group. Throws ArgumentError without one.
ProcessGroup default_group(std::source_location where = std::source_location::current());

// Throw ArgumentError before init() in a process that a launcher started as one of several ranks.

/// The rank of this process in `group`, -1 outside of it. By default that of the default group; 0 without one.
/// PyTorch: `torch.distributed.get_rank`.
int get_rank(const std::optional<ProcessGroup>& group = std::nullopt,
             std::source_location where = std::source_location::current());
/// The number of ranks of `group`, -1 on a rank outside of it. By default that of the default group; 1 without
/// one. PyTorch: `torch.distributed.get_world_size`.
int get_world_size(const std::optional<ProcessGroup>& group = std::nullopt,
                   std::source_location where = std::source_location::current());
/// ProcessGroup::backend_name() of `group`, by default of the default group: "gloo", "shm", ... Throws ArgumentError
/// without a group, and on a rank outside of it. PyTorch: `torch.distributed.get_backend`.
std::string get_backend(const std::optional<ProcessGroup>& group = std::nullopt,
                        std::source_location where = std::source_location::current());
/// [i]: the global rank of rank i of `group`, by default of the default group. Throws ArgumentError without a
/// group, and on a rank outside of it. PyTorch: `torch.distributed.get_process_group_ranks`.
std::vector<int> get_process_group_ranks(const std::optional<ProcessGroup>& group = std::nullopt,
                                         std::source_location where = std::source_location::current());
int get_local_rank(
    std::source_location where = std::source_location::current());  ///< on this host; 0 without a context
bool is_main_process(std::source_location where = std::source_location::current());  ///< get_rank() == 0

/// The default CPU generator of this thread: in a rank of spawn_threads() the rank's own generator, otherwise
/// LibTorch's default generator.
at::Generator default_generator();

/// Seeds the default generators of this rank's CPU and device. Unlike torch::manual_seed it does not affect
/// other ranks that are threads of this process. PyTorch: `torch.manual_seed`.
void manual_seed(std::uint64_t seed);

/// PyTorch's values of a group. PyTorch: `torch.distributed.GroupMember`.
struct GroupMember {
  /// The type of NON_GROUP_MEMBER.
  struct NonGroupMember {};
  /// The type of WORLD, an argument of functions whose group is the default group if it is left out.
  struct World {
    template <typename Group>
      requires(std::same_as<Group, std::optional<ProcessGroup>> || std::same_as<Group, CollectiveOptions>)
    operator Group() const {
      return {};
    }
  };
  /// As an argument: the default group.
  static constexpr World WORLD = {};
  /// `group == GroupMember::NON_GROUP_MEMBER` is `!group`.
  static constexpr NonGroupMember NON_GROUP_MEMBER = {};
};
/// Whether this rank is outside of `group`.
inline bool operator==(const ProcessGroup& group, GroupMember::NonGroupMember /*outside*/) { return !group; }

/// Arguments of new_group() and split_group().
struct GroupOptions {
  std::optional<Timeout> timeout = std::nullopt;   ///< for each call; default: that of the default group
  std::string backend = {};                        ///< as InitOptions::backend; empty: that of init()
  std::optional<NcclOptions> nccl = std::nullopt;  ///< default: those of the default group
  std::string group_desc = {};                     ///< name in messages; default "group 1", ...
};

}  // namespace lockstep
