// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Storage.h>

#include <lockstep/serialize/value.h>

#include "serialize/pickle_reader.h"

namespace lockstep::serialize {

// The names that Python's weights_only loader allows by default, as far as Lockstep supports them, and
// numpy's scalars.
pickle::AllowedNames names_in_checkpoints();
// Also those in the metadata of torch.distributed.checkpoint.
pickle::AllowedNames names_in_distributed_checkpoints();

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

// Loads storages from the file format around the pickle.
class StorageSource {
 public:
  virtual ~StorageSource() = default;
  virtual c10::Storage load(const StorageRecord& record) = 0;
};

// For pickles without tensors. Throws CheckpointError.
class NoStorages : public StorageSource {
 public:
  c10::Storage load(const StorageRecord& record) override;
};

// All storages in a pickle, used or not.
std::vector<StorageRecord> storages_of(const pickle::Pickle& pickle);

// The value of a pickle. Throws CheckpointError: containers that contain themselves, excessive nesting,
// references that multiply objects beyond the file size, tensors beyond the end of their storage, unsupported
// kinds of tensors.
Value unpickle(const pickle::Pickle& pickle, StorageSource& storages);

}  // namespace lockstep::serialize
