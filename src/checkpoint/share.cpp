// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/share.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "serialize/allowed_names.h"
#include "serialize/pickler.h"
#include "serialize/place_storage.h"
#include "serialize/storage_bytes.h"
#include "serialize/unpickler.h"

namespace lockstep::checkpoint {
namespace {

// The first byte tells a failure from a success.
constexpr char kFine = 'y';
constexpr char kFailed = 'n';

std::string outcome_of(const std::function<void()>& action) {
  try {
    action();
    return {kFine};
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

std::vector<c10::Storage> share_storages(const ProcessGroup& group, const std::vector<c10::Storage>& given,
                                         const std::vector<std::int64_t>& sizes) {
  std::vector<c10::Storage> storages;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto bytes =
        group.rank() == 0 ? serialize::storage_bytes(on_cpu(given[i])) : at::empty({sizes[i]}, at::kByte);
    if (sizes[i] > 0) group.broadcast(bytes, 0);
    storages.push_back(bytes.storage());
  }
  return storages;
}

}  // namespace

bool is_first(const Group& group) { return !group || group->rank() == 0; }

std::string share_text(const Group& group, const std::string& text) {
  return group && group->size() > 1 ? group->broadcast_object(text, 0) : text;
}

void on_first(const Group& group, const std::function<void()>& action) {
  const auto outcome = share_text(group, is_first(group) ? outcome_of(action) : "");
  if (outcome.front() == kFine) return;
  throw CheckpointError(outcome.substr(1));
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
    throw CheckpointError(fmt::format("rank {}: {}", rank, outcomes[rank].substr(1)));
  }
}

Value share_value(const Group& group, const Value& value, at::Device device) {
  if (!group || group->size() == 1) return value;
  serialize::Pickled pickled;
  List sizes;
  if (group->rank() == 0) {
    pickled = serialize::pickle_value(value);
    for (const auto& storage : pickled.storages) sizes.items.emplace_back(storage.nbytes());
  }
  pickled.pickle = group->broadcast_object(pickled.pickle, 0);
  const auto shared_sizes = load_bytes(group->broadcast_object(save_bytes(Value(sizes)), 0));
  std::vector<std::int64_t> counts;
  for (const auto& size : shared_sizes.as_items()) counts.push_back(size.as_int());
  auto storages = share_storages(*group, pickled.storages, counts);
  if (group->rank() == 0) return value;
  ReceivedStorages source(std::move(storages), device);
  return serialize::unpickle(pickle::read_pickle(pickled.pickle, serialize::names_in_checkpoints()), source);
}

}  // namespace lockstep::checkpoint
