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

/// What a pickle says of a storage that lies beside it.
struct StorageRecord {
  std::string key{};
  at::ScalarType dtype = at::kByte;
  std::uint64_t bytes = 0;
  /// Legacy files only: the part of the storage that a view of it is, in bytes; `view_key` is empty for no
  /// view.
  std::string view_key{};
  std::uint64_t view_offset = 0;
  std::uint64_t view_bytes = 0;
};

/// Where storages come from: the format of the file around the pickle.
class StorageSource {
 public:
  virtual ~StorageSource() = default;
  virtual c10::Storage load(const StorageRecord& record) = 0;
};

/// For pickles that hold plain values only: throws CheckpointError.
class NoStorages : public StorageSource {
 public:
  c10::Storage load(const StorageRecord& record) override;
};

/// All storages that a pickle mentions, whether its value has them or not.
std::vector<StorageRecord> storages_of(const pickle::Pickle& pickle);

/// The value that a pickle stands for. Throws CheckpointError: containers that hold themselves, a nesting too
/// deep, objects that many references would multiply beyond the size of the file, tensors that reach beyond
/// their storage, kinds of tensors that Lockstep does not hold.
Value unpickle(const pickle::Pickle& pickle, StorageSource& storages);

}  // namespace lockstep::serialize
