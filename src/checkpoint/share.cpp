// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/share.h"

#include <span>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <lockstep/runtime/default_group.h>

#include "serialize/checksum.h"
#include "serialize/errors.h"
#include "serialize/storage.h"
#include "serialize/torch_writer.h"
#include "serialize/unpickler.h"

namespace lockstep::checkpointing {
namespace {

// The first byte of an outcome.
constexpr char kFine = 'y';
constexpr char kFailed = 'n';

std::string outcome_of(const std::function<void()>& action) {
  try {
    action();
    return {kFine};
  } catch (const c10::Error& error) {
    return std::string(1, kFailed) + error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string(1, kFailed) + error.what();
  }
}

class ReceivedStorages : public serialize::StorageSource {
 public:
  ReceivedStorages(std::vector<c10::Storage> storages, at::Device device)
      : storages_(std::move(storages)), placed_(storages_.size()), device_(device) {}
  c10::Storage load(const serialize::StorageRecord& record) override {
    const auto index = std::stoull(record.key);
    if (!placed_.at(index)) placed_[index] = serialize::place_storage(storages_[index], device_);
    return placed_[index];
  }

 private:
  std::vector<c10::Storage> storages_;
  std::vector<c10::Storage> placed_;
  at::Device device_;
};

c10::Storage on_cpu(const c10::Storage& storage) {
  return storage.device().is_cpu() ? storage : serialize::storage_bytes(storage).cpu().storage();
}

// A buffer for each storage; on rank 0 the data to send.
std::vector<at::Tensor> places_for(const std::vector<c10::Storage>& sent, const List& sizes, bool first) {
  std::vector<at::Tensor> places;
  for (std::size_t i = 0; i < sizes.items.size(); ++i) {
    places.push_back(first ? serialize::storage_bytes(on_cpu(sent[i]))
                           : at::empty({sizes.items[i].as_int()}, at::kByte));
  }
  return places;
}

}  // namespace

Group group_or_default(const Group& group) {
  return group || !is_initialized() ? group : Group(default_group());
}

bool is_first(const Group& group) { return !group || group->rank() == 0; }

std::string share_text(const Group& group, const std::string& text) {
  return group && group->size() > 1 ? group->broadcast_object(text, 0) : text;
}

void on_first(const Group& group, const std::function<void()>& action) {
  const auto outcome = share_text(group, is_first(group) ? outcome_of(action) : "");
  if (outcome.front() == kFine) return;
  throw CheckpointError(outcome.substr(1));
}

// The length, 64 bits of a hash, and the checksum of files.
std::string digest_of(std::string_view bytes) {
  return fmt::format("{}-{:016x}-{:08x}", bytes.size(), std::hash<std::string_view>()(bytes),
                     serialize::crc32_of(std::as_bytes(std::span(bytes))));
}

void on_every(const Group& group, const std::function<void()>& action) {
  const auto own = outcome_of(action);
  if (!group || group->size() == 1) {
    if (own.front() != kFine) throw CheckpointError(own.substr(1));
    return;
  }
  const auto outcomes = group->all_gather_object(own);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].front() == kFine) continue;
    throw_error("rank {}: {}", rank, outcomes[rank].substr(1));
  }
}

Value share_value(const Group& group, const Value& value, at::Device device) {
  if (!group || group->size() == 1) return value;
  // The ranks agree on every step that may fail before the next collective call.
  const bool first = group->rank() == 0;
  serialize::Pickled pickled;
  List sizes;
  on_first(group, [&] {
    pickled = serialize::pickle_value(value);
    for (const auto& storage : pickled.storages) sizes.items.emplace_back(storage.nbytes());
  });
  pickled.pickle = group->broadcast_object(pickled.pickle, 0);
  const auto shared_sizes = load_bytes(group->broadcast_object(first ? save_bytes(Value(sizes)) : "", 0));
  std::vector<at::Tensor> places;
  on_every(group, [&] { places = places_for(pickled.storages, *shared_sizes.get_if<List>(), first); });
  for (const auto& place : places) {
    if (place.numel() > 0) group->broadcast(place, 0);
  }
  auto result = value;
  on_every(group, [&] {
    if (first) return;
    std::vector<c10::Storage> storages;
    for (const auto& place : places) storages.push_back(place.storage());
    ReceivedStorages source(std::move(storages), device);
    result =
        serialize::unpickle(pickle::read_pickle(pickled.pickle, serialize::names_in_checkpoints()), source);
  });
  return result;
}

}  // namespace lockstep::checkpointing
