// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/slurm.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

TEST(SlurmLists, Nodes) {
  EXPECT_THAT(expand_node_list("login1"), ElementsAre("login1"));
  EXPECT_THAT(expand_node_list("a,b-2"), ElementsAre("a", "b-2"));
  EXPECT_THAT(expand_node_list("gpu[01-03,07],login1"),
              ElementsAre("gpu01", "gpu02", "gpu03", "gpu07", "login1"));
  EXPECT_THAT(expand_node_list("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(expand_node_list("r[1-2]n[3,5].cluster"),
              ElementsAre("r1n3.cluster", "r1n5.cluster", "r2n3.cluster", "r2n5.cluster"));
}

TEST(SlurmLists, MalformedListsAreRejected) {
  for (const auto* list :
       {"", "a,,b", "n[1-", "n]1[", "n[2-1]", "n[x]", "n[[1]]", "n[1-99999999999]", "n[]"}) {
    EXPECT_THROW(expand_node_list(list), RendezvousError) << list;
  }
}

TEST(SlurmLists, Tasks) {
  EXPECT_THAT(expand_tasks_per_node("4"), ElementsAre(4));
  EXPECT_THAT(expand_tasks_per_node("4(x2),3"), ElementsAre(4, 4, 3));
  for (const auto* list : {"", "x", "4(x", "4(x2", "4(xa)", "4(x99999999999)"}) {
    EXPECT_THROW(expand_tasks_per_node(list), RendezvousError) << list;
  }
}

}  // namespace
}  // namespace lockstep
