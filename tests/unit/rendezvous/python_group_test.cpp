// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/python_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

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
  EXPECT_THAT([&] { agree_on_backend(store, "shm", 1, 2); },
              ThrowsMessage<RendezvousError>(AllOf(
                  HasSubstr("rank 1 of 2"), HasSubstr("shm of Lockstep 0.0.1"),
                  HasSubstr("shm of Lockstep " + lockstep::version()), HasSubstr("the same versions"))));
}

// Python ranks over gloo set no key, so it is of C++ ranks.
TEST(AgreeOnBackend, VersionsCountWithBackendsOfPyTorch) {
  for (const auto* backend : {"gloo", "nccl"}) {
    c10d::HashStore hash_store;
    c10d::Store& store = hash_store;
    agree_on_backend(store, backend, 0, 2);
    agree_on_backend(store, backend, 1, 2);
    const auto key = store.get_to_str("backend");
    store.set("backend", key.substr(0, key.find(" with LibTorch")) + " with LibTorch 2.9.0");
    EXPECT_THAT([&] { agree_on_backend(store, backend, 1, 2); },
                ThrowsMessage<RendezvousError>(HasSubstr("with LibTorch 2.9.0 on another rank")));
  }
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
