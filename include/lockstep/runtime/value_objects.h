// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <vector>

#include <lockstep/runtime/collectives.h>
#include <lockstep/serialize/value.h>

// The functions of runtime/collectives.h that carry objects, for values: numbers, strings, tensors, and lists and dicts
// of them, as a file of save() holds them. Tensors arrive on the CPU. All receivers throw CheckpointError if a value
// cannot be saved, such as one with a ShardedTensor. Arguments and errors are otherwise those of the functions for
// strings.
namespace lockstep {

/// `object_list` becomes the values of all ranks of the group: `all_gather_object(all, {{"rank", rank}})`. PyTorch:
/// `torch.distributed.all_gather_object`.
void all_gather_object(std::vector<Value>& object_list, const Value& obj,
                       const CollectiveOptions& options = {},
                       std::source_location where = std::source_location::current());
/// Each value becomes that of global rank `src`, whose list has as many. PyTorch:
/// `torch.distributed.broadcast_object_list`.
void broadcast_object_list(std::vector<Value>& object_list, int src = 0,
                           const CollectiveOptions& options = {},
                           std::source_location where = std::source_location::current());
/// On global rank `dst`, `object_gather_list` becomes the values of all ranks of the group; on other ranks it becomes
/// empty. PyTorch: `torch.distributed.gather_object`.
void gather_object(const Value& obj, std::vector<Value>& object_gather_list, int dst = 0,
                   const CollectiveOptions& options = {},
                   std::source_location where = std::source_location::current());
/// `scatter_object_output_list` becomes the one value that `scatter_object_input_list` of global rank `src` has for
/// this rank. PyTorch: `torch.distributed.scatter_object_list`.
void scatter_object_list(std::vector<Value>& scatter_object_output_list,
                         const std::vector<Value>& scatter_object_input_list = {}, int src = 0,
                         const CollectiveOptions& options = {},
                         std::source_location where = std::source_location::current());

}  // namespace lockstep
