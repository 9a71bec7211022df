// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/snapshot.h"

#include "serialize/storage_bytes.h"

namespace lockstep::checkpointing {

const serialize::Pickled& Snapshot::take(const Value& value) {
  copy_ = serialize::pickle_value(value);
  memory_.keep(copy_.storages.size());
  for (std::size_t i = 0; i < copy_.storages.size(); ++i) {
    auto& storage = copy_.storages[i];
    storage = memory_.take(i, serialize::storage_bytes(storage)).storage();
  }
  return copy_;
}

}  // namespace lockstep::checkpointing
