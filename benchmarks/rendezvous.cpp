// SPDX-License-Identifier: BSD-3-Clause
// How long ranks take to find each other, and what they ask of rank 0's store for it: simulated ranks, each a
// thread with a connection of its own, do what init() does until all know that all are there and where.
// "each" is how it was done before: every rank asks for every other one.
//
//   build/release/bin/benchmark rendezvous --sizes 10 30 100 300 1000 4000
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <iostream>
#include <numeric>
#include <optional>
#include <sys/resource.h>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "base/host.h"
#include "rendezvous/store_barrier.h"
#include "rendezvous/tcp.h"

namespace lockstep::bench::rendezvous {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

struct Flags {
  std::vector<int> sizes = {10, 30, 100, 300, 1000};
  int each_up_to = 300;
  int rounds = 5;
};

// Counts what is asked of a store.
class CountingStore : public c10d::Store {
 public:
  explicit CountingStore(StorePtr store) : store_(std::move(store)) {}
  std::int64_t requests() const { return requests_; }

  c10::intrusive_ptr<Store> clone() override { return c10::make_intrusive<CountingStore>(store_->clone()); }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    counted()->set(key, value);
  }
  std::vector<std::uint8_t> get(const std::string& key) override { return counted()->get(key); }
  std::int64_t add(const std::string& key, std::int64_t value) override { return counted()->add(key, value); }
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override {
    return counted()->compareSet(key, expected, desired);
  }
  bool deleteKey(const std::string& key) override { return counted()->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return counted()->check(keys); }
  std::int64_t getNumKeys() override { return counted()->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { counted()->wait(keys); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    counted()->wait(keys, timeout);
  }
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    return counted()->multiGet(keys);
  }

 private:
  Store* counted() {
    ++requests_;
    return store_.get();
  }

  StorePtr store_;
  std::int64_t requests_ = 0;
};

// As Lockstep 0.1 began: every rank polls for every other one, and reads what each has said.
void ask_for_each(c10d::Store& store, int rank, int size) {
  const auto key = [](int other) { return fmt::format("arrived/{}", other); };
  store.set(key(rank), lockstep::host_identity());
  std::vector<int> missing(static_cast<std::size_t>(size));
  std::iota(missing.begin(), missing.end(), 0);
  for (std::chrono::milliseconds pause = 1ms; true;
       pause = std::min<std::chrono::milliseconds>(pause * 2, 50ms)) {
    std::erase_if(missing, [&](int other) { return store.check({key(other)}); });
    if (missing.empty()) break;
    std::this_thread::sleep_for(pause);
  }
  std::vector<std::string> keys;
  for (int other = 0; other < size; ++other) keys.push_back(key(other));
  store.multiGet(keys);
}

void arrive_as_now(c10d::Store& store, int rank, int size) {
  lockstep::rendezvous::store_barrier(store, rank, {.world_size = size}, lockstep::Deadline(30min));
  lockstep::rendezvous::read_host_map(store, rank, size);
}

struct Arrival {
  double seconds = 0;
  double requests = 0;  // of a rank, on average
};

// One meeting of `size` ranks, from their start to when the last of them knows all.
Arrival find_store(int size, void (*arrive)(c10d::Store&, int, int)) {
  using namespace lockstep::rendezvous;
  const lockstep::Deadline deadline(30min);
  auto listener = listen_on(0, "127.0.0.1");
  const Endpoint server{"127.0.0.1", listener.port};
  std::vector<StorePtr> stores(static_cast<std::size_t>(size));
  std::atomic<std::int64_t> requests = 0;
  std::promise<void> start;
  const auto started = start.get_future().share();
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, started, rank] {
      started.wait();
      auto& store = stores[static_cast<std::size_t>(rank)];
      store = rank == 0 ? serve_store(std::move(listener), server.host, size, deadline)
                        : join_store(server, rank, size, deadline);
      CountingStore counting(store);
      if (rank != 0) counting.check({kLeftKey});
      arrive(counting, rank, size);
      requests += counting.requests();
    }));
  }
  const auto begin = Clock::now();
  start.set_value();
  for (auto& rank : ranks) rank.get();
  return {.seconds = std::chrono::duration<double>(Clock::now() - begin).count(),
          .requests = static_cast<double>(requests) / size};
}

// The quickest: c10d asks for the names of both ends of every connection, and where a name server loses one
// of many questions at once, that meeting takes five seconds more.
Arrival quickest_of(int rounds, int size, void (*arrive)(c10d::Store&, int, int)) {
  Arrival quickest = find_store(size, arrive);
  for (int round = 1; round < rounds; ++round) {
    const auto other = find_store(size, arrive);
    if (other.seconds < quickest.seconds) quickest = other;
  }
  return quickest;
}

// Each simulated rank has a socket at either end of its connection.
void allow_descriptors_for(int ranks) {
  constexpr rlim_t kOthers = 256;
  const auto needed = 2 * static_cast<rlim_t>(ranks) + kOthers;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < needed) {
    throw lockstep::Error(fmt::format(
        "{} simulated ranks need {} file descriptors, but the hard limit is {}; raise it with ulimit -Hn",
        ranks, needed, limit.rlim_max));
  }
  limit.rlim_cur = std::max(limit.rlim_cur, needed);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void print_row(int size, const Arrival& now, const std::optional<Arrival>& each) {
  fmt::print("| {:5} | {:8.3f} | {:8.1f} |", size, now.seconds, now.requests);
  if (each) {
    fmt::print(" {:8.3f} | {:8.1f} |\n", each->seconds, each->requests);
  } else {
    fmt::print(" {:>8} | {:>8} |\n", "", "");
  }
  std::fflush(stdout);
}

void measure(const Flags& flags) {
  allow_descriptors_for(std::ranges::max(flags.sizes));
  fmt::print("| {:>5} | {:>8} | {:>8} | {:>8} | {:>8} |\n", "ranks", "seconds", "requests", "each: s",
             "requests");
  fmt::print("|------:|---------:|---------:|---------:|---------:|\n");
  for (const int size : flags.sizes) {
    std::optional<Arrival> each;
    if (size <= flags.each_up_to) each = quickest_of(flags.rounds, size, &ask_for_each);
    print_row(size, quickest_of(flags.rounds, size, &arrive_as_now), each);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures how long simulated ranks take to find each other.");
  app.add_option("--sizes", flags.sizes, "numbers of ranks")->check(CLI::PositiveNumber);
  app.add_option("--each-up-to", flags.each_up_to,
                 "largest number for which the earlier way is measured, too");
  app.add_option("--rounds", flags.rounds, "meetings of each kind, of which the quickest counts")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  measure(flags);
  return 0;
}

}  // namespace lockstep::bench::rendezvous
