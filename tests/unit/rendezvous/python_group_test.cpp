// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/python_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/error.h>

#include "device/libtorch_versions.h"

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

Env with_variable(const std::string& value) { return Env({{"TORCH_DIST_USE_NCCL2", value}}); }

TEST(NcclOfPython, IsTheNewClassByDefaultFrom2_15AndByItsVariableIn2_14) {
  constexpr bool is_default = libtorch::is_at_least(2, 15);
  EXPECT_EQ(libtorch::python_uses_nccl2(Env(std::map<std::string, std::string>{})), is_default);
  EXPECT_EQ(libtorch::python_uses_nccl2(with_variable("1")), libtorch::is_at_least(2, 14));
  EXPECT_EQ(libtorch::python_uses_nccl2(with_variable("yes")), is_default);
  EXPECT_FALSE(libtorch::python_uses_nccl2(with_variable("0")));
}

TEST(NcclOfPython, ItsGroupsAreSplitOffADefaultGroupOfTheNewClass) {
  const backends::BackendSpec nccl("nccl"), gloo("gloo");
  EXPECT_EQ(python_splits_default_group(nccl, nccl, with_variable("1")), libtorch::is_at_least(2, 15));
  EXPECT_FALSE(python_splits_default_group(nccl, nccl, with_variable("0")));
  EXPECT_FALSE(python_splits_default_group(nccl, gloo, with_variable("1")));
  EXPECT_FALSE(python_splits_default_group(gloo, nccl, with_variable("1")));
}

}  // namespace
}  // namespace lockstep::rendezvous
