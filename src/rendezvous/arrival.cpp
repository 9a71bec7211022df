// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/arrival.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/base/host.h>
#include <lockstep/base/log.h>

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr auto kSayWaitingAfter = 10s;
constexpr std::size_t kMostNames = 20;
constexpr const char* kCountKey = "arrived/count";
// Where the ranks are, once all of them have arrived.
constexpr const char* kHostsKey = "arrived/hosts";

std::string key_of(int rank) { return fmt::format("arrived/{}", rank); }

std::vector<std::string> keys_of(int begin, int end) {
  std::vector<std::string> keys;
  for (int rank = begin; rank < end; ++rank) keys.push_back(key_of(rank));
  return keys;
}

void announce(c10d::Store& store, int rank, int world_size) {
  store.set(key_of(rank), host_identity());
  // Those after the last one look, too: a rank may have come twice.
  if (store.add(kCountKey, 1) < world_size) return;
  const auto keys = keys_of(0, world_size);
  if (!store.check(keys)) return;
  std::vector<std::string> identities;
  for (const auto& bytes : store.multiGet(keys)) identities.emplace_back(bytes.begin(), bytes.end());
  store.set(kHostsKey, HostTable::of(identities).text());
}

// False when the limit passes first.
bool have_all_arrived(c10d::Store& store, milliseconds limit) {
  const Deadline deadline(limit);
  try {
    store.wait({kHostsKey}, std::max(limit, milliseconds(1)));
    return true;
  } catch (const std::exception&) {
    // Stores throw different things at the end of the time, and some a little before it.
    if (deadline.remaining() > std::min<milliseconds>(limit / 2, 100ms)) throw;
  }
  return store.check({kHostsKey});
}

// Appends ranks of begin .. end-1 that have not arrived, at most kMostNames: a few requests for each of them.
void find_missing(c10d::Store& store, int begin, int end, std::vector<int>& missing) {
  if (begin == end || missing.size() == kMostNames || store.check(keys_of(begin, end))) return;
  if (end - begin == 1) {
    missing.push_back(begin);
    return;
  }
  const int middle = begin + (end - begin) / 2;
  find_missing(store, begin, middle, missing);
  find_missing(store, middle, end, missing);
}

// "ranks 1, 2"
std::string missing_ranks(c10d::Store& store, int world_size) {
  std::vector<int> missing;
  find_missing(store, 0, world_size, missing);
  if (missing.empty()) return "the last rank";  // it has come meanwhile
  const auto more = world_size - store.add(kCountKey, 0) - static_cast<std::int64_t>(missing.size());
  return fmt::format("rank{} {}{}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
                     missing.size() == kMostNames && more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

void await_all(c10d::Store& store, int rank, int world_size, const Deadline& deadline) {
  std::string missing = "other ranks";
  // Looked up early enough to be known should rank 0 give up a little before this rank does, and seldom: what
  // all ranks do takes rank 0's time.
  auto patience = std::min<milliseconds>(kSayWaitingAfter, deadline.remaining() / 2);
  bool said = false;
  try {
    announce(store, rank, world_size);
    while (!deadline.expired()) {
      if (have_all_arrived(store, std::min(patience, deadline.remaining()))) return;
      missing = missing_ranks(store, world_size);
      if (!said && patience >= kSayWaitingAfter) {
        said = true;
        log(LogLevel::warning, fmt::format("rank {} of {} still waits for {}", rank, world_size, missing));
      }
      patience *= 2;
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw RendezvousError(fmt::format("rank {} of {}: rank 0 gave up or died while {} had not arrived ({})",
                                      rank, world_size, missing, text.substr(0, text.find('\n'))));
  }
  throw RendezvousError(
      fmt::format("rank {} of {}: {} did not arrive within {} ms. Were they started, with the same "
                  "MASTER_ADDR, MASTER_PORT and WORLD_SIZE?",
                  rank, world_size, missing, deadline.timeout().count()));
}

void pretend_all(c10d::Store& store, int world_size) {
  store.set(kHostsKey, HostTable(std::vector<int>(static_cast<std::size_t>(world_size), 0)).text());
  store.add(kLeftKey, world_size - 1);
}

HostTable read_hosts(c10d::Store& store) { return HostTable::from_text(store.get_to_str(kHostsKey)); }

World locate(const HostTable& hosts, const Placement& placement) {
  World world{.rank = placement.rank, .size = placement.world_size};
  if (placement.local_rank && placement.local_world_size) {
    world.local_rank = *placement.local_rank;
    world.local_size = *placement.local_world_size;
    return world;
  }
  world.local_size = hosts.local_size(world.rank);
  world.local_rank = placement.local_rank.value_or(hosts.local_rank(world.rank));
  return world;
}

}  // namespace lockstep::rendezvous
