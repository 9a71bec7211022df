// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/python_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/error.h>

namespace lockstep::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(AgreeOnBackend, AnotherVersionIsAnError) {
  c10d::HashStore hash_store;
  c10d::Store& store = hash_store;
  store.compareSet("backend", "", "shm of Lockstep 0.0.1");
  EXPECT_THAT(
      [&] { agree_on_backend(store, "shm", 1, 2); },
      ThrowsMessage<RendezvousError>(AllOf(HasSubstr("rank 1 of 2"), HasSubstr("shm of Lockstep 0.0.1"),
                                           HasSubstr("and version of Lockstep"))));
}

TEST(AgreeOnBackend, VersionsDoNotCountWithBackendsOfPyTorch) {
  c10d::HashStore store;
  agree_on_backend(store, "gloo", 0, 2);
  EXPECT_EQ(store.get_to_str("backend"), "gloo");
  agree_on_backend(store, "gloo", 1, 2);
}

}  // namespace
}  // namespace lockstep::rendezvous
