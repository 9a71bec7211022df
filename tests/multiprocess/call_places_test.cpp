// SPDX-License-Identifier: BSD-3-Clause
// The calls of every part of the library name a line of the program, or none, and what they carry.
#include <filesystem>
#include <set>
#include <source_location>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Not;

constexpr auto kThisFile = "call_places_test.cpp";

// Which contents the calls since the last look had. Each call is in this file or names no place.
class Calls {
 public:
  explicit Calls(const Context& context) : group_(context.group()) {}

  std::set<std::string> since_last_look() {
    std::set<std::string> contents;
    for (const auto& call : group_.recent_calls()) {
      if (call.number <= last_) continue;
      last_ = call.number;
      const auto file = std::filesystem::path(call.where.file_name()).filename().string();
      EXPECT_TRUE(call.where.line() == 0 || file == kThisFile) << call.describe();
      EXPECT_FALSE(call.where.line() == 0 && call.contents.empty()) << call.describe();
      if (call.where.line() == 0) without_line_.emplace(call.contents);
      lines_.insert(call.where.line());
      contents.emplace(call.contents);
    }
    return contents;
  }

  // The contents of the calls without a place, and the lines of all calls, since the construction.
  const std::set<std::string>& without_line() const { return without_line_; }
  const std::set<std::uint32_t>& lines() const { return lines_; }

 private:
  ProcessGroup group_;
  std::uint64_t last_ = 0;
  std::set<std::string> without_line_;
  std::set<std::uint32_t> lines_;
};

const Scenario in_metrics("places of calls: metrics", [] {
  const auto context = init();
  Calls calls(context);
  reduce_value(1.0);
  reduce_value(torch::ones({3}));
  reduce_value(std::map<std::string, double>{{"loss", 1.0}});
  calls.since_last_look();
  metrics::Accuracy accuracy;
  accuracy.update(torch::eye(3), torch::arange(3));
  accuracy.compute();
  EXPECT_THAT(calls.since_last_look(), Contains("sums of a metric"));
  metrics::Auroc auroc;
  auroc.update(torch::tensor({0.1, 0.9}), torch::tensor({0, 1}));
  auroc.compute();
  EXPECT_THAT(calls.since_last_look(), Contains("scores of a metric"));
  metrics::Throughput throughput;
  throughput.compute();
  calls.since_last_look();
});

const Scenario in_training("places of calls: training", [] {
  const auto context = init();
  Calls calls(context);
  torch::nn::Sequential net(torch::nn::Linear(4, 4), SyncBatchNorm(torch::nn::BatchNormOptions(4)),
                            torch::nn::Linear(4, 2));
  DistributedDataParallel ddp(net, {.find_unused_parameters = true});
  EXPECT_THAT(calls.since_last_look(), Contains("check that all ranks have the same module"));
  torch::optim::SGD optimizer(ddp->parameters(), 0.1);
  {
    const auto join = ddp->join();
    for (int step = 0; step < 2 + context.rank(); ++step) {
      optimizer.zero_grad();
      ddp->forward(torch::rand({3, 4})).sum().backward();
      optimizer.step();
    }
  }
  const auto contents = calls.since_last_look();
  for (const char* each : {"gradients of bucket", "buffers", "which parameters were used",
                           "statistics of SyncBatchNorm", "number of ranks with data, in Join"})
    EXPECT_THAT(contents, Contains(each));
  EXPECT_THAT(calls.without_line(), Not(Contains("statistics of SyncBatchNorm")));
  amp::GradScaler scaler(torch::kCPU, {.process_group = context.group()});
  scaler.scale(ddp->forward(torch::rand({3, 4})).sum()).backward();
  scaler.step(optimizer);
  scaler.update();
  EXPECT_THAT(calls.since_last_look(), Contains("whether gradients overflow"));
  clip_grad_norm_(*ddp, 1.0);
  calls.since_last_look();
});

const Scenario in_hooks("places of calls: communication hooks", [] {
  const auto context = init();
  Calls calls(context);
  for (const CommHook& hook : {CommHook(allreduce_hook), CommHook(fp16_compress_hook),
                               CommHook(PowerSGD({.start_powerSGD_iter = 2})), CommHook(OneBit())}) {
    torch::nn::Linear net(40, 40);
    DistributedDataParallel ddp(net);
    ddp->register_comm_hook(hook);
    for (int step = 0; step < 3; ++step) ddp->forward(torch::rand({3, 40})).sum().backward();
    EXPECT_THAT(calls.since_last_look(), Contains("gradients of bucket"));
    EXPECT_THAT(calls.without_line(), Not(Contains("gradients of bucket")));
  }
});

const Scenario in_own_hooks("places of calls: communication hooks of the program", [] {
  const auto context = init();
  Calls calls(context);
  torch::nn::Linear net(4, 4);
  DistributedDataParallel ddp(net);
  std::source_location here;
  ddp->register_comm_hook([&](GradBucket& bucket) {
    return BucketWork(bucket.process_group().all_reduce_async(bucket.buffer(), ReduceOp::SUM,
                                                              here = std::source_location::current()),
                      bucket.buffer());
  });
  ddp->forward(torch::rand({3, 4})).sum().backward();
  calls.since_last_look();
  EXPECT_THAT(calls.lines(), Contains(here.line()));
});

const Scenario in_checkpoints("places of calls: checkpoints", [] {
  const auto context = init();
  Calls calls(context);
  const TempFolder own;
  const std::filesystem::path folder = context.group().broadcast_object(own.path().string(), 0);
  torch::nn::Linear net(4, 2);
  share_starting_weights(net, folder / "start.pt");
  EXPECT_THAT(calls.since_last_look(), Contains("starting weights"));
  TrainingState state;
  metrics::AverageMeter meter;
  std::source_location here;
  const auto save_own = [&] {
    context.barrier(here = std::source_location::current());
    return Value(1);
  };
  state.add("net", net).add("meter", meter).add_generator().add_functions("own", save_own, [](const Value&) {
  });
  CheckpointManager manager(folder / "run");
  manager.save(1, state.state_dict());
  const auto saved = calls.since_last_look();
  EXPECT_THAT(saved, AllOf(Contains("sums of a metric"), Contains("checkpoint")));
  EXPECT_THAT(calls.lines(), Contains(here.line()));
  EXPECT_THAT(calls.without_line(), Not(Contains("sums of a metric")));
  state.load_state_dict(manager.load_latest()->contents.as_dict());
  manager.wait();
  calls.since_last_look();
  distributed_checkpoint::save(state_dict(net), folder / "shards");
  auto weights = state_dict(net);
  distributed_checkpoint::load(weights, folder / "shards");
  EXPECT_THAT(calls.since_last_look(), Contains("checkpoint"));
  context.barrier();
});

const Scenario in_sharding("places of calls: sharding", [] {
  const auto context = init();
  Calls calls(context);
  torch::nn::Linear net(8, 8);
  const auto sharded = fully_shard(*net);
  torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  net->forward(torch::rand({3, 8})).sum().backward();
  clip_grad_norm_(sharded, 1.0);
  optimizer.step();
  calls.since_last_look();
  get_model_state_dict(sharded, {.full_state_dict = true});
  EXPECT_THAT(calls.since_last_look(), Contains("state dict"));
  get_optimizer_state_dict(sharded, optimizer, {.full_state_dict = true});
  memory_report(*net, optimizer);
  EXPECT_THAT(calls.since_last_look(), Contains("memory of a rank"));
});

const Scenario in_trainer("places of calls: Trainer", [] {
  const auto context = init();
  Calls calls(context);
  torch::nn::Linear net(4, 2);
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), 0.1);
  Trainer trainer(ddp, optimizer, {.epochs = 1, .max_grad_norm = 1.0});
  trainer.on_validate([] { return Scalars{{"accuracy", 0.5}}; });
  std::vector<torch::Tensor> batches(3, torch::rand({2, 4}));
  trainer.fit(batches, [&](auto& batch) { return ddp->forward(batch).sum(); });
  EXPECT_THAT(calls.since_last_look(), Contains("comparison of validations"));
});

TEST(CallPlaces, AreOfTheProgram) {
  for (const auto* scenario :
       {&in_metrics, &in_training, &in_hooks, &in_own_hooks, &in_checkpoints, &in_sharding, &in_trainer}) {
    SCOPED_TRACE(scenario->name());
    expect_all_passed(run_ranks(*scenario));
  }
}

}  // namespace
}  // namespace lockstep::testing
