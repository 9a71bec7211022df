// SPDX-License-Identifier: BSD-3-Clause
// What ranks send between hosts that have networks of their own. networks.sh runs this program.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "multiprocess/backends.h"
#include "support/hosts.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

// Bytes that this host has sent on a network card.
std::int64_t sent_on(const std::string& card) {
  std::ifstream cards("/proc/self/net/dev");
  for (std::string line; std::getline(cards, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name != card + ":") continue;
    std::int64_t value = 0;
    for (int column = 0; column < 9; ++column) words >> value;
    return value;
  }
  ADD_FAILURE() << "no card " << card;
  return 0;
}

// The least that one of three calls sends: TCP sends again what a busy host acknowledges late.
template <class Call>
std::int64_t sent_by(const ProcessGroup& group, const Call& call) {
  auto least = std::numeric_limits<std::int64_t>::max();
  for (int time = 0; time < 3; ++time) {
    group.barrier();
    const auto before = sent_on("network");
    call();
    group.barrier();
    least = std::min(least, sent_on("network") - before);
  }
  return least;
}

void run_on_two_hosts(const Scenario& scenario, const std::string& backend, const std::string& cards) {
  ASSERT_NE(std::getenv("LOCKSTEP_TEST_NETWORKS"), nullptr) << "networks.sh runs this program";
  expect_all_passed(run_ranks(scenario, {.world_size = 2,
                                         .env = {{kBackendVariable, backend}, {"GLOO_SOCKET_IFNAME", cards}},
                                         .rank_env = hosts_of("hierarchical_1_1", 2)}));
}

const Scenario all_reduces("all-reduces over the named cards", [] {
  const auto context = init({.backend = backend_under_test()});
  const auto numbers = torch::ones({1 << 20});
  const auto bytes = 4LL << 20U;
  context.barrier();
  const auto first = sent_on("network");
  const auto second = sent_on("network2");
  for (int call = 0; call < 8; ++call) context.group().all_reduce(numbers);
  context.barrier();
  EXPECT_GT(sent_on("network") - first, 3 * bytes);
  EXPECT_GT(sent_on("network2") - second, 3 * bytes);
  if (backend_under_test() != "hierarchical") return;
  const auto before = sent_on("network2");
  context.group().all_reduce(torch::ones({8 << 20}));  // in four chunks
  context.barrier();
  EXPECT_GT(sent_on("network2") - before, 3 * bytes);
});

class Networks : public ::testing::TestWithParam<std::string> {};

TEST_P(Networks, AllNamedCardsAreUsed) { run_on_two_hosts(all_reduces, GetParam(), "network,network2"); }

INSTANTIATE_TEST_SUITE_P(Backends, Networks, ::testing::Values("gloo", "hierarchical"));

constexpr int kWidth = 512;

torch::nn::Sequential layers() {
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i)
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  return net;
}

template <class Net>
void step(Net& net) {
  net->forward(torch::ones({1, kWidth})).sum().backward();
}

void expect_sent(std::int64_t sent, std::int64_t counted) {
  EXPECT_GE(sent, counted);
  EXPECT_LE(sent, counted + counted / 10);  // headers and acknowledgements
}

// One of two ranks sends half of what both gather or reduce in parts. c10d's Gloo reduces whole tensors.
const Scenario sharded_steps("bytes of sharded steps", [] {
  const auto context = init({.backend = backend_under_test()});
  auto whole = layers();
  DistributedDataParallel ddp(whole);
  const auto ddp_sent = sent_by(context.group(), [&] { step(ddp); });
  expect_sent(ddp_sent, std::int64_t{4} * kWidth * kWidth * 4);

  auto net = layers();
  for (const auto& layer : *net) fully_shard(*layer.ptr(), {.share_memory = false});
  auto sharded = fully_shard(*net, {.share_memory = false});
  step(net);
  sharded.zero_grad();
  const auto sent = sent_by(context.group(), [&] { step(net); });
  const bool in_parts = backend_under_test() == "hierarchical";
  std::int64_t counted = 0;
  for (const auto& [names, last, total] : sharded.stats().groups)
    counted += last.gathered_bytes / 2 + last.reduced_bytes / (in_parts ? 2 : 1);
  expect_sent(sent, counted);
  EXPECT_LE(sent, ddp_sent * (in_parts ? 3 : 4) / 2);
});

TEST(ShardedNetworks, StepsSendWhatTheyCount) {
  for (const auto* const backend : {"gloo", "hierarchical"}) {
    SCOPED_TRACE(backend);
    run_on_two_hosts(sharded_steps, backend, "network");
  }
}

}  // namespace
}  // namespace lockstep::testing
