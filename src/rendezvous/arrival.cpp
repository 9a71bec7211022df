// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/arrival.h"

#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/base/host.h>
#include <lockstep/base/log.h>

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kSayWaitingAfter = 10s;

std::string key_of(int rank) { return fmt::format("arrived/{}", rank); }

std::string names_of(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

void await_all(c10d::Store& store, int rank, int world_size, const Deadline& deadline) {
  std::vector<int> missing;
  for (int other = 0; other < world_size; ++other) missing.push_back(other);
  const auto started = Deadline::Clock::now();
  bool said = false;
  auto pause = 1ms;
  try {
    store.set(key_of(rank), host_identity());
    while (true) {
      std::erase_if(missing, [&](int other) { return store.check({key_of(other)}); });
      if (missing.empty()) return;
      if (deadline.expired()) break;
      if (!said && Deadline::Clock::now() - started > kSayWaitingAfter) {
        said = true;
        log(LogLevel::warning,
            fmt::format("rank {} of {} still waits for {}", rank, world_size, names_of(missing)));
      }
      std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(pause, deadline.remaining()));
      pause = std::min<std::chrono::milliseconds>(pause * 2, 50ms);
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw RendezvousError(fmt::format("rank {} of {}: rank 0 gave up or died while {} had not arrived ({})",
                                      rank, world_size, names_of(missing), text.substr(0, text.find('\n'))));
  }
  throw RendezvousError(
      fmt::format("rank {} of {}: {} did not arrive within {} ms. Were they started, with the same "
                  "MASTER_ADDR, MASTER_PORT and WORLD_SIZE?",
                  rank, world_size, names_of(missing), deadline.timeout().count()));
}

void pretend_all(c10d::Store& store, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) store.set(key_of(rank), host_identity());
  store.add(kLeftKey, world_size - 1);
}

bool all_on_one_host(c10d::Store& store, const std::vector<int>& ranks) {
  if (ranks.size() < 2) return true;
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(key_of(rank));
  const auto hosts = store.multiGet(keys);
  return std::ranges::all_of(hosts, [&](const auto& host) { return host == hosts.front(); });
}

World locate(c10d::Store& store, const Placement& placement) {
  World world{.rank = placement.rank, .size = placement.world_size};
  if (placement.local_rank && placement.local_world_size) {
    world.local_rank = *placement.local_rank;
    world.local_size = *placement.local_world_size;
    return world;
  }
  const std::string own = host_identity();
  world.local_size = 0;
  for (int rank = 0; rank < world.size; ++rank) {
    if (store.get_to_str(key_of(rank)) != own) continue;
    world.local_size += 1;
    world.local_rank += rank < world.rank ? 1 : 0;
  }
  if (placement.local_rank) world.local_rank = *placement.local_rank;
  return world;
}

}  // namespace lockstep::rendezvous
