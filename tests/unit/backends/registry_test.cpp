// SPDX-License-Identifier: BSD-3-Clause
#include "backends/registry.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep::backends {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::ThrowsMessage;

const GroupTopology kOneHost{};
const GroupTopology kHosts{.one_host = false};
const GroupTopology kSharedHosts{.one_host = false, .share_hosts = true};
const GroupTopology kGpu{.device = {c10::kCUDA, 0}};
const GroupTopology kSharedGpu{.device = {c10::kCUDA, 0}, .share_device = true};

BackendChoice resolve(const std::string& text, const GroupTopology& ranks) {
  return resolve_backend(BackendSpec::parse(text), ranks);
}

bool has(const char* name) { return std::ranges::count(available_backends(), name) > 0; }
bool has_nccl() { return has("nccl"); }

TEST(Registry, HasThoseOfTheCpu) {
  EXPECT_THAT(available_backends(), IsSupersetOf({"fake", "gloo", "hierarchical", "shm"}));
}

TEST(Registry, AutoOnTheCpuUsesSharedMemoryWhereRanksShareAHost) {
  EXPECT_EQ(resolve("auto", kOneHost).spec.text(), "shm");
  EXPECT_EQ(resolve("auto", kHosts).spec.text(), "gloo");
  EXPECT_THAT(resolve("auto", kHosts).reason, HasSubstr("a host of its own"));
  EXPECT_EQ(resolve("auto", kSharedHosts).spec.text(), "hierarchical");
  EXPECT_THAT(resolve("auto", kSharedHosts).reason, HasSubstr("gloo between the hosts"));
}

TEST(Registry, ChecksTheInterfacesOfEveryBackendOverGloo) {
  const Env env(std::map<std::string, std::string>{{"GLOO_SOCKET_IFNAME", "nosuch0"}});
  for (const auto* const name : {"gloo", "hierarchical"}) {
    EXPECT_THAT([&] { check_environment(BackendSpec(name), env); },
                ThrowsMessage<RendezvousError>(HasSubstr("nosuch0")));
  }
  EXPECT_NO_THROW(check_environment(BackendSpec("shm"), env));
}

TEST(Registry, TheNetworkOfHierarchicalMustBeABackendOfHosts) {
  const Env env(std::map<std::string, std::string>{{"LOCKSTEP_HIERARCHICAL_NETWORK", "tcp"}});
  const auto is_refused =
      ThrowsMessage<ArgumentError>(HasSubstr("LOCKSTEP_HIERARCHICAL_NETWORK=tcp; it is gloo or mpi"));
  EXPECT_THAT([&] { check_environment(BackendSpec("hierarchical"), env); }, is_refused);
  auto ranks = kSharedHosts;
  ranks.env = env;
  EXPECT_THAT([&] { resolve("auto", ranks); }, is_refused);
  EXPECT_NO_THROW(check_environment(BackendSpec("gloo"), env));
}

TEST(Registry, AutoOnAGpuIsNcclPlusTheCpuChoice) {
  if (has_nccl()) {
    const auto choice = resolve("auto", kGpu);
    EXPECT_EQ(choice.spec.text(), "cpu:shm,cuda:nccl");
    EXPECT_EQ(choice.reason, "all ranks are on one host; nccl for GPU tensors");
    EXPECT_EQ(resolve("", {.device = {c10::kCUDA, 1}, .one_host = false}).spec.text(), "cpu:gloo,cuda:nccl");
  } else {
    EXPECT_THAT([] { resolve("auto", kGpu); },
                ThrowsMessage<ArgumentError>(HasSubstr("backend nccl is not built")));
  }
}

TEST(Registry, RanksThatShareAGpuGoThroughHostMemory) {
  const auto choice = resolve("auto", kSharedGpu);
  EXPECT_EQ(choice.spec.text(), "cpu:shm,cuda:shm");
  EXPECT_THAT(choice.reason, HasSubstr("cuda tensors go through host memory, because ranks share a device"));
  EXPECT_EQ(resolve("auto", {.device = {c10::kXPU, 0}}).spec.text(), "cpu:shm,xpu:shm");
}

TEST(Registry, ANameIsUsedUnchanged) {
  EXPECT_EQ(resolve("gloo", kOneHost).spec.text(), "gloo");
  EXPECT_EQ(resolve("gloo", kOneHost).reason, "");
  EXPECT_EQ(resolve("gloo", kGpu).spec.text(), "cpu:gloo,cuda:gloo") << "PyTorch's gloo takes GPU tensors";
  EXPECT_EQ(resolve("fake", kGpu).spec.text(), "fake");
}

TEST(Registry, AcceptsOneBackendPerDeviceType) {
  EXPECT_EQ(resolve("cpu:gloo,cuda:nccl", kOneHost).spec.text(), "gloo");
  EXPECT_EQ(resolve("cuda:nccl,cpu:shm", kOneHost).spec.text(), "shm");
  EXPECT_EQ(resolve("cuda:gloo,cpu:shm", kGpu).spec.text(), "cpu:shm,cuda:gloo");
  EXPECT_EQ(resolve("cuda:gloo", kGpu).spec.text(), "cpu:gloo,cuda:gloo");
  EXPECT_THAT([] { resolve("cuda:nccl", kOneHost); },
              ThrowsMessage<ArgumentError>(HasSubstr("names no backend for cpu tensors")));
  EXPECT_THAT([] { resolve("cpu:glo", kOneHost); },
              ThrowsMessage<ArgumentError>(HasSubstr("no backend named \"glo\"")));
  EXPECT_THAT([] { resolve("cpu:gloo,nccl", kOneHost); },
              ThrowsMessage<ArgumentError>(HasSubstr("\"nccl\" is not of the form")));
  EXPECT_THAT([] { resolve("cpu:gloo,cpu:shm", kOneHost); },
              ThrowsMessage<ArgumentError>(HasSubstr("names two backends for cpu tensors")));
}

TEST(Registry, SpecsKeepTheirText) {
  for (const auto* text : {"auto", "gloo", "cpu:gloo,cuda:nccl"}) {
    EXPECT_EQ(BackendSpec::parse(text).text(), text);
  }
  EXPECT_TRUE(BackendSpec::parse("").is_auto());
  EXPECT_TRUE(BackendSpec::parse("cpu:gloo,cuda:nccl").contains("nccl"));
}

TEST(Registry, KnowsCpuOnlyBackends) {
  for (const auto* name : {"gloo", "shm", "cpu:gloo"})
    EXPECT_TRUE(BackendSpec::parse(name).is_for_cpu_only()) << name;
  for (const auto* name : {"", "auto", "nccl", "fake", "cpu:gloo,cuda:nccl", "cuda:gloo"}) {
    EXPECT_FALSE(BackendSpec::parse(name).is_for_cpu_only()) << name;
  }
}

TEST(Registry, NcclNeedsAGpuPerRank) {
  const auto problem = has_nccl() ? "this rank's device is cpu" : "on the CPU use shm (one host), gloo";
  EXPECT_THAT([] { resolve("nccl", kOneHost); }, ThrowsMessage<ArgumentError>(HasSubstr(problem)));
  if (has_nccl()) {
    EXPECT_EQ(resolve("nccl", kGpu).spec.text(), "nccl");
    EXPECT_THAT([] { resolve("nccl", kSharedGpu); },
                ThrowsMessage<ArgumentError>(HasSubstr("cannot connect ranks that share a GPU")));
  }
}

TEST(Registry, AKnownBackendThatIsNotBuiltNamesTheAlternatives) {
  std::vector<std::string> missing;
  if (!has_nccl()) missing.emplace_back("nccl");
  if (!has("mpi")) missing.emplace_back("mpi");
  for (const auto& name : missing) {
    EXPECT_THAT([&] { resolve(name, kOneHost); },
                ThrowsMessage<ArgumentError>(AllOf(HasSubstr("backend " + name + " is not built"),
                                                   HasSubstr("this build has: fake, gloo"))));
  }
}

TEST(Registry, UnknownNamesAreQuoted) {
  EXPECT_THAT([] { resolve("glo", kOneHost); },
              ThrowsMessage<ArgumentError>(AllOf(HasSubstr("\"glo\""), HasSubstr("fake, gloo"))));
}

}  // namespace
}  // namespace lockstep::backends
