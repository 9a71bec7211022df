// SPDX-License-Identifier: BSD-3-Clause
#pragma once

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
/// The default group. Throws ArgumentError without one.
ProcessGroup default_group(std::source_location where = std::source_location::current());

// Throw ArgumentError before init() in a process that a launcher started as one of several ranks.
int get_rank(std::source_location where =
                 std::source_location::current());  ///< of the default group; 0 without a context
int get_world_size(std::source_location where =
                       std::source_location::current());  ///< of the default group; 1 without a context
int get_local_rank(
    std::source_location where = std::source_location::current());  ///< on this host; 0 without a context
bool is_main_process(std::source_location where = std::source_location::current());  ///< get_rank() == 0

/// The default CPU generator of this thread: in a rank of spawn_threads() the rank's own generator, otherwise
/// LibTorch's default generator.
at::Generator default_generator();

/// Seeds the default generators of this rank's CPU and device. Unlike torch::manual_seed it does not affect
/// other ranks that are threads of this process. PyTorch: `torch.manual_seed`.
void manual_seed(std::uint64_t seed);

/// Arguments of new_group() and split_group().
struct GroupOptions {
  std::string backend = {};                        ///< as InitOptions::backend; empty: that of init()
  std::optional<Timeout> timeout = std::nullopt;   ///< for each call; default: that of the default group
  std::string group_name = {};                     ///< for messages; default "group 1", ...
  std::optional<NcclOptions> nccl = std::nullopt;  ///< default: those of the default group
};

/// A message of batch_isend_irecv(). PyTorch: `torch.distributed.P2POp`.
struct P2POp {
  /// Whether a tensor is sent or received.
  enum Op { isend, irecv };
  Op op;                                   ///< send or receive
  at::Tensor tensor;                       ///< sent, or received into
  int peer;                                ///< rank within `group` that receives, or sends
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  int tag = 0;                             ///< of the call on the other rank
};

/// Starts the messages of one group and returns a Work for each. Sends and receives may be in any order;
/// messages in one direction between two ranks with one tag meet in the order of both lists. All arguments
/// are checked before the first message starts. Throws ArgumentError, also for GPU tensors with NCCL, whose
/// messages block each other. PyTorch: `torch.distributed.batch_isend_irecv`.
std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& p2p_op_list,
                                    std::source_location where = std::source_location::current());

}  // namespace lockstep
