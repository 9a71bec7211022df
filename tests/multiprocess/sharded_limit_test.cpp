// SPDX-License-Identifier: BSD-3-Clause
// fully_shard() trains a GPT that DistributedDataParallel has no memory for.
#include <cmath>
#include <stdexcept>
#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/models/language.h>
#include <lockstep/rendezvous/init.h>

#include "support/error_of.h"
#include "support/private_memory.h"
#include "support/ranks.h"

namespace lockstep::testing::sharded_limit_test {
namespace {

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
}  // namespace lockstep::testing::sharded_limit_test
