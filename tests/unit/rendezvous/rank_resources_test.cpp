// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/rank_resources.h"

#include <map>
#include <string>
#include <thread>

#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/error.h>

#include "machine/host.h"

namespace lockstep::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ThreadShare, EndsWithItsContextButNotANumberOfTheProgram) {
  const auto restore =
      c10::make_scope_exit([before = at::get_num_threads()] { at::set_num_threads(before); });
  const World world{.rank = 1, .size = 64, .local_rank = 1, .local_size = 64};
  const Env env(std::map<std::string, std::string>{});
  const int all = static_cast<int>(machine::read_cores().size());
  at::set_num_threads(all);
  {
    const ThreadShare share(world, nullptr, env);
    EXPECT_TRUE(at::get_num_threads() < all || all == 1);
  }
  EXPECT_EQ(at::get_num_threads(), all);
  {
    const ThreadShare share(world, nullptr, env);
    at::set_num_threads(all + 1);
  }
  EXPECT_EQ(at::get_num_threads(), all + 1);
}

const c10::Device kCpu(c10::kCPU);

World rank_of(int local_rank, int local_size) {
  return {.rank = local_rank, .size = local_size, .local_rank = local_rank, .local_size = local_size};
}

c10::Device cuda(int index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

TEST(DeviceChoice, WithoutGpusItIsTheCpu) { EXPECT_EQ(choose_device({}, rank_of(1, 2)), kCpu); }

TEST(DeviceChoice, EachLocalRankHasItsGpu) {
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(choose_device({.count = 4}, rank_of(rank, 4)), cuda(rank));
}

TEST(DeviceChoice, CpuBackendsAndBuildsWithoutNcclUseTheCpu) {
  EXPECT_EQ(choose_device({.for_cpu = true, .count = 4}, rank_of(1, 2)), kCpu);
  EXPECT_EQ(choose_device({.count = 4, .can_reduce = false}, rank_of(1, 2)), kCpu);
  EXPECT_EQ(choose_device({.wanted = c10::Device(c10::kCUDA), .for_cpu = true, .count = 4}, rank_of(1, 2)),
            cuda(1))
      << "gloo for GPU tensors, when asked for";
}

TEST(DeviceChoice, WarnsOfACpuBackendOnAHostWithGpus) {
  const auto warning_of = [](const DeviceRequest& request, const char* backend) {
    return cpu_warning(request, backends::BackendSpec::parse(backend));
  };
  EXPECT_THAT(warning_of({.for_cpu = true, .count = 4}, "gloo"),
              AllOf(HasSubstr("backend gloo: training uses the CPU, although 4 GPUs are visible"),
                    HasSubstr("\"cpu:gloo,cuda:nccl\""), HasSubstr("InitOptions::device")));
  EXPECT_THAT(warning_of({.for_cpu = true, .count = 1}, "cpu:shm"), HasSubstr("1 GPU is visible"));
  EXPECT_EQ(warning_of({.for_cpu = true, .count = 0}, "gloo"), "");
  EXPECT_EQ(warning_of({.wanted = kCpu, .for_cpu = true, .count = 4}, "gloo"), "") << "the CPU was requested";
  EXPECT_EQ(warning_of({.for_cpu = true, .count = 4}, "fake"), "");
  EXPECT_EQ(warning_of({.count = 4}, "auto"), "");
}

TEST(DeviceChoice, UsesTheRequestedDevice) {
  EXPECT_EQ(choose_device({.wanted = kCpu, .count = 4}, rank_of(1, 2)), kCpu);
  EXPECT_EQ(choose_device({.wanted = cuda(3), .count = 4}, rank_of(1, 2)), cuda(3));
  EXPECT_EQ(choose_device({.wanted = c10::Device(c10::kCUDA), .count = 4}, rank_of(1, 2)), cuda(1));
}

TEST(DeviceChoice, AMissingRequestedDeviceIsNamed) {
  EXPECT_THAT([] { choose_device({.wanted = cuda(4), .count = 4}, rank_of(1, 2)); },
              ThrowsMessage<ArgumentError>(
                  AllOf(HasSubstr("rank 1 of 2"), HasSubstr("cuda:4"), HasSubstr("can use 4 of that type"))));
  EXPECT_THAT([] { choose_device({.wanted = c10::Device(c10::kCUDA)}, rank_of(0, 1)); },
              ThrowsMessage<ArgumentError>(HasSubstr("can use no CUDA device")));
}

TEST(DeviceChoice, MoreRanksThanGpusAreRejectedUnlessTheyShare) {
  EXPECT_THAT(
      [] { choose_device({.count = 2}, rank_of(3, 4)); },
      ThrowsMessage<ArgumentError>(
          AllOf(HasSubstr("local rank 3 finds 2 CUDA devices for the 4 ranks"), HasSubstr("share_devices"))));
  EXPECT_EQ(choose_device({.share = true, .count = 2}, rank_of(3, 4)), cuda(1));
}

TEST(DeviceChoice, ALauncherMayHideOtherGpus) {
  EXPECT_EQ(choose_device({.count = 1, .restricted = true}, rank_of(3, 4)), cuda(0));
  EXPECT_THAT([] { choose_device({.count = 1}, rank_of(3, 4)); },
              ThrowsMessage<ArgumentError>(HasSubstr("finds 1 CUDA device for the 4 ranks")));
  EXPECT_THAT([] { choose_device({.count = 2, .restricted = true}, rank_of(2, 4)); },
              ThrowsMessage<ArgumentError>(HasSubstr("(CUDA_VISIBLE_DEVICES is set)")));
}

std::vector<RankDevice> claims_of(const std::vector<std::string>& identities) {
  std::vector<RankDevice> devices;
  for (const auto& identity : identities) devices.push_back({.kind = "cuda", .identity = identity});
  return devices;
}

TEST(DeviceVerdict, SharedDevicesAreNamedWithTheirRanks) {
  EXPECT_EQ(check_devices(claims_of({"a", "b", "", ""}), false).refusal, "")
      << "unknown ones are like no other";
  EXPECT_THAT(check_devices(claims_of({"b", "a", "b", "a", "b"}), false).refusal,
              ::testing::StartsWith("ranks 1, 3 have the same a; ranks 0, 2, 4 have the same b; start"));
  const auto shared = check_devices(claims_of({"a", "a"}), true);
  EXPECT_TRUE(shared.shared);
  EXPECT_EQ(shared.refusal, "");
}

TEST(DeviceVerdict, AnErrorOfOneRankIsThrownOnAll) {
  auto devices = claims_of({"a", "b"});
  devices[1] = {.error = "rank 1 of 2: no GPU for me"};
  EXPECT_EQ(check_devices(devices, true).refusal, "rank 1 of 2: no GPU for me");
}

TEST(DeviceVerdict, DeviceTypesMustNotBeMixed) {
  auto devices = claims_of({"a", "b", "c"});
  devices[2] = {};
  EXPECT_THAT(check_devices(devices, true).refusal,
              HasSubstr("rank 0's device is cuda and rank 2's is cpu; all ranks need the same kind"));
}

std::vector<std::string> verdicts(const std::vector<RankDevice>& devices, bool share) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const int size = static_cast<int>(devices.size());
  std::vector<std::string> results(devices.size());
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto own = static_cast<std::size_t>(rank);
        try {
          results[own] =
              agree_on_devices(*store, rank_of(rank, size), devices[own], share) ? "shared" : "own";
        } catch (const ArgumentError& error) {
          results[own] = error.what();
        }
      });
    }
  }
  return results;
}

TEST(DeviceVerdict, AllRanksAgree) {
  EXPECT_THAT(verdicts(claims_of({"a", "b", "c"}), false), ::testing::Each("own"));
  EXPECT_THAT(verdicts(claims_of({"a", "b", "a"}), true), ::testing::Each("shared"));
  EXPECT_THAT(verdicts(claims_of({"a", "b", "a"}), false),
              ::testing::Each(AllOf(HasSubstr("ranks 0, 2 have the same a"), HasSubstr("share_devices"))));
}

}  // namespace
}  // namespace lockstep::rendezvous
