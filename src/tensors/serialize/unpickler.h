// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Storage.h>

#include <lockstep/serialize/value.h>

#include "serialize/pickle.h"

namespace lockstep::serialize {

// The names that Python's weights_only loader allows by default, as far as Lockstep supports them, and
// numpy's scalars.
bool is_in_checkpoints(std::string_view module, std::string_view name);
// Also those in the metadata of torch.distributed.checkpoint.
bool is_in_distributed_checkpoints(std::string_view module, std::string_view name);

// The description of a storage in a pickle.
struct StorageRecord {
  std::string key{};
  at::ScalarType dtype = at::kByte;
  std::uint64_t bytes = 0;
  // Legacy files only: the range in bytes of a view of the storage. `view_key` is empty without a view.
  std::string view_key{};
  std::uint64_t view_offset = 0;
  std::uint64_t view_bytes = 0;
};

// The key of a storage, a string or, in old files, a number.
std::string storage_key(const Value& key);

// Loads storages from the file format around the pickle.
using LoadStorage = std::function<c10::Storage(const StorageRecord&)>;

// For pickles without tensors. Throws CheckpointError.
c10::Storage no_storages(const StorageRecord& record);

// All storages in a pickle, used or not.
std::vector<StorageRecord> storages_of(const pickle::Pickle& pickle);

// The value of a pickle. Throws CheckpointError: containers that contain themselves, excessive nesting,
// references that multiply objects beyond the file size, tensors beyond the end of their storage, unsupported
// kinds of tensors.
Value unpickle(const pickle::Pickle& pickle, const LoadStorage& load_storage);

}  // namespace lockstep::serialize
