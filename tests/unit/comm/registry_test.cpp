// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

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

const Whereabouts kOneHost{};
const Whereabouts kHosts{.one_host = false};
const Whereabouts kGpu{.device = {c10::kCUDA, 0}};
const Whereabouts kSharedGpu{.device = {c10::kCUDA, 0}, .share_device = true};

bool has_nccl() { return std::ranges::count(available_backends(), "nccl") > 0; }

TEST(Registry, HasGlooShmAndFake) {
  EXPECT_THAT(available_backends(), IsSupersetOf({"fake", "gloo", "shm"}));
}

TEST(Registry, AutoOnTheCpuIsSharedMemoryWithinAHost) {
  EXPECT_EQ(resolve_backend("auto", kOneHost).name, "shm");
  EXPECT_EQ(resolve_backend("auto", kHosts).name, "gloo");
  EXPECT_THAT(resolve_backend("auto", kHosts).reason, HasSubstr("several hosts"));
}

TEST(Registry, AutoOnAGpuIsNcclBesideTheCpusChoice) {
  if (has_nccl()) {
    const auto choice = resolve_backend("auto", kGpu);
    EXPECT_EQ(choice.name, "cpu:shm,cuda:nccl");
    EXPECT_EQ(choice.reason, "all ranks share this host; nccl for its GPUs");
    EXPECT_EQ(resolve_backend("", {.device = {c10::kCUDA, 1}, .one_host = false}).name, "cpu:gloo,cuda:nccl");
  } else {
    EXPECT_THAT([] { resolve_backend("auto", kGpu); },
                ThrowsMessage<ArgumentError>(HasSubstr("backend nccl is not built")));
  }
}

TEST(Registry, RanksThatShareAGpuGoByWayOfHostMemory) {
  const auto choice = resolve_backend("auto", kSharedGpu);
  EXPECT_EQ(choice.name, "cpu:shm,cuda:shm");
  EXPECT_THAT(choice.reason, HasSubstr("cuda tensors go by way of host memory, since ranks share a device"));
  EXPECT_EQ(resolve_backend("auto", {.device = {c10::kXPU, 0}}).name, "cpu:shm,xpu:shm");
}

TEST(Registry, ANameIsTakenAsItIs) {
  EXPECT_EQ(resolve_backend("gloo", kOneHost).name, "gloo");
  EXPECT_EQ(resolve_backend("gloo", kOneHost).reason, "");
  EXPECT_EQ(resolve_backend("gloo", kGpu).name, "cpu:gloo,cuda:gloo") << "PyTorch's gloo takes GPU tensors";
  EXPECT_EQ(resolve_backend("fake", kGpu).name, "fake");
}

TEST(Registry, TakesOneForEachKindOfDevice) {
  EXPECT_EQ(resolve_backend("cpu:gloo,cuda:nccl", kOneHost).name, "gloo");
  EXPECT_EQ(resolve_backend("cuda:nccl,cpu:shm", kOneHost).name, "shm");
  EXPECT_EQ(resolve_backend("cuda:gloo,cpu:shm", kGpu).name, "cpu:shm,cuda:gloo");
  EXPECT_EQ(resolve_backend("cuda:gloo", kGpu).name, "cpu:gloo,cuda:gloo");
  EXPECT_THAT([] { resolve_backend("cuda:nccl", kOneHost); },
              ThrowsMessage<ArgumentError>(HasSubstr("names none for cpu tensors")));
  EXPECT_THAT([] { resolve_backend("cpu:glo", kOneHost); },
              ThrowsMessage<ArgumentError>(HasSubstr("no backend named \"glo\"")));
  EXPECT_THAT([] { resolve_backend("cpu:gloo,nccl", kOneHost); },
              ThrowsMessage<ArgumentError>(HasSubstr("\"nccl\" is not of the form")));
  EXPECT_THAT([] { resolve_backend("cpu:gloo,cpu:shm", kOneHost); },
              ThrowsMessage<ArgumentError>(HasSubstr("names two for cpu tensors")));
}

TEST(Registry, KnowsWhatIsForTheCpuOnly) {
  for (const auto* name : {"gloo", "shm", "cpu:gloo"}) EXPECT_TRUE(is_for_cpu_only(name)) << name;
  for (const auto* name : {"", "auto", "nccl", "fake", "cpu:gloo,cuda:nccl", "cuda:gloo"}) {
    EXPECT_FALSE(is_for_cpu_only(name)) << name;
  }
}

TEST(Registry, NcclNeedsAGpuOfItsOwn) {
  const auto problem = has_nccl() ? "this rank's device is cpu" : "on the CPU take shm (one host) or gloo";
  EXPECT_THAT([] { resolve_backend("nccl", kOneHost); }, ThrowsMessage<ArgumentError>(HasSubstr(problem)));
  if (has_nccl()) {
    EXPECT_EQ(resolve_backend("nccl", kGpu).name, "nccl");
    EXPECT_THAT([] { resolve_backend("nccl", kSharedGpu); },
                ThrowsMessage<ArgumentError>(HasSubstr("cannot connect ranks that share a GPU")));
  }
}

TEST(Registry, KnownButNotBuiltSaysWhyAndWhatThereIs) {
  std::vector<std::string> missing{"mpi"};
  if (!has_nccl()) missing.emplace_back("nccl");
  for (const auto& name : missing) {
    EXPECT_THAT([&] { resolve_backend(name, kOneHost); },
                ThrowsMessage<ArgumentError>(AllOf(HasSubstr("backend " + name + " is not built"),
                                                   HasSubstr("this build has: fake, gloo"))));
  }
}

TEST(Registry, UnknownNamesAreQuoted) {
  EXPECT_THAT([] { resolve_backend("glo", kOneHost); },
              ThrowsMessage<ArgumentError>(AllOf(HasSubstr("\"glo\""), HasSubstr("fake, gloo"))));
}

}  // namespace
}  // namespace lockstep::backends
