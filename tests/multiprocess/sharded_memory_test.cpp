// SPDX-License-Identifier: BSD-3-Clause
// The memory of a process does not grow over the steps of a gathered module, and fully_shard() trains what
// DistributedDataParallel has no memory for.
#include <cmath>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/models/language.h>
#include <lockstep/optim/fused.h>
#include <lockstep/rendezvous/init.h>

#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

constexpr std::int64_t kSide = 512, kLayerBytes = kSide * kSide * 4;

// The process's private memory, used and idle: what RLIMIT_DATA limits.
std::int64_t private_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  for (int field = 0; field < 6; ++field) file >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

std::int64_t growth(const FullyShardOptions& options) {
  torch::nn::Sequential net;
  for (int i = 0; i < 8; ++i) {
    const torch::nn::Linear layer(torch::nn::LinearOptions(kSide, kSide).bias(false));
    fully_shard(*layer, options);
    net->push_back(layer);
    net->push_back(torch::nn::Tanh());
  }
  optim::FusedAdamW optimizer(fully_shard(*net, options).parameters(), 1e-4);
  const auto x = torch::ones({4, kSide}).to(options.mp_policy.param_dtype.value_or(at::kFloat));
  const auto steps = [&](int count) {
    for (int step = 0; step < count; ++step) {
      optimizer.zero_grad();
      net->forward(x).pow(2).mean().backward();
      optimizer.step();
    }
    return private_bytes();
  };
  const auto first = steps(5);
  return steps(30) - first;
}

const Scenario many_steps("fsdp many steps", [] {
  const auto context = init({.backend = "shm"});
  FullyShardOptions options{.reshard_after_forward = true, .share_memory = false};
  EXPECT_LT(growth(options), kLayerBytes);
  options.reshard_after_forward = 2;
  EXPECT_LT(growth(options), kLayerBytes);
  options.mp_policy.param_dtype = at::kBFloat16;
  EXPECT_LT(growth(options), kLayerBytes);
});
TEST(GatheredMemory, DoesNotGrowOverSteps) {
  // Without a reserve of the heap in which growth would not show.
  expect_all_passed(run_ranks(many_steps, {.world_size = 4, .env = {{"MALLOC_MMAP_THRESHOLD_", "65536"}}}));
}

// While it lives, this process gets so much more private memory. It stands for the limit of a cgroup, which a
// test has no right to set everywhere.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::int64_t bytes) {
    ::getrlimit(RLIMIT_DATA, &before_);
    auto limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(private_bytes() + bytes);
    if (::setrlimit(RLIMIT_DATA, &limit) != 0) throw std::runtime_error("setrlimit");
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_DATA, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

models::GPT2 make_gpt() {
  torch::manual_seed(1);
  return models::GPT2(models::GPT2Options{.vocab_size = 256,
                                          .n_positions = 16,
                                          .n_embd = 256,
                                          .n_layer = 8,
                                          .n_head = 4,
                                          .resid_pdrop = 0,
                                          .embd_pdrop = 0,
                                          .attn_pdrop = 0});
}

// Two steps of AdamW. Returns the last loss.
template <class Net>
double train_gpt(Net& net, const std::vector<at::Tensor>& parameters, int rank) {
  torch::optim::AdamW optimizer(parameters, 1e-3);
  double last = 0;
  for (int step = 0; step < 2; ++step) {
    const auto tokens = (torch::arange(16) + rank).view({1, 16});
    optimizer.zero_grad();
    const auto logits = net->forward(tokens);
    const auto loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), tokens.flatten() + 1);
    loss.backward();
    optimizer.step();
    last = loss.template item<double>();
  }
  return last;
}

double train_sharded_gpt(int rank) {
  auto net = make_gpt();
  for (const auto& layer : net->named_modules()["transformer.h"]->children()) fully_shard(*layer);
  return train_gpt(net, fully_shard(*net).parameters(), rank);
}

const Scenario large_gpt("fsdp large GPT", [] {
  const auto context = init({.backend = "gloo"});  // all of whose memory is private
  std::int64_t parameters = 0;
  for (const auto& parameter : make_gpt()->parameters()) parameters += parameter.numel();
  // With AdamW in float32, DistributedDataParallel needs 16 bytes a parameter, and fully_shard() 4 and two
  // groups.
  const MemoryLimit limit(12 * parameters);
  EXPECT_THAT(error_of<std::exception>([&] {
                auto net = make_gpt();
                DistributedDataParallel<models::GPT2> ddp(net);
                train_gpt(ddp, net->parameters(), context.rank());
              }),
              ::testing::HasSubstr("can't allocate memory"));
  context.barrier();
  EXPECT_TRUE(std::isfinite(train_sharded_gpt(context.rank())));
});
TEST(ShardedMemory, AGptThatDoesNotFitUnderDdpTrains) {
  expect_all_passed(run_ranks(large_gpt, {.world_size = 4, .env = {{"MALLOC_MMAP_THRESHOLD_", "65536"}}}));
}

}  // namespace
}  // namespace lockstep::testing
