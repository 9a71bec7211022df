// SPDX-License-Identifier: BSD-3-Clause
// Groups that are formed again: without ranks that died, with new ones, and errors on the way.
#include "multiprocess/reconfigure.h"

#include <algorithm>
#include <csignal>
#include <optional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/version.h>

#include "comm/mapped_memory.h"
#include "support/error_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Reconfigure : public testing::ReconfigureTest {};
INSTANTIATE_TEST_SUITE_P(Backends, Reconfigure, ::testing::Values("shm", "hierarchical"));

// -- other members

const testing::Scenario shrinks("reconfigure: shrinks", [] {
  const auto context = init_among(4);
  const auto before = context.group();
  EXPECT_TRUE(before.supports_reconfigure());
  const auto memory = registered(before, 3'000'001);
  const auto* const place = memory.data_ptr();
  expect_sums(before, memory);
  wait_for({0, 1, 2, 3}, "sums");
  if (context.rank() == 1) ::raise(SIGKILL);
  EXPECT_THROW(before.all_reduce_async(torch::ones({10})).wait(), Error);
  form(context, {0, 2, 3}, 1);
  EXPECT_EQ(memory.data_ptr(), place);
  EXPECT_EQ(memory[3'000'000].item<float>(), 10);
  expect_sums(context.group(), memory);
  EXPECT_THAT(error_of<Error>([&] { before.barrier(); }),
              HasSubstr("formed again with other members; use the group that reconfigure() returned"));
  // What this rank publishes, and the segments and heaps of its host's ranks, none of the dead one.
  EXPECT_EQ(shared_memories(), 1 + 2 * static_cast<std::size_t>(context.local_world_size()));
});

TEST_P(Reconfigure, GoesOnWithoutAKilledRank) { run_with_victims(shrinks, 4, {1}); }

const testing::Scenario grows("reconfigure: grows", [] {
  std::optional<Context> context;
  std::optional<ProcessGroup> former_part;
  if (own_process() < 2) {
    context.emplace(init_among(2));
    former_part = context->new_group({0, 1});
    former_part->barrier();
  } else {
    context.emplace(init_for_later());
    EXPECT_THAT(
        error_of<Error>([&] { context->barrier(); }),
        HasSubstr("no members yet: it was made with enable_reconfigure, so call reconfigure() first"));
  }
  form(*context, {2, 0, 1, 3}, 7);
  expect_sums(context->group(), registered(context->group(), 100'000));
  if (former_part) {
    EXPECT_THROW(former_part->barrier(), Error);
  }
  const auto part = context->new_group({0, 3});
  EXPECT_EQ(static_cast<bool>(part), own_process() >= 2);
  if (part) {
    expect_sums(part, torch::empty({4}));
    EXPECT_EQ(part.global_rank(1), 3);
    const auto handles = part.all_gather_object(part.reconfigure_handle());
    const auto formed = part.reconfigure({.uuid = 1, .handles = handles});
    expect_sums(formed, torch::empty({4}));
    EXPECT_EQ(formed.global_rank(1), 1);
  }
  context->barrier();
});

TEST_P(Reconfigure, GrowsByProcessesThatCameLater) { run(grows, 4); }

// Each process has the elements in another order.
void form_of_set(const Context& context, std::int64_t uuid) {
  auto handles = handles_of({0, 1, 2}, context.group(), uuid);
  std::ranges::rotate(handles, handles.begin() + own_process());
  std::unordered_set<std::string> set;
  for (const auto& handle : handles) set.insert(handle);
  context.reconfigure({.uuid = uuid, .handles = std::move(set)});
}

// Each member to a group of its own and back, as the elements of a set.
const testing::Scenario splits("reconfigure: alone and together", [] {
  const auto context = init_among(3);
  const auto memory = registered(context.group(), 300'000);
  form(context, {own_process()}, 10 + own_process());
  expect_sums(context.group(), memory);
  form_of_set(context, 20);
  EXPECT_EQ(context.world_size(), 3);
  expect_sums(context.group(), memory);
  const auto shared = comm::maps_memory(context.group())
                          ? comm::map_on_all_ranks(context.group(), {0}, 64, std::source_location::current())
                          : std::vector<at::Tensor>{torch::zeros({64}, at::kByte)};
  shared[0][own_process()] = own_process() + 1;
  form(context, {2, 1, 0}, 21);
  expect_sums(context.group(), memory);
  EXPECT_EQ(shared[0][own_process()].item<int>(), own_process() + 1);
  form_of_set(context, 22);
  // These two are on one host.
  const auto order = context.group().all_gather_object(std::to_string(own_process()));
  EXPECT_LT(std::ranges::find(order, "1"), std::ranges::find(order, "0")) << "not as before";
});

TEST_P(Reconfigure, MembersPartAndMeetAgain) { run(splits, 3); }

const testing::Scenario replaces("reconfigure: replaces twice", [] {
  std::optional<Context> context;
  const bool is_spare = own_process() > 2;
  context.emplace(is_spare ? init_for_later() : init_among(3));
  std::optional<at::Tensor> memory;
  const auto run_until_death = [&](int victim, const std::vector<int>& processes) {
    if (!memory) memory = registered(context->group(), 1'000'000);
    expect_sums(context->group(), *memory);
    wait_for(processes, fmt::format("sums with {}", victim));
    if (own_process() == victim) ::raise(SIGKILL);
    EXPECT_THROW(context->barrier(), Error);
  };
  if (!is_spare) run_until_death(2, {0, 1, 2});
  if (own_process() != 4) {
    form(*context, {0, 1, 3}, 1);
    run_until_death(1, {0, 1, 3});
  }
  form(*context, {4, 0, 3}, 2);
  expect_sums(context->group(), memory ? *memory : registered(context->group(), 1'000'000));
});

TEST_P(Reconfigure, ReplacesOneRankAfterAnother) { run_with_victims(replaces, 5, {1, 2}); }

// The keys of earlier formings, and of the groups that were made between them, go.
const testing::Scenario forms_often("reconfigure: keys", [] {
  const auto context = init_among(3);
  std::int64_t uuid = 0;
  const auto keys_after = [&](int formings) {
    for (int i = 0; i < formings; ++i) {
      const auto handles = context.group().all_gather_object(context.group().reconfigure_handle());
      context.reconfigure({.uuid = ++uuid, .handles = handles});
      if (const auto part = context.new_group({0, 2})) part.barrier();
      context.barrier();
    }
    const auto keys = shared_store()->getNumKeys();
    context.barrier();
    return keys;
  };
  const auto few = keys_after(3);
  EXPECT_EQ(keys_after(30), few);
});

TEST_P(Reconfigure, KeysDoNotAccumulate) { run(forms_often, 3); }

// -- errors

const testing::Scenario refuses("reconfigure: wrong options", [] {
  const auto context = init_among(2);
  const auto group = context.group();
  const auto handles = handles_of({0, 1}, group, 1);
  const auto own = group.reconfigure_handle();
  const auto error = [&](const ReconfigureOptions& options) {
    return error_of<ArgumentError>([&] { (void)group.reconfigure(options); });
  };
  EXPECT_THAT(error({.uuid = 1}), HasSubstr("handles is empty"));
  EXPECT_THAT(error({.uuid = 1, .handles = std::vector{own, own}}), HasSubstr("listed twice"));
  EXPECT_THAT(error({.uuid = 1, .handles = std::vector{handles[1 - group.rank()]}}),
              HasSubstr("lacks the handle of this process"));
  for (const auto* text :
       {"", "gloo:0:1:2:", "lockstep/1:0", "lockstep/1:x:1:1:host", "lockstep/2:0:1:1:host"})
    EXPECT_THAT(error({.uuid = 1, .handles = std::vector<std::string>{own, text}}),
                HasSubstr("is no handle"));
  auto other = handles[1 - group.rank()];
  other.replace(other.find(lockstep::version()), lockstep::version().size(), "9.0");
  EXPECT_THAT(error_of<RendezvousError>([&] {
                (void)group.reconfigure({.uuid = 1, .handles = std::vector{own, other}});
              }),
              AllOf(HasSubstr("is of a process with Lockstep 9.0 with LibTorch"),
                    HasSubstr("this process has Lockstep " + lockstep::version())));
  context.barrier();  // nothing has happened

  // A rank that does not come is named, and the group cannot be used until the next success.
  auto work = group.rank() == 0 ? group.barrier_async() : Work();
  if (group.rank() == 0) {
    const auto alone = [&](std::int64_t uuid) {
      return error_of<RendezvousError>(
          [&] { (void)group.reconfigure({.uuid = uuid, .handles = handles, .timeout = 200ms}); });
    };
    EXPECT_THAT(alone(2), HasSubstr("timed out: rank 1 did not call it within 200 ms"));
    EXPECT_THAT(alone(2), HasSubstr("uuid 2 was already used"));
    EXPECT_THAT(error_of<Error>([&] { work.wait(); }), HasSubstr("this rank has left the group"));
    EXPECT_THAT(error_of<Error>([&] { group.barrier(); }), HasSubstr("this rank has left the group"));
  }
  form(context, {0, 1}, 3);
  context.barrier();
  EXPECT_THAT(error_of<Error>([&] { (void)group.reconfigure({.uuid = 4, .handles = handles}); }),
              HasSubstr("formed again"));
  EXPECT_THAT(error_of<ArgumentError>([&] { context.reconfigure({.uuid = 4, .handles = handles}); }),
              HasSubstr("a handle is valid until the next reconfigure() has succeeded"));
  context.barrier();
});

TEST(ReconfigureErrors, NameTheFaultAndLeaveTheGroupAsItIs) {
  const testing::TempFolder folder;
  testing::expect_all_passed(testing::run_ranks(refuses, {.env = environment("shm", folder)}));
}

// What one rank does wrong is an error of all, long before the timeout.
const testing::Scenario differs("reconfigure: other options", [] {
  const auto context = init_among(3);
  const auto own = context.rank();
  const auto error_with = [&](std::int64_t uuid, const std::vector<std::string>& handles) {
    return error_of<RendezvousError>(
        [&] { context.reconfigure({.uuid = uuid, .handles = handles, .timeout = 100s}); });
  };
  auto mine = handles_of({0, 1, 2}, context.group(), 1);
  if (own == 0) mine.pop_back();
  EXPECT_THAT(error_with(1, mine), HasSubstr("pass different handles: "));

  mine = handles_of({0, 1, 2}, context.group(), 2);
  if (own == 1) std::ranges::reverse(mine);
  EXPECT_THAT(error_with(2, mine), HasSubstr("pass the handles in different orders"));

  for (const int uuid : {3, 30}) {  // whose keys go at the second
    if (own == 2)
      context.reconfigure({.uuid = uuid, .handles = std::vector{context.group().reconfigure_handle()}});
  }
  const auto handles = handles_of({0, 1, 2}, context.group(), 3);
  EXPECT_THAT(error_with(3, handles), HasSubstr("uuid 3 was already used"));
  form(context, {0, 1, 2}, 4);
  context.barrier();
});

TEST(ReconfigureErrors, OfOneRankAreErrorsOfAll) {
  const testing::TempFolder folder;
  testing::expect_all_passed(
      testing::run_ranks(differs, {.world_size = 3, .env = environment("shm", folder)}));
}

// -- other backends

const testing::Scenario others("reconfigure: other backends", [] {
  const auto context = init_among(2);
  EXPECT_FALSE(context.group().supports_reconfigure());
  EXPECT_THAT(error_of<ArgumentError>([&] { (void)context.group().reconfigure_handle(); }),
              HasSubstr("reconfigure() is for shm"));
  EXPECT_THAT(error_of<ArgumentError>([&] { (void)context.group().reconfigure({.uuid = 1}); }),
              HasSubstr("reconfigure() is for shm"));
});

TEST(ReconfigureErrors, OtherBackendsSaySo) {
  const testing::TempFolder folder;
  testing::expect_all_passed(testing::run_ranks(others, {.env = environment("gloo", folder)}));
}

}  // namespace
}  // namespace lockstep
