// SPDX-License-Identifier: BSD-3-Clause
// Strings and bytes between ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "support/ranks.h"

namespace lockstep::objects_test {
namespace {

using Strings = std::vector<std::string>;

class Objects : public testing::EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Worlds, Objects, testing::backends_and_ranks({1, 2, 3, 4}), testing::name_of_case);

// Of rank 0 empty, of rank 1 all byte values, then longer and longer.
std::string object_of(int rank) {
  if (rank == 0) return {};
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  return rank == 1 ? bytes : bytes + std::string(static_cast<std::size_t>(rank) * 10'000, 'x');
}

const testing::Scenario objects("objects between all ranks", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const auto& group = context.group();
  const int size = context.world_size();
  Strings all;
  for (int rank = 0; rank < size; ++rank) all.push_back(object_of(rank));
  EXPECT_EQ(group.all_gather_object(object_of(context.rank())), all);
  for (int root = 0; root < size; ++root) {
    EXPECT_EQ(group.broadcast_object(object_of(context.rank()), root), object_of(root));
    const bool here = context.rank() == root;
    // Another call in between, and the last one waited for first.
    auto gathering = group.all_gather_object_async(object_of(context.rank()));
    auto sending = group.broadcast_object_async(object_of(context.rank()), root);
    auto collecting = group.gather_object_async(object_of(context.rank()), root);
    auto spreading = group.scatter_object_async(here ? all : Strings{}, root);
    const auto sum = at::ones({3});
    group.all_reduce(sum);
    EXPECT_EQ(sum[0].item<int>(), size);
    EXPECT_EQ(spreading.wait(), object_of(context.rank()));
    EXPECT_EQ(collecting.wait(), here ? all : Strings{});
    EXPECT_EQ(sending.wait(30), object_of(root));
    auto copy = gathering.then([&](const Strings& gathered) { EXPECT_EQ(gathered, all); });
    EXPECT_EQ(gathering.wait(), all);
    EXPECT_TRUE(gathering.is_completed());
    EXPECT_EQ(&copy.wait(), &gathering.wait()) << "copies share the objects";
    EXPECT_EQ(group.gather_object(object_of(context.rank()), root), here ? all : Strings{});
    EXPECT_EQ(group.scatter_object(here ? all : Strings{}, root), object_of(context.rank()));
  }
  EXPECT_EQ(group.all_gather_object(""), Strings(static_cast<std::size_t>(size)));
  EXPECT_EQ(group.gather_object("", 0),
            Strings(context.is_main_process() ? static_cast<std::size_t>(size) : 0));
  EXPECT_EQ(group.scatter_object(
                context.is_main_process() ? Strings(static_cast<std::size_t>(size)) : Strings{}, 0),
            "");
});
TEST_P(Objects, EmptyBinaryAndOfDifferentLengths) { run(objects); }

}  // namespace
}  // namespace lockstep::objects_test
