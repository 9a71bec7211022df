// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/backends/registry.h>
#include <lockstep/base/error.h>

namespace lockstep::backends {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::ThrowsMessage;

const c10::Device kCpu(c10::kCPU);

TEST(Registry, HasGlooShmAndFake) {
  EXPECT_THAT(available_backends(), IsSupersetOf({"fake", "gloo", "shm"}));
}

TEST(Registry, AutoOnTheCpuIsSharedMemoryWithinAHost) {
  EXPECT_EQ(resolve_backend("auto", kCpu, true).name, "shm");
  EXPECT_EQ(resolve_backend("auto", kCpu, false).name, "gloo");
  EXPECT_THAT(resolve_backend("auto", kCpu, false).reason, HasSubstr("several hosts"));
}

TEST(Registry, ANameIsTakenAsItIs) {
  EXPECT_EQ(resolve_backend("gloo", kCpu, true).name, "gloo");
  EXPECT_EQ(resolve_backend("gloo", kCpu, true).reason, "");
}

TEST(Registry, TakesOneForEachKindOfDevice) {
  EXPECT_EQ(resolve_backend("cpu:gloo,cuda:nccl", kCpu, true).name, "gloo");
  EXPECT_EQ(resolve_backend("cuda:nccl,cpu:shm", kCpu, true).name, "shm");
  EXPECT_THAT([] { resolve_backend("cuda:nccl", kCpu, true); },
              ThrowsMessage<ArgumentError>(HasSubstr("names none for cpu tensors")));
  EXPECT_THAT([] { resolve_backend("cpu:glo", kCpu, true); },
              ThrowsMessage<ArgumentError>(HasSubstr("\"cpu:glo\" is not of the form")));
  EXPECT_THAT([] { resolve_backend("cpu:gloo,nccl", kCpu, true); },
              ThrowsMessage<ArgumentError>(HasSubstr("\"nccl\" is not of the form")));
}

TEST(Registry, KnownButNotBuiltSaysWhyAndWhatThereIs) {
  for (const auto* name : {"nccl", "mpi"}) {
    EXPECT_THAT(
        [&] { resolve_backend(name, kCpu, true); },
        ThrowsMessage<ArgumentError>(AllOf(HasSubstr(std::string("backend ") + name + " is not built"),
                                           HasSubstr("this build has: fake, gloo"))));
  }
}

TEST(Registry, UnknownNamesAreQuoted) {
  EXPECT_THAT([] { resolve_backend("glo", kCpu, true); },
              ThrowsMessage<ArgumentError>(AllOf(HasSubstr("\"glo\""), HasSubstr("fake, gloo"))));
}

}  // namespace
}  // namespace lockstep::backends
