// SPDX-License-Identifier: BSD-3-Clause
// memory_report() beside known tensors and the kernel's count, estimate_memory() beside both.
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/fsdp/memory_report.h>
#include <lockstep/optim/fused.h>
#include <lockstep/rendezvous/init.h>

#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing::memory_report_test {
namespace {

using optim::FusedAdamW;
using optim::FusedAdamWOptions;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::Sequential;

template <class Stream>
std::string printed(const Stream& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

Sequential make_layers(int count, int width) {
  Sequential net;
  for (int i = 0; i < count; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    net->push_back(torch::nn::Tanh());
  }
  return net;
}

// A net, how it is distributed, and its optimizer.
struct Job {
  Job(ShardingForm form, int layers, int width) : net(make_layers(layers, width)) {
    const FusedAdamWOptions options(1e-3);
    if (form == ShardingForm::ddp) {
      ddp.emplace(net);
      optimizer = std::make_unique<FusedAdamW>(net->parameters(), options);
      return;
    }
    if (form == ShardingForm::zero1 || form == ShardingForm::zero1_shared) {
      ddp.emplace(net);
      auto zero = std::make_unique<ZeroRedundancyOptimizer<FusedAdamW>>(net->parameters(), options);
      if (form == ShardingForm::zero1_shared) zero->share_parameters();
      optimizer = std::move(zero);
      return;
    }
    const FullyShardOptions shard{.reshard_after_forward = true,
                                  .share_memory = form == ShardingForm::shared};
    for (const auto& layer : *net)
      if (!layer.ptr()->parameters().empty()) fully_shard(*layer.ptr(), shard);
    optimizer = std::make_unique<FusedAdamW>(fully_shard(*net, shard).parameters(), options);
  }

  at::Tensor forward(const at::Tensor& x) {
    return (ddp ? (*ddp)->forward(x) : net->forward(x)).pow(2).mean();
  }
  void step(const at::Tensor& x) {
    optimizer->zero_grad();
    forward(x).backward();
    optimizer->step();
  }

  Sequential net;
  std::optional<DistributedDataParallel<Sequential>> ddp = {};
  std::unique_ptr<torch::optim::Optimizer> optimizer = {};
};

constexpr std::int64_t kRanks = 2, kLayers = 4, kWidth = 64, kBatch = 8;
constexpr std::int64_t kAll = kLayers * kWidth * kWidth * 4, kLayer = kAll / kLayers;

const Scenario known_tensors("memory_report known tensors", [] {
  const auto context = init({.backend = "shm"});
  const auto x = torch::ones({kBatch, kWidth});
  for (const auto form : {ShardingForm::ddp, ShardingForm::zero1, ShardingForm::gathered,
                          ShardingForm::shared, ShardingForm::zero1_shared}) {
    SCOPED_TRACE(static_cast<int>(form));
    const bool shards = form == ShardingForm::gathered || form == ShardingForm::shared;
    Job job(form, kLayers, kWidth);
    job.step(x);
    const auto after = memory_report(*job.net, *job.optimizer);
    const auto part = kAll / kRanks;
    EXPECT_EQ(after.ranks, kRanks);
    EXPECT_EQ(after.rank.parameters, shards || form == ShardingForm::zero1_shared ? part : kAll);
    EXPECT_EQ(after.rank.gradients, shards ? part : kAll);
    EXPECT_EQ(after.rank.optimizer_states, form == ShardingForm::ddp ? 2 * kAll : 2 * part);
    EXPECT_EQ(after.rank.gathered + after.rank.activations, 0);
    EXPECT_EQ(after.host.parameters, kRanks * after.rank.parameters);
    EXPECT_EQ(after.host.total(), kRanks * after.rank.total());

    const auto planned =
        estimate_memory(
            {.parameters = kAll / 4, .ranks_per_host = kRanks, .form = form, .largest_group = kLayer / 4})
            .planned;
    EXPECT_EQ(planned.rank.parameters, after.rank.parameters);
    EXPECT_EQ(planned.rank.optimizer_states, after.rank.optimizer_states);
    EXPECT_EQ(planned.rank.gradients, after.rank.gradients + (shards ? 2 * kLayer : 0));

    // Forward keeps the result of each tanh, and the loss.
    const auto during = memory_report(*job.net, *job.optimizer, {.forward = [&] { return job.forward(x); }});
    EXPECT_EQ(during.rank.activations, kLayers * kBatch * kWidth * 4 + 4);
    EXPECT_LE(during.rank.gathered, planned.rank.gathered);
    EXPECT_EQ(during.rank.gathered > 0, form == ShardingForm::gathered);
  }
});
TEST(MemoryReport, CountsKnownTensors) { expect_all_passed(run_ranks(known_tensors)); }

// Memory of the heap and shared memory. Pages of files count for less when another program maps them too.
double proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  double kibibytes = 0;
  for (std::string word; file >> word;) {
    if (word != "Pss_Anon:" && word != "Pss_Shmem:") continue;
    double part = 0;
    file >> part;
    kibibytes += part;
  }
  return kibibytes * 1024;
}

double of_all_ranks(const Context& context) {
  context.barrier();
  const auto sum = torch::full({1}, proportional_bytes(), at::kDouble);
  context.group().all_reduce(sum);
  return sum.item<double>();
}

// The kernel also counts what the backend and the heap keep: the groups' gradients, and 3 MB a rank.
constexpr double kTolerance = 0.1;

const Scenario beside_the_kernel("memory_report beside the kernel", [] {
  const auto context = init({.backend = "shm"});
  constexpr int kMany = 32, kWide = 512;
  const auto x = torch::ones({4, kWide});
  const auto excess = [&](ShardingForm form) {
    const auto before = of_all_ranks(context);
    Job job(form, kMany, kWide);
    for (int step = 0; step < 3; ++step) job.step(x);
    const auto grown = of_all_ranks(context) - before;
    return grown / static_cast<double>(memory_report(*job.net, *job.optimizer).host.total()) - 1;
  };
  for (const auto form : {ShardingForm::shared, ShardingForm::gathered, ShardingForm::ddp}) {
    SCOPED_TRACE(static_cast<int>(form));
    Job(form, 2, kWide).step(x);
    EXPECT_NEAR(excess(form), 0, kTolerance);
  }
});
TEST(MemoryReport, AgreesWithTheKernel) {
  // Freed memory goes back to the kernel.
  expect_all_passed(run_ranks(beside_the_kernel, {.env = {{"MALLOC_MMAP_THRESHOLD_", "65536"}}}));
}

TEST(MemoryReport, IsATable) {
  const auto net = make_layers(1, 64);
  FusedAdamW optimizer(net->parameters(), FusedAdamWOptions(1e-3));
  const auto report = memory_report(*net, optimizer);
  EXPECT_EQ(report.rank, report.host);
  EXPECT_THAT(printed(report), AllOf(HasSubstr("parameters         16.0 KiB   16.0 KiB\n"),
                                     HasSubstr("total              16.0 KiB   16.0 KiB\n")));
}

// The table: bytes a parameter of a host with two ranks, AdamW, float32.
TEST(MemoryEstimate, HasTheFormulasValues) {
  MemoryPlan plan{.parameters = 1000, .ranks_per_host = 2, .largest_group = 10};
  const auto host = [&](ShardingForm form) {
    plan.form = form;
    return estimate_memory(plan).planned.host.total();
  };
  EXPECT_EQ(host(ShardingForm::ddp), 32'000);
  EXPECT_EQ(host(ShardingForm::zero1), 24'000);
  EXPECT_EQ(host(ShardingForm::zero1_shared), 20'000);
  EXPECT_EQ(host(ShardingForm::gathered), 16'000 + 2 * 160);
  EXPECT_EQ(host(ShardingForm::shared), 16'000 + 2 * 80);
  plan.hosts = 2;
  EXPECT_EQ(host(ShardingForm::gathered), 8'000 + 2 * 160);
  EXPECT_EQ(host(ShardingForm::shared), 16'000 + 2 * 80);
  plan.numa_nodes = 2;
  EXPECT_EQ(host(ShardingForm::shared), 20'000 + 2 * 80);
  plan.param_dtype = at::kBFloat16;
  plan.outermost_group = 100;
  EXPECT_EQ(host(ShardingForm::gathered), 8'000 + 2 * (80 + 40 + 200));
  EXPECT_EQ(host(ShardingForm::shared), 20'000 + 2 * 80);
  plan.numa_nodes = 1;
  EXPECT_EQ(host(ShardingForm::shared), 18'000 + 2 * 80);
}

TEST(MemoryEstimate, SaysWhatWouldFit) {
  MemoryPlan plan{.parameters = 1000, .ranks_per_host = 2, .largest_group = 10, .limit = 17'000};
  const auto estimate = estimate_memory(plan);
  EXPECT_FALSE(estimate.fits());
  EXPECT_THAT(printed(estimate), AllOf(HasSubstr("does not fit into 16.6 KiB a host"),
                                       HasSubstr("would fit: fully_shard(), gathered, 2 ranks on 1 host"),
                                       HasSubstr("would fit: fully_shard(), shared, 2 ranks on 1 host")));
  plan.limit = 5'000;
  const auto smaller = estimate_memory(plan);
  ASSERT_EQ(smaller.instead.size(), 1);
  EXPECT_EQ(smaller.instead.front().form, ShardingForm::gathered);
  EXPECT_EQ(smaller.instead.front().hosts, 4);
  plan.limit = 100;
  EXPECT_THAT(printed(estimate_memory(plan)), HasSubstr("no other form fits"));
  plan.limit.reset();
  EXPECT_THAT(printed(estimate_memory(plan)), HasSubstr("\nfits into "));
  plan.ranks_per_host = 0;
  EXPECT_THAT(error_of([&] { estimate_memory(plan); }), HasSubstr("ranks_per_host is 0"));
}

}  // namespace
}  // namespace lockstep::testing::memory_report_test
