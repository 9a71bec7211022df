// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/store_barrier.h"

#include <future>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

#include "base/host.h"
#include "support/error_of.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// Counts what ranks ask of it.
class CountedStore : public c10d::HashStore {
 public:
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    ++requests;
    HashStore::set(key, value);
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    ++requests;
    return HashStore::get(key);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    ++requests;
    return HashStore::add(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    ++requests;
    return HashStore::check(keys);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    ++requests;
    HashStore::wait(keys, timeout);
  }
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    ++requests;
    return HashStore::multiGet(keys);
  }

  std::atomic<int> requests = 0;
};

void arrive(c10d::Store& store, const std::vector<int>& ranks, int size, std::chrono::milliseconds timeout) {
  std::vector<std::future<void>> all;
  for (const int rank : ranks) {
    all.push_back(std::async(std::launch::async, [&store, rank, size, timeout] {
      store_barrier(store, rank, {.world_size = size}, Deadline(timeout));
    }));
  }
  for (auto& one : all) one.wait();
  for (auto& one : all) one.get();
}

std::vector<int> ranks_below(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

TEST(Arrival, RequestsPerRankDoNotGrowWithRanks) {
  for (const int size : {1, 2, 40}) {
    CountedStore store;
    arrive(store, ranks_below(size), size, 60s);
    // HashStore's multiGet gets one by one, which is counted, too.
    EXPECT_LE(store.requests, 4 * size + 3 + size) << size;
    const auto hosts = read_host_map(store, 0, size);
    EXPECT_TRUE(hosts.all_on_one_host(ranks_below(size)));
    EXPECT_EQ(hosts.local_size(0), size);
    EXPECT_EQ(hosts.local_rank(size - 1), size - 1);
  }
}

TEST(Arrival, NamesMissingRanks) {
  CountedStore store;
  EXPECT_THAT(
      [&] {
        arrive(store, {0, 2, 3}, 6, 1s);
      },
      ThrowsMessage<RendezvousError>(AllOf(HasSubstr("rank 0 of 6: ranks 1, 4, 5 did not arrive"),
                                           HasSubstr("1000 ms"), HasSubstr("MASTER_PORT"))));
  CountedStore other;
  EXPECT_THAT([&] { arrive(other, {1}, 2, 1ms); },
              ThrowsMessage<RendezvousError>(HasSubstr("rank 1 of 2: rank 0 did not arrive")));
  CountedStore again;
  EXPECT_THAT(
      [&] {
        arrive(again, {0, 2, 3}, 6, 1s);
      },
      ::testing::Throws<RendezvousError>(
          ::testing::Property(&Error::ranks, ::testing::ElementsAre(1, 4, 5))));
}

TEST(Arrival, NamesSomeOfManyMissingRanks) {
  CountedStore store;
  EXPECT_THAT(
      [&] {
        arrive(store, {0, 3}, 1000, 1s);
      },
      ThrowsMessage<RendezvousError>(
          AllOf(HasSubstr("ranks 1, 2, 4, 5"), HasSubstr("21 and 978 more did not"), Not(HasSubstr("22,")))));
  EXPECT_LT(store.requests, 500);
}

TEST(Arrival, ARankThatArrivesTwiceCountsOnce) {
  CountedStore store;
  EXPECT_THAT(
      [&] {
        arrive(store, {0, 1, 1}, 3, 1s);
      },
      ThrowsMessage<RendezvousError>(HasSubstr("rank 2 did not arrive")));
  // But the last rank sees that all have arrived.
  CountedStore late;
  arrive(late, {0, 1, 1, 2}, 3, 60s);
}

std::string error_of_arriving(c10d::Store& store, int rank, const RankTerms& terms) {
  return lockstep::testing::error_of<RendezvousError>([&] {
    store_barrier(store, rank, terms, Deadline(60s));
    read_host_map(store, rank, terms.world_size);
  });
}

std::string error_of_arriving(c10d::Store& store, int rank, int size) {
  return error_of_arriving(store, rank, RankTerms{.world_size = size});
}

// Of both ranks, which must say the same.
std::string error_of_different(const RankTerms& of_first, const RankTerms& of_second) {
  CountedStore store;
  auto first = std::async(std::launch::async, [&] { return error_of_arriving(store, 0, of_first); });
  while (!store.check({"arrived/terms"})) std::this_thread::yield();
  const auto second = error_of_arriving(store, 1, of_second);
  EXPECT_EQ(first.get(), "rank 0" + second.substr(std::string("rank 1").size()));
  return second;
}

TEST(Arrival, DifferentWorldSizesAreNamedOnAllRanksAtOnce) {
  CountedStore store;
  auto first = std::async(std::launch::async, [&] { return error_of_arriving(store, 0, 2); });
  while (!store.check({"arrived/terms"})) std::this_thread::yield();
  const std::string what =
      "the ranks were started with different world sizes: WORLD_SIZE is 3 on rank 1 and 2 on rank 0; give every "
      "rank the same WORLD_SIZE";
  EXPECT_THAT(error_of_arriving(store, 1, 3), HasSubstr("rank 1 of 3: " + what));
  EXPECT_THAT(first.get(), HasSubstr("rank 0 of 2: " + what));
}

TEST(Arrival, DifferentVersionsAndBackendsAreNamedOnAllRanksAtOnce) {
  const RankTerms own{.world_size = 2, .backend = "shm"};
  auto other = own;
  other.backend = "gloo";
  EXPECT_EQ(
      error_of_different(own, other),
      "rank 1 of 2: the ranks ask for different backends: the backend is gloo on rank 1 and shm on rank 0; "
      "give every rank the same InitOptions::backend");
  other.libtorch = "99.2";
  EXPECT_THAT(error_of_different(own, other),
              HasSubstr("LibTorch is 99.2 on rank 1 and " TORCH_VERSION " on rank 0"));
  other.lockstep = "99.1";
  EXPECT_EQ(error_of_different(own, other),
            "rank 1 of 2: the ranks run different versions of Lockstep: Lockstep is 99.1 on rank 1 and " +
                lockstep::version() + " on rank 0; build all programs of the run with the same version");
}

// Later versions may have more terms or fewer.
TEST(RankTerms, OfAnotherVersionAreRead) {
  EXPECT_EQ(difference({}, 3, "new x\nrank 7\nlockstep 99.1\n"),
            fmt::format(
                "the ranks run different versions of Lockstep: Lockstep is {} on rank 3 and 99.1 on rank 7; "
                "build all programs of the run with the same version",
                lockstep::version()));
  EXPECT_THAT(difference({}, 3, ""), HasSubstr("and unknown on rank unknown"));
  EXPECT_EQ(difference({.world_size = 4}, 3, to_text({.world_size = 4}, 1)), "");
}

TEST(Arrival, ARankWithALargerWorldThanACompleteOneIsRefusedAlone) {
  CountedStore store;
  arrive(store, {0, 1}, 2, 60s);
  EXPECT_THAT(error_of_arriving(store, 2, 3), HasSubstr("WORLD_SIZE is 3 on rank 2 and 2 on rank"));
  EXPECT_EQ(read_host_map(store, 0, 2).local_size(0), 2);
}

TEST(HostMap, MapsRanksToHosts) {
  const auto hosts = HostMap::of({"a", "a", "b", "a", "b"});
  EXPECT_EQ(hosts.text(), "2*0,1*1,1*0,1*1");
  const auto read = HostMap::from_text(hosts.text());
  EXPECT_FALSE(read.all_on_one_host({0, 1, 2}));
  EXPECT_TRUE(read.all_on_one_host({3, 0}));
  EXPECT_TRUE(read.all_on_one_host({}));
  EXPECT_EQ(read.local_size(2), 2);
  EXPECT_EQ(read.local_size(3), 3);
  EXPECT_EQ(read.local_rank(3), 2);
  EXPECT_EQ(read.local_rank(2), 0);
}

TEST(HostMap, RejectsOtherText) {
  for (const char* text : {"x", "2", "2*", "2*0;", "-1*0", "2*0,,", "99999999999*0"}) {
    EXPECT_THROW(HostMap::from_text(text), RendezvousError) << text;
  }
}

}  // namespace
}  // namespace lockstep::rendezvous
