// SPDX-License-Identifier: BSD-3-Clause
// init() in one process: wrong options, and groups of one.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "base/time_limits.h"
#include "rendezvous/session.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const Env kEmpty{std::map<std::string, std::string>{}};

template <typename Expected>
void expect_refused(const rendezvous::SessionOptions& options, const ::testing::Matcher<std::string>& text) {
  EXPECT_THAT([&] { auto context = rendezvous::init(options); }, ThrowsMessage<Expected>(text));
  EXPECT_FALSE(is_initialized());
}

TEST(Init, APlainProcessIsAGroupOfOne) {
  EXPECT_FALSE(is_initialized());
  EXPECT_EQ(get_world_size(), 1);
  ::testing::internal::CaptureStderr();
  {
    const auto context = rendezvous::init({{}, kEmpty});
    EXPECT_TRUE(is_initialized());
    EXPECT_TRUE(context.is_main_process());
    EXPECT_EQ(context.world_size(), 1);
    EXPECT_EQ(context.local_world_size(), 1);
    EXPECT_TRUE(context.device().is_cpu());
    auto x = torch::ones({3});
    context.group().all_reduce(x);
    EXPECT_EQ(x.sum().item<float>(), 3);
    context.barrier();
    EXPECT_EQ(context.main_process_first([] { return 42; }), 42);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("not distributed"));
  EXPECT_FALSE(is_initialized());
}

TEST(Init, TheDebugLevelOfPyTorchMayBeInLowerCase) {
  const auto with_level = [](const std::string& level) { return Env({{"TORCH_DISTRIBUTED_DEBUG", level}}); };
  const auto checks = [&](const std::string& level) {
    return rendezvous::checks_calls({{}, with_level(level)});
  };
  EXPECT_TRUE(checks("DETAIL"));
  EXPECT_TRUE(checks("detail"));
  EXPECT_FALSE(checks("INFO"));
  EXPECT_FALSE(rendezvous::checks_calls({{}, kEmpty}));
  expect_refused<ArgumentError>({{.backend = "gloo", .with_python = true}, with_level("Detail")},
                                HasSubstr("TORCH_DISTRIBUTED_DEBUG=DETAIL"));
}

TEST(Init, ATimeoutThatContradictsTheLaunchersLimitIsRefused) {
  const std::map<std::string, std::string> variables{
      {LauncherLimits::kVariable, "progress_timeout=60000,shown=1"}};
  const Env env(variables);
  expect_refused<ArgumentError>({{.timeout = 60}, env}, AllOf(HasSubstr("the timeout of the group, 60 s"),
                                                              HasSubstr("--progress-timeout")));
  ::testing::internal::CaptureStderr();
  { const auto context = rendezvous::init({{.timeout = 61}, env}); }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("time limits of the ranks:\n"), HasSubstr(" 61 s "),
                    HasSubstr("init({.timeout = ...})")));
}

TEST(Init, TheFakeBackendWaitsForNoOtherRank) {
  const auto context = rendezvous::init({{.backend = "fake", .world_size = 4, .rank = 2}, kEmpty});
  EXPECT_EQ(context.rank(), 2);
  EXPECT_EQ(context.world_size(), 4);
  EXPECT_EQ(context.local_world_size(), 4);
  const auto tensor = torch::ones({3});
  context.group().all_reduce(tensor);
  EXPECT_EQ(context.group().recent_calls().size(), 1U);
  EXPECT_EQ(context.group().broadcast_object("its own", 0), "its own");
  const auto pair = context.new_group({2, 3});
  ASSERT_TRUE(pair);
  EXPECT_EQ(pair.size(), 2);
}

TEST(Init, WithoutAContextTheErrorNamesInit) {
  EXPECT_THAT([] { default_group(); },
              ThrowsMessage<ArgumentError>(HasSubstr("call lockstep::init() first")));
  EXPECT_THAT([] { barrier(); }, ThrowsMessage<ArgumentError>(HasSubstr("lockstep::init()")));
  EXPECT_EQ(get_rank(), 0);
  EXPECT_TRUE(is_main_process());
}

TEST(Init, ASecondContextIsRejected) {
  const auto context = rendezvous::init({{}, kEmpty});
  EXPECT_THAT(
      [] {
        auto second = rendezvous::init({{}, kEmpty});
      },
      ThrowsMessage<ArgumentError>(HasSubstr("in a run already")));
  EXPECT_TRUE(is_initialized());
}

TEST(Init, ManyInARow) {
  for (int i = 0; i < 3; ++i) {
    const auto context = rendezvous::init({{}, kEmpty});
    context.barrier();
  }
}

TEST(Init, WrongOptionsAreNamed) {
  expect_refused<ArgumentError>({{.backend = "nccl"}, kEmpty},
                                HasSubstr("on the CPU use shm (one host), gloo"));
  expect_refused<ArgumentError>({{.rank = 0}, kEmpty}, HasSubstr("rank is given but world_size is not"));
  expect_refused<ArgumentError>({{.world_size = 2}, kEmpty},
                                HasSubstr("world_size is given but rank is not"));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  expect_refused<ArgumentError>({{.store = store}, kEmpty}, HasSubstr("needs rank and world_size"));
  expect_refused<ArgumentError>({{.init_method = "env://", .store = store}, kEmpty}, HasSubstr("not both"));
}

TEST(Init, MissingNumbersNameTheirSources) {
  expect_refused<RendezvousError>(
      {{.init_method = "tcp://127.0.0.1:9"}, kEmpty},
      AllOf(HasSubstr("InitOptions::rank"), HasSubstr("?rank="), HasSubstr("RANK")));
  expect_refused<RendezvousError>({{.init_method = "env://"}, kEmpty}, HasSubstr("needs RANK, WORLD_SIZE"));
  expect_refused<RendezvousError>({{.world_size = 2, .rank = 5}, kEmpty},
                                  HasSubstr("missing MASTER_ADDR, MASTER_PORT"));
}

TEST(Init, EnvAcceptsNumbersFromQueryAndOptions) {
  EXPECT_EQ(rendezvous::init({{.init_method = "env://?rank=0&world_size=1"}, kEmpty}).world_size(), 1);
  const Env half{{{"WORLD_SIZE", "2"}, {"RANK", "0"}}};
  expect_refused<RendezvousError>({{.init_method = "env://", .rank = 2}, half},
                                  HasSubstr("missing MASTER_ADDR, MASTER_PORT"));
}

TEST(Init, ARankOutsideTheWorldIsRejectedBeforeAnyWait) {
  expect_refused<RendezvousError>({{.init_method = "tcp://127.0.0.1:9?rank=2&world_size=2"}, kEmpty},
                                  HasSubstr("rank 2 in a world of 2"));
}

TEST(Init, ARendezvousFileNeedsItsFolder) {
  expect_refused<RendezvousError>({{.init_method = "file:///no/such/folder/f?rank=0&world_size=2"}, kEmpty},
                                  HasSubstr("/no/such/folder"));
}

TEST(Init, NewGroupChecksItsRanks) {
  const auto context = rendezvous::init({{}, kEmpty});
  for (const std::vector<int>& ranks : {std::vector<int>{}, {0, 0}, {1}, {-1}}) {
    EXPECT_THROW((void)context.new_group(ranks), ArgumentError);
  }
  const auto group = context.new_group({0});
  ASSERT_TRUE(group);
  group.barrier();
}

TEST(Init, GroupsEndWithTheContext) {
  std::optional<ProcessGroup> kept;
  {
    const auto context = rendezvous::init({{}, kEmpty});
    kept = context.group();
  }
  EXPECT_THAT([&] { kept->barrier(); }, ThrowsMessage<Error>(HasSubstr("has been closed")));
}

TEST(Init, OneStoreServesSeveralRunsInTurn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (int run = 0; run < 3; ++run) {
    const auto context = rendezvous::init({{.world_size = 1, .rank = 0, .store = store}, kEmpty});
    context.barrier();
  }
  EXPECT_EQ(store->add("lockstep/default/joins", 0), 3);
}

}  // namespace
}  // namespace lockstep
