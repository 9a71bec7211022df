// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/snapshot.h"

#include <cstring>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "serialize/storage_bytes.h"

namespace lockstep::checkpointing {
namespace {

constexpr std::int64_t kPiece = 1 << 20;

c10::Storage new_storage(std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte).storage();
}

void copy_bytes(const c10::Storage& to, const c10::Storage& from) {
  if (!from.device().is_cpu()) {
    serialize::storage_bytes(to).copy_(serialize::storage_bytes(from));
    return;
  }
  auto* target = static_cast<char*>(to.mutable_data());
  const auto* source = static_cast<const char*>(from.data());
  at::parallel_for(0, static_cast<std::int64_t>(from.nbytes()), kPiece,
                   [&](std::int64_t first, std::int64_t last) {
                     std::memcpy(target + first, source + first, static_cast<std::size_t>(last - first));
                   });
}

}  // namespace

const serialize::Pickled& Snapshot::take(const Value& value) {
  auto pickled = serialize::pickle_value(value);
  copy_.storages.resize(pickled.storages.size());
  for (std::size_t i = 0; i < pickled.storages.size(); ++i) {
    auto& own = copy_.storages[i];
    if (!own || own.nbytes() != pickled.storages[i].nbytes()) own = new_storage(pickled.storages[i].nbytes());
    copy_bytes(own, pickled.storages[i]);
  }
  copy_.pickle = std::move(pickled.pickle);
  return copy_;
}

}  // namespace lockstep::checkpointing
