// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/share.h"

#include <algorithm>
#include <span>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <lockstep/checkpoint/checkpoint_manager.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "runtime/elastic_run.h"
#include "runtime/run.h"
#include "serialize/storage.h"
#include "serialize/torch_format.h"
#include "serialize/unpickler.h"

namespace lockstep {
namespace checkpointing {
namespace {

// The first byte of an outcome.
constexpr char kFine = 'y';
constexpr char kFailed = 'n';

// The outcome of an action that has failed.
std::string failed(const std::filesystem::path& file, const std::string& text) {
  return fmt::format("{}{}{}{}", kFailed, file.string(), '\0', text);
}

[[noreturn]] void throw_failed(const Group& group, int rank, const std::string& outcome,
                               const std::string& prefix = "") {
  const auto end = outcome.find('\0');
  auto about = group ? comm::about(*group, {rank}) : ErrorDetails();
  about.file = outcome.substr(1, end - 1);
  throw CheckpointError(prefix + outcome.substr(end + 1), std::move(about));
}

std::string outcome_of(const std::function<void()>& action) {
  try {
    action();
    return {kFine};
  } catch (const c10::Error& error) {
    return failed({}, error.what_without_backtrace());
  } catch (const Error& error) {
    return failed(error.file(), error.what());
  } catch (const std::exception& error) {
    return failed({}, error.what());
  }
}

// A buffer for each storage; on rank 0 the data to send.
std::vector<at::Tensor> places_for(const std::vector<c10::Storage>& sent, const List& sizes, bool first) {
  std::vector<at::Tensor> places;
  for (std::size_t i = 0; i < sizes.items.size(); ++i) {
    places.push_back(first ? serialize::storage_bytes(sent[i]).cpu()
                           : at::empty({sizes.items[i].as_int()}, at::kByte));
  }
  return places;
}

// Bytes that the backend does not carry go through memory of its device, in parts of this size.
constexpr std::int64_t kCarriedBytes = std::int64_t{64} << 20;

// Empty if the group carries bytes of the CPU.
at::Tensor carrier_for(const ProcessGroup& group, const std::vector<at::Tensor>& places) {
  const auto device = comm::device_that_carries(group, at::kCPU);
  if (device.is_cpu()) return {};
  std::int64_t most = 0;
  for (const auto& place : places) most = std::max(most, place.numel());
  return at::empty({std::min(most, kCarriedBytes)}, at::TensorOptions(at::kByte).device(device));
}

void broadcast_through(const ProcessGroup& group, const at::Tensor& carrier, const at::Tensor& place) {
  for (std::int64_t done = 0; done < place.numel(); done += carrier.numel()) {
    const auto part = place.narrow(0, done, std::min(carrier.numel(), place.numel() - done));
    const auto carried = carrier.narrow(0, 0, part.numel());
    if (group.rank() == 0) carried.copy_(part);
    group.broadcast(carried, 0);
    if (group.rank() != 0) part.copy_(carried);
  }
}

std::string digest_of_weights(const Dict& weights) {
  std::string digests;
  for (const auto& [name, value] : weights) {
    const auto data = value.as_tensor().cpu().contiguous();
    digests += digest_of({static_cast<const char*>(data.const_data_ptr()), data.nbytes()});
  }
  return digest_of(digests);
}

// If each rank reads the file, another host may have another or an older file.
void check_all_read_the_same(const ProcessGroup& group, const Dict& weights,
                             const std::filesystem::path& file) {
  const auto digests = group.all_gather_object(digest_of_weights(weights));
  const auto other =
      std::ranges::find_if(digests, [&](const auto& digest) { return digest != digests.front(); });
  if (other == digests.end()) return;
  const auto rank = static_cast<int>(other - digests.begin());
  auto about = comm::about(group, {rank});
  about.file = file;
  throw_error<CheckpointError>(
      comm::reporter_of(group), std::move(about),
      "the starting weights that rank {} read from {} differ from those that rank 0 wrote: do "
      "all hosts see the same file? With CheckpointReading::broadcast only rank 0 needs it",
      rank, file.string());
}

}  // namespace

std::size_t rank_of(const Group& group) { return group ? static_cast<std::size_t>(group->rank()) : 0; }

Group sharers(const Group& group) { return runtime::is_replacement() ? Group() : group; }

bool is_first(const Group& group) { return rank_of(group) == 0; }

std::string share_text(const Group& group, const std::string& text) {
  return group && group->size() > 1 ? group->broadcast_object(text, 0) : text;
}

std::vector<std::string> gather_texts(const Group& group, const std::string& text) {
  return group && group->size() > 1 ? group->all_gather_object(text) : std::vector{text};
}

void on_first(const Group& group, const std::function<void()>& action) {
  const auto outcome = share_text(group, is_first(group) ? outcome_of(action) : "");
  // It is empty where calls are simulated.
  if (outcome.starts_with(kFailed)) throw_failed(group, 0, outcome);
}

// The length, 64 bits of a hash, and the checksum of files.
std::string digest_of(std::string_view bytes) {
  return fmt::format("{}-{:016x}-{:08x}", bytes.size(), std::hash<std::string_view>()(bytes),
                     serialize::crc32_of(std::as_bytes(std::span(bytes))));
}

void on_every(const Group& group, const std::function<void()>& action) {
  const auto outcomes = gather_texts(group, outcome_of(action));
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].front() == kFine) continue;
    throw_failed(group, static_cast<int>(rank), outcomes[rank],
                 outcomes.size() == 1 ? "" : fmt::format("rank {}: ", rank));
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
  at::Tensor carrier;
  on_every(group, [&] {
    places = places_for(pickled.storages, *shared_sizes.get_if<List>(), first);
    carrier = carrier_for(*group, places);
  });
  for (const auto& place : places) {
    if (place.numel() == 0) continue;
    if (carrier.defined()) {
      broadcast_through(*group, carrier, place);
    } else {
      group->broadcast(place, 0);
    }
  }
  auto result = value;
  on_every(group, [&] {
    if (first) return;
    std::vector<c10::Storage> placed(places.size());
    const auto load_storage = [&](const serialize::StorageRecord& record) {
      const auto index = std::stoull(record.key);
      if (!placed.at(index)) placed[index] = serialize::place_storage(places[index].storage(), device);
      return placed[index];
    };
    result =
        serialize::unpickle(pickle::read_pickle(pickled.pickle, serialize::is_in_checkpoints), load_storage);
  });
  return result;
}

}  // namespace checkpointing

Value load_on_all(const std::filesystem::path& file, const LoadOptions& options, CheckpointReading reading,
                  const std::optional<ProcessGroup>& process_group, std::source_location where) {
  const comm::CallSite site(where, "contents of a file");
  const auto group = checkpointing::sharers(runtime::group_or_default(process_group, "load_on_all()"));
  const auto on_readers =
      reading == CheckpointReading::every_rank ? checkpointing::on_every : checkpointing::on_first;
  Value value;
  on_readers(group, [&] { value = load(file, options); });
  if (reading == CheckpointReading::every_rank) return value;
  return checkpointing::share_value(group, value, options.map_location);
}

void share_starting_weights(ModuleRef module, const std::filesystem::path& file, CheckpointReading reading,
                            const std::optional<ProcessGroup>& process_group, std::source_location where) {
  const comm::CallSite site(where, "starting weights");
  const auto group = runtime::group_or_default(process_group, "share_starting_weights()");
  checkpointing::on_first(group, [&] { save(state_dict(module), file); });
  const auto weights = load_on_all(file, {}, reading, group);
  if (reading != CheckpointReading::broadcast && group)
    checkpointing::check_all_read_the_same(*group, weights.as_dict(), file);
  checkpointing::on_every(group, [&] { load_state_dict(module, weights.as_dict()); });
}

}  // namespace lockstep
