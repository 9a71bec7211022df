// SPDX-License-Identifier: BSD-3-Clause
// The backend hierarchical, with hosts that LOCKSTEP_HOST_ID makes of one, and with two networks.
#include "multiprocess/hosts.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <lockstep/distributed.h>

#include "base/deadline.h"
#include "base/env.h"
#include "multiprocess/backends.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Each host in the order of its ranks, then the hosts.
at::Tensor sum_in_order(const std::vector<std::vector<int>>& hosts, std::int64_t count) {
  std::vector<at::Tensor> sums;
  for (const auto& ranks : hosts) {
    auto sum = numbers_of(ranks.front(), count);
    for (std::size_t i = 1; i < ranks.size(); ++i) sum = sum + numbers_of(ranks[i], count);
    sums.push_back(sum);
  }
  auto sum = sums[0];
  for (std::size_t i = 1; i < sums.size(); ++i) sum = sum + sums[i];
  return sum;
}

// Small, in lanes, and in several chunks, which the last element does not fill.
void expect_sums(const Context& context, const std::vector<std::vector<int>>& hosts) {
  for (const std::int64_t count : {0, 1, 1000, 30'001, 5'000'001}) {
    const auto expected = sum_in_order(hosts, count);
    auto tensor = numbers_of(context.rank(), count);
    context.group().all_reduce(tensor);
    EXPECT_TRUE(torch::equal(tensor, expected)) << count;
    tensor = numbers_of(context.rank(), count);
    const auto work = context.group().all_reduce_async(tensor, ReduceOp::AVG);
    Work(work).wait();
    EXPECT_TRUE(torch::equal(tensor, expected / context.world_size())) << count;
  }
}

void expect_parts(const Context& context, const std::vector<std::vector<int>>& hosts) {
  const auto& group = context.group();
  for (const std::int64_t count : {0, 1, 50'001, 600'001}) {  // the last one in several chunks
    const auto own = context.rank();
    const auto whole = numbers_of(own, count * group.size());
    const auto expected = sum_in_order(hosts, count * group.size()).slice(0, own * count, (own + 1) * count);
    auto part = torch::zeros({count});
    group.reduce_scatter_tensor(part, whole);
    EXPECT_TRUE(torch::equal(part, expected)) << count;
    auto work =
        group.reduce_scatter_async(part.zero_(), whole.view({group.size(), count}).unbind(), ReduceOp::AVG);
    work.wait();
    EXPECT_TRUE(torch::equal(part, expected / group.size())) << count;
    group.reduce_scatter_tensor(part, whole, ReduceOp::MIN);
    auto least = numbers_of(0, count * group.size());
    for (int rank = 1; rank < group.size(); ++rank)
      least = torch::minimum(least, numbers_of(rank, count * group.size()));
    EXPECT_TRUE(torch::equal(part, least.slice(0, own * count, (own + 1) * count))) << count;
  }
}

const Scenario even("sums over even hosts", [] {
  const auto context = init();
  EXPECT_EQ(context.group().backend_name(), "hierarchical");
  expect_sums(context, {{0, 1}, {2, 3}});
  expect_parts(context, {{0, 1}, {2, 3}});
});
const Scenario uneven("sums over uneven hosts", [] {
  const auto context = init();
  expect_sums(context, {{0, 1, 2}, {3, 4}});
  expect_parts(context, {{0, 1, 2}, {3, 4}});
  // Of three entries, and of one.
  const auto ones =
      torch::diag(context.is_main_process() ? torch::ones({3}) : torch::tensor({1.F, 0.F, 0.F}));
  std::vector<at::Tensor> sparse{ones.to_sparse()};
  context.group().backend()->allreduce(sparse)->wait();
  EXPECT_TRUE(torch::equal(sparse[0].to_dense(), torch::diag(torch::tensor({5.F, 1.F, 1.F}))));
});

// Ranks of both hosts take turns.
const Scenario alternating("sums over hosts with alternating ranks", [] {
  const auto context = init();
  expect_sums(context, {{0, 2}, {1, 3}});
  expect_parts(context, {{0, 2}, {1, 3}});
});

// A sum of booleans is "or", and true is 1 in memory.
void expect_flags(const Context& context) {
  const auto& group = context.group();
  for (const std::int64_t count : {10, 40'000}) {
    auto flags = torch::arange(count * group.size()).remainder(3) != 0;
    auto part = torch::empty({count}, torch::kBool);
    group.reduce_scatter_tensor(part, flags);
    EXPECT_TRUE(torch::equal(part, flags.chunk(group.size())[static_cast<std::size_t>(group.rank())]));
    const auto expected = flags.clone();
    group.all_reduce(flags);
    EXPECT_TRUE(torch::equal(flags.view(torch::kByte), expected.view(torch::kByte))) << count;
    group.reduce(flags, 1);
    if (group.rank() == 1) {
      EXPECT_TRUE(torch::equal(flags.view(torch::kByte), expected.view(torch::kByte))) << count;
    }
  }
}

// The network may begin with any of three hosts, and then takes them in their order.
const Scenario three("sums over three hosts", [] {
  const auto context = init();
  const std::vector<std::vector<int>> hosts{{0, 1}, {2}, {3, 4}};
  expect_parts(context, hosts);
  expect_flags(context);
  for (const std::int64_t count : {1, 30'001, 1'100'001}) {
    auto sum = numbers_of(context.rank(), count);
    context.group().all_reduce(sum);
    auto is_in_order = torch::zeros({count}, torch::kBool);
    for (const int first : {0, 1, 2}) {
      auto turned = hosts;
      std::ranges::rotate(turned, turned.begin() + first);
      is_in_order |= sum == sum_in_order(turned, count);
    }
    EXPECT_TRUE(is_in_order.all().item<bool>()) << count;
    auto again = numbers_of(context.rank(), count);
    context.group().all_reduce(again);
    EXPECT_TRUE(torch::equal(again, sum)) << count;
    auto of_first = sum.clone();
    context.group().broadcast(of_first, 0);
    EXPECT_TRUE(torch::equal(of_first, sum)) << count;
  }
});

// The group's timeout is half an hour.
const Scenario has_a_limit("a call has a limit of its own", [] {
  const auto context = init();
  const auto& group = context.group();
  auto word = torch::zeros({1});
  if (context.rank() == 3) {
    group.recv(word, 0);
    EXPECT_THROW(group.barrier(), Error);
    return;
  }
  std::vector<at::Tensor> tensors{torch::ones({100'000})};
  const auto work = group.backend()->allreduce(tensors, {.timeout = 300ms});
  EXPECT_THROW(work->wait(), Error);
  EXPECT_THAT([&] { group.barrier(); }, ::testing::ThrowsMessage<PeerLost>(HasSubstr("an earlier call")));
  EXPECT_NO_THROW(group.backend()->shutdown());
  if (context.is_main_process()) group.send(word, 3);
});

struct Interrupt {};

// As signal handlers of Python do.
const Scenario waits_end("waits of callers of c10d end", [] {
  const auto context = init({.backend = "hierarchical"});
  const auto& group = context.group();
  auto word = torch::zeros({1});
  std::vector<at::Tensor> first{torch::ones({1})}, second{torch::ones({1})};
  if (context.rank() == 1) group.recv(word, 0);
  const auto work = group.backend()->allreduce(first);
  const auto queued = group.backend()->allreduce(second, {.timeout = 1s});
  if (context.is_main_process()) {
    wait_check = [] { throw Interrupt(); };
    EXPECT_THROW(work->wait(), Interrupt);
    wait_check = nullptr;
    EXPECT_THAT([&] { queued->getFuture()->waitAndThrow(); },
                ::testing::ThrowsMessage<TimeoutError>("it is in progress after 1000 ms"));
    group.send(word, 1);
  }
  work->wait();
  queued->wait();
  EXPECT_EQ(first[0].item<float>() + second[0].item<float>(), 4);
});

const Scenario over_a_cable("sums over a cable", [] {
  const auto context = init();
  const auto& group = context.group();
  EXPECT_EQ(group.backend_name(), "hierarchical");
  // The least of three calls: TCP sends again what a busy host acknowledges late.
  const auto sent_in = [&](const auto& call) {
    auto least = std::numeric_limits<std::int64_t>::max();
    for (int time = 0; time < 3; ++time) {
      group.barrier();
      const auto before = sent_bytes();
      group.barrier();  // the other rank of this host has looked, too
      call();
      group.barrier();
      least = std::min(least, sent_bytes() - before);
    }
    return static_cast<double>(least);
  };
  constexpr std::int64_t kCount = 3'000'000;  // in several chunks
  constexpr double kBytes = 4.0 * kCount;
  const auto expected = sum_in_order({{0, 1}, {2, 3}}, kCount);
  auto sum = torch::empty({kCount});
  const auto in_all_reduce = sent_in([&] {
    sum.copy_(numbers_of(context.rank(), kCount));
    group.all_reduce(sum);
  });
  EXPECT_TRUE(torch::equal(sum, expected));
  EXPECT_THAT(in_all_reduce / kBytes, AllOf(::testing::Ge(1), ::testing::Le(1.1)));
  auto part = torch::empty({kCount / 4});
  const auto whole = numbers_of(context.rank(), kCount);
  const auto in_reduce_scatter = sent_in([&] { group.reduce_scatter_tensor(part, whole); });
  EXPECT_TRUE(torch::equal(part, expected.chunk(4)[static_cast<std::size_t>(context.rank())]));
  EXPECT_THAT(in_reduce_scatter / kBytes, AllOf(::testing::Ge(0.5), ::testing::Le(0.55)));
  auto from_all = torch::empty({kCount});
  const auto to_itself = sent_bytes(true);
  const auto in_all_to_all = sent_in([&] { group.all_to_all_single(from_all, whole); });
  for (int rank = 0; rank < 4; ++rank) {
    const auto index = static_cast<std::size_t>(context.rank());
    EXPECT_TRUE(torch::equal(from_all.chunk(4)[static_cast<std::size_t>(rank)],
                             numbers_of(rank, kCount).chunk(4)[index]));
  }
  EXPECT_THAT(in_all_to_all / kBytes, AllOf(::testing::Ge(1), ::testing::Le(1.1)));
  EXPECT_LT(static_cast<double>(sent_bytes(true) - to_itself) / kBytes, 0.3);  // of three
});

// Connections of this process that are not to the store.
std::set<std::string> connections() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    const auto target = std::filesystem::read_symlink(entry.path(), closed).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  const auto store_port = fmt::format(":{:04X}", std::stoi(std::getenv("MASTER_PORT")));
  std::set<std::string> found;
  for (const auto* file : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream table(file);
    for (std::string line; std::getline(table, line);) {
      std::istringstream fields(line);
      std::array<std::string, 10> words;
      for (auto& word : words) fields >> word;
      const auto& [slot, local, remote, state, queues, timer, retransmits, user, timeout, inode] = words;
      const bool is_store = local.ends_with(store_port) || remote.ends_with(store_port);
      if (state == "01" && !is_store && own.contains(inode)) found.insert(inode);
    }
  }
  return found;
}

const Scenario few_connections("ranks connect to those they talk to", [] {
  const auto context = init({.backend = "hierarchical"});
  const auto& group = context.group();
  // The neighbours in the ring of this rank's lane. All-to-all, there are 5, and 5 more between all ranks.
  EXPECT_EQ(connections().size(), 2U);
  for (const std::int64_t count : {1, 1'000'000}) {
    auto numbers = torch::ones({count});
    group.all_reduce(numbers);
    EXPECT_EQ(numbers[0].item<float>(), 6);
  }
  EXPECT_EQ(connections().size(), 2U);
  group.all_reduce(torch::ones({1}));  // all ranks have counted
  // Of ranks that are no neighbours.
  auto word = torch::full({1}, 7.0F);
  if (context.rank() == 0) group.send(word, 3);
  if (context.rank() == 3) group.recv(word.zero_(), 0);
  EXPECT_EQ(word.item<float>(), 7);
  EXPECT_EQ(connections().size(), context.rank() % 3 == 0 ? 3U : 2U);
  group.all_reduce(torch::ones({1}));  // a barrier would connect other ranks before all have counted
});

// Of no rank, so any may die.
c10::intrusive_ptr<c10d::Store> store_of_test() {
  return c10::make_intrusive<c10d::FileStore>(Env().get("TEST_FOLDER").value() + "/store", -1);
}

const Scenario on_use("gloo connects on use", [] {
  const auto context = init({.backend = "gloo"});
  const auto store = store_of_test();
  // No rank connects before all have counted.
  const auto expect_connections = [&](std::size_t count) {
    EXPECT_EQ(connections().size(), count);
    const auto name = fmt::format("counted {}", count);
    if (store->add(name, 1) == context.world_size()) store->set("all " + name, "yes");
    store->wait({"all " + name});
  };
  expect_connections(0);
  auto one = torch::ones({1});
  context.group().all_reduce(one);
  EXPECT_EQ(one.item<float>(), 4);
  expect_connections(2);
  context.barrier();
});

const Scenario one_dies("a rank dies on the second host", [] {
  const auto context = init({.timeout = 20s});
  context.barrier();
  // A death may end a call that has ended elsewhere.
  if (context.rank() == 3) {
    store_of_test()->wait({"passed by 0", "passed by 1", "passed by 2"});
    ::raise(SIGKILL);
  }
  store_of_test()->set(fmt::format("passed by {}", context.rank()), "yes");
  auto x = torch::ones({100'000});
  context.group().all_reduce(x);
});

TEST(Hosts, ArePickedByAutoAndSumInTheDocumentedOrder) {
  const auto results = run_on_hosts(even, {0, 0, 1, 1});
  expect_all_passed(results);
  EXPECT_THAT(
      results[0].err,
      HasSubstr("backend hierarchical for 4 ranks: shared memory on each host, gloo between the hosts"));
}
TEST(Hosts, MayDifferInTheirNumberOfRanks) { expect_all_passed(run_on_hosts(uneven, {0, 0, 0, 1, 1})); }
TEST(Hosts, MayAlternate) { expect_all_passed(run_on_hosts(alternating, {0, 1, 0, 1})); }
TEST(Hosts, SumInTheirOrderIfTheyAreThree) { expect_all_passed(run_on_hosts(three, {0, 0, 1, 2, 2})); }
TEST(Hosts, ConnectOnlyRanksThatTalk) {
  expect_all_passed(run_on_hosts(few_connections, {0, 1, 2, 3, 4, 5}));
}
TEST(Gloo, ConnectsOnUseIfPyTorchsVariableSaysSo) {
  const TempFolder folder;
  expect_all_passed(run_ranks(
      on_use,
      {.world_size = 4, .env = {{"TORCH_GLOO_LAZY_INIT", "1"}, {"TEST_FOLDER", folder.path().string()}}}));
}
TEST(Hosts, EndACallAtItsOwnLimit) { expect_all_passed(run_on_hosts(has_a_limit, {0, 0, 1, 1})); }

TEST(Hosts, EndWaitsOfCallersOfC10d) { expect_all_passed(run_on_hosts(waits_end, {0, 1})); }

TEST(Hosts, AllReportARankThatDiesOnOneOfThem) {
  const TempFolder folder;
  const auto results = run_on_hosts(one_dies, {0, 0, 1, 1}, {{"TEST_FOLDER", folder.path().string()}});
  EXPECT_EQ(results[3].signal, SIGKILL);
  for (const std::size_t rank : {0U, 1U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, 1);
    EXPECT_THAT(results[rank].err, AllOf(HasSubstr("all_reduce #2 of Float[100000] at hosts_test.cpp:"),
                                         HasSubstr("another rank is gone")));
  }
  EXPECT_THAT(results[2].err, AllOf(HasSubstr("rank 3 (pid "), HasSubstr("is dead")));
  // The first error of the other host is that of a lane.
  EXPECT_THAT(results[0].err + results[1].err,
              ::testing::ContainsRegex(
                  "lane (0 of rank 0 on .*, rank 2 on .*|1 of rank 1 on .*, rank 3 on .*), gloo"));
}

TEST(HostsOfTwoNetworks, SendNoMoreThanTheirShare) { run_over_a_cable(over_a_cable); }

}  // namespace
}  // namespace lockstep::testing
