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

TEST(Registry, HasGlooAndFake) { EXPECT_THAT(available_backends(), IsSupersetOf({"fake", "gloo"})); }

TEST(Registry, AutoOnTheCpuIsGloo) { EXPECT_EQ(resolve_backend("auto", kCpu), "gloo"); }

TEST(Registry, KnownButNotBuiltSaysWhyAndWhatThereIs) {
  for (const auto* name : {"nccl", "mpi"}) {
    EXPECT_THAT(
        [&] { resolve_backend(name, kCpu); },
        ThrowsMessage<ArgumentError>(AllOf(HasSubstr(std::string("backend ") + name + " is not built"),
                                           HasSubstr("this build has: fake, gloo"))));
  }
}

TEST(Registry, UnknownNamesAreQuoted) {
  EXPECT_THAT([] { resolve_backend("glo", kCpu); },
              ThrowsMessage<ArgumentError>(AllOf(HasSubstr("\"glo\""), HasSubstr("fake, gloo"))));
}

}  // namespace
}  // namespace lockstep::backends
