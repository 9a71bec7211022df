// SPDX-License-Identifier: BSD-3-Clause
// Groups that may be missing, objects, clipping, sharded state dicts and pipelines as a user of PyTorch writes them first.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor filled_one() { return torch::ones({1}); }

const testing::Scenario missing_groups("guesses: groups that may be missing", [] {
  init_process_group("shm");
  const int rank = get_rank();
  const std::optional<ProcessGroup> none;
  const std::optional<ProcessGroup> some = new_group({0, 1});
  auto t = filled_one();
  all_reduce(t, ReduceOp::SUM, {.group = none});
  EXPECT_EQ(t.item<double>(), 3);
  all_reduce(t, ReduceOp::SUM, {});
  EXPECT_EQ(t.item<double>(), 9);
  all_reduce_async(t, ReduceOp::SUM, {.group = some}).wait();
  EXPECT_EQ(t.item<double>(), rank == 2 ? 9 : 18);
  broadcast(t, 1, {.group = some});
  auto all = torch::zeros({3});
  all_gather_into_tensor(all, filled_one(), {.group = none});
  EXPECT_EQ(all.sum().item<double>(), 3);
  reduce_scatter_tensor(t, torch::ones({3}), ReduceOp::SUM, {.group = none});
  all_to_all_single(all, torch::ones({3}), {}, {}, {.group = none});
  barrier({.group = none});
  all_reduce(t, ReduceOp::MAX, GroupMember::WORLD);
  if (rank == 0) {
    send(t, 1, {.group = none});
    send(t, 1, {.tag = 3});
    isend(t, 1, {.group = some, .tag = 4}).wait();
  }
  if (rank == 1) {
    EXPECT_EQ(recv(t, 0, {.group = none}), 0);
    EXPECT_EQ(recv(t, 0, {.tag = 3}), 0);
    irecv(t, 0, {.group = some, .tag = 4}).wait();
  }
  const auto x = torch::ones({1}, torch::requires_grad());
  const auto sum = nn::all_reduce(x);
  sum.backward();
  EXPECT_EQ(x.grad().item<double>(), 3);
  EXPECT_EQ(nn::all_gather(x).size(), 3);
  destroy_process_group();
});
TEST(Guesses, AGroupMayBeMissing) {
  testing::expect_all_passed(testing::run_ranks(missing_groups, {.world_size = 3}));
}

// Over three ranks, with the arguments that Python has behind the tensor by name.
const testing::Scenario keywords("guesses: keywords", [] {
  init_process_group("shm");
  const int rank = get_rank();
  const auto filled = [](double value) { return torch::full({1}, value); };
  auto t = filled(rank + 1);
  reduce(t, {.dst = 1, .op = ReduceOp::MAX});
  if (rank == 1) {
    EXPECT_EQ(t.item<double>(), 3);
  }
  reduce_async(t, {.dst = 1}).wait();
  const auto list = rank == 2 ? std::vector{filled(0), filled(0), filled(0)} : std::vector<at::Tensor>();
  const auto gathered = [&] { return list.empty() ? 0 : torch::cat(list).sum().item<double>(); };
  gather(filled(rank), list, {.dst = 2});
  EXPECT_EQ(gathered(), rank == 2 ? 3 : 0);
  gather(filled(rank + 1), {.gather_list = list, .dst = 2});
  EXPECT_EQ(gathered(), rank == 2 ? 6 : 0);
  gather_async(filled(1), list, {.dst = 2, .async_op = false}).wait();
  EXPECT_EQ(gathered(), rank == 2 ? 3 : 0);
  const auto parts = rank == 1 ? std::vector{filled(5), filled(6), filled(7)} : std::vector<at::Tensor>();
  scatter(t, parts, {.src = 1});
  EXPECT_EQ(t.item<double>(), 5 + rank);
  t.zero_();
  rank == 1 ? scatter(t, {.scatter_list = parts, .src = 1}) : scatter(t, {.src = 1});
  EXPECT_EQ(t.item<double>(), 5 + rank);
  if (rank == 0) {
    send(t, {.dst = 1, .tag = 2});
    isend(t, {.dst = 1}).wait();
  }
  if (rank == 1) {
    EXPECT_EQ(recv(t, {.src = 0, .tag = 2}), 0);
    irecv(t, {.src = 0}).wait();
    EXPECT_EQ(t.item<double>(), 5);
  }
  std::vector<std::string> names{rank == 2 ? "x" : ""};
  broadcast_object_list(names, {.src = 2});
  EXPECT_THAT(names, ElementsAre("x"));
  std::vector<Value> values;
  gather_object(rank, values, {.dst = 1});
  EXPECT_EQ(values.size(), rank == 1 ? 3U : 0U);
  scatter_object_list(values, rank == 1 ? std::vector<Value>{4, 5, 6} : std::vector<Value>(), {.src = 1});
  EXPECT_EQ(static_cast<int>(values.at(0)), 4 + rank);
  const auto pair = new_group({0, 1}, {.timeout = 30, .backend = "gloo", .group_desc = "pair"});
  if (pair) {
    EXPECT_EQ(pair.name(), "pair");
  }
  EXPECT_EQ(split_group({}, {{0, 1}, {2}}).size(), rank == 2 ? 1 : 2);
  EXPECT_EQ(split_group(GroupMember::WORLD, {{0}, {1, 2}}, {.group_desc = "part"}).name(), "part");
  destroy_process_group();
});
TEST(Guesses, KeywordArgumentsOfCollectives) {
  testing::expect_all_passed(testing::run_ranks(keywords, {.world_size = 3}));
}

const testing::Scenario value_objects("guesses: values as objects", [] {
  init_process_group("shm");
  const int rank = get_rank();
  std::vector<Value> all(2);
  all_gather_object(all, {{"rank", rank}, {"loss", 0.5}});
  EXPECT_EQ(static_cast<int>(all[1]["rank"]), 1);
  std::vector<Value> objects = {"text", 12, {{"a", torch::full({2}, 3)}}};
  if (rank != 0) objects = std::vector<Value>(3);
  broadcast_object_list(objects, 0);
  EXPECT_EQ(static_cast<int>(objects[1]), 12);
  EXPECT_EQ(objects[2]["a"].as_tensor().sum().item<int>(), 6);
  std::vector<Value> received;
  gather_object(rank * 2, received, 1);
  EXPECT_EQ(received.size(), rank == 1 ? 2U : 0U);
  scatter_object_list(received, rank == 0 ? std::vector<Value>{"a", "b"} : std::vector<Value>());
  EXPECT_EQ(received.at(0).as_string(), rank == 0 ? "a" : "b");
  const auto outside = new_group({0});
  all_gather_object(all, 7, outside);
  EXPECT_EQ(all.size(), rank == 0 ? 1U : 2U);
  std::vector<Value> part(1);
  if (rank == 0) part[0] = ShardedTensor{.size = {2}, .dtype = torch::kFloat};
  EXPECT_THAT([&] { broadcast_object_list(part); },
              ThrowsMessage<CheckpointError>(HasSubstr("an object cannot be sent")));
  destroy_process_group();
});
TEST(Guesses, ObjectsAreValues) { testing::expect_all_passed(testing::run_ranks(value_objects)); }

// Equal on all ranks, with equal gradients once a loss is backpropagated.
torch::nn::Sequential equal_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 4));
}
void add_gradients(torch::nn::Sequential net) {
  net->forward(torch::arange(8, torch::kFloat).reshape({2, 4})).square().sum().backward();
}

const testing::Scenario clipped_lists("guesses: clipping", [] {
  const auto context = init({.backend = "shm"});
  auto alone = equal_net();
  add_gradients(alone);
  const auto norm = torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.5);

  DistributedDataParallel ddp(equal_net());
  ddp(torch::arange(8, torch::kFloat).reshape({2, 4})).square().sum().backward();
  EXPECT_EQ(nn::utils::clip_grad_norm_(ddp.parameters(), 0.5), norm);
  EXPECT_TRUE(ddp.parameters()[0].grad().equal(alone->parameters()[0].grad()));

  for (const bool of_module : {true, false}) {
    auto net = equal_net();
    const auto sharded = fully_shard(net);
    add_gradients(net);
    EXPECT_NEAR(clip_grad_norm_(of_module ? net->parameters() : sharded.parameters(), 0.5), norm,
                1e-4 * norm);
    EXPECT_NEAR(clip_grad_norm_(sharded, 1e9), 0.5, 1e-4);
  }
  auto cut = equal_net();
  const auto mesh = init_device_mesh("cpu", {2});
  tensor_parallel::parallelize_module(cut, mesh,
                                      {{"0", tensor_parallel::ColwiseParallel({.use_local_output = true})},
                                       {"2", tensor_parallel::RowwiseParallel()}});
  add_gradients(cut);
  EXPECT_NEAR(clip_grad_norm_(cut->parameters(), 0.5), norm, 1e-4 * norm);
  EXPECT_NEAR(clip_grad_norm_(cut, 1e9), 0.5, 1e-4);

  MixtureOfExperts experts({.dim = 4, .num_experts = 2, .mesh = mesh},
                           [] { return torch::nn::Linear(4, 4); });
  EXPECT_THAT([&] { clip_grad_norm_(alone->parameters(), 1); },
              ThrowsMessage<ArgumentError>(HasSubstr("a list of parameters does not say which are theirs")));
  experts = nullptr;
  EXPECT_NEAR(clip_grad_norm_(alone->parameters(), 1), 0.5, 1e-6);
});
TEST(Guesses, ClippingTakesParameters) { testing::expect_all_passed(testing::run_ranks(clipped_lists)); }

const testing::Scenario loaded_shards("guesses: state dicts", [] {
  init_process_group("shm");
  auto net = equal_net();
  const auto sharded = fully_shard(net);
  optim::AdamW optimizer(sharded.parameters(), {.lr = 0.1, .foreach = true});
  add_gradients(net);
  optimizer.step();
  auto [model, optim] = get_state_dict(net, optimizer);
  set_state_dict(net, optimizer, {.model_state_dict = model, .optim_state_dict = optim});
  const auto result = set_model_state_dict(net, model);
  EXPECT_TRUE(result.missing_keys.empty());
  EXPECT_TRUE(result.unexpected_keys.empty());
  EXPECT_EQ(result.loaded_keys.size(), 4);
  for (const bool from_rank_0 : {false, true}) {
    auto whole = get_model_state_dict(net, {.full_state_dict = true});
    if (from_rank_0 && get_rank() != 0) {
      whole = Dict();
    } else {
      whole.erase("0.bias");
      whole.set("extra", 1);
    }
    const auto [missing, unexpected] =
        set_model_state_dict(sharded, whole, {.strict = false, .broadcast_from_rank0 = from_rank_0});
    EXPECT_THAT(missing, ElementsAre("0.bias"));
    EXPECT_THAT(unexpected, ElementsAre("extra"));
  }
  destroy_process_group();
});
TEST(Guesses, LoadingShardsReturnsTheKeysThatDoNotFit) {
  testing::expect_all_passed(testing::run_ranks(loaded_shards));
}

const testing::Scenario named_schedules("guesses: pipelines", [] {
  const auto context = init({.backend = "shm"});
  torch::nn::Sequential part(torch::nn::Linear(4, 4));
  const pipelining::PipelineStage stage(part, context.rank(), 2);
  const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
    return torch::mse_loss(output, target);
  };
  pipelining::Schedule1F1B schedule(stage, {.n_microbatches = 4, .loss_fn = loss});
  std::vector<at::Tensor> losses;
  if (stage.is_first()) {
    schedule.step(torch::ones({8, 4}));
  } else {
    schedule.step({.target = torch::ones({8, 4}), .losses = losses});
    EXPECT_EQ(losses.size(), 4);
  }
  EXPECT_GT(part->parameters()[0].grad().abs().sum().item<double>(), 0);

  const auto loss_of = [&](const pipelining::LossFunction& loss_fn) {
    pipelining::ScheduleGPipe gpipe(stage, 2, {.loss_fn = loss_fn});
    losses.clear();
    gpipe.step(stage.is_first() ? torch::ones({8, 4}) : at::Tensor(), torch::zeros({8, 4}), losses);
    return losses.empty() ? 0 : losses[0].item<double>();
  };
  const double expected = loss_of(loss);
  EXPECT_EQ(loss_of(torch::mse_loss), expected);
  EXPECT_EQ(loss_of(nn::functional::mse_loss), expected);
  using WithDelta = at::Tensor (*)(const at::Tensor&, const at::Tensor&, double);
  static_assert(!std::is_constructible_v<pipelining::LossFunction, WithDelta>, "delta has no default");
  EXPECT_EQ(loss_of(torch::nn::MSELoss()), expected);
});
TEST(Guesses, SchedulesTakeArgumentsByName) {
  testing::expect_all_passed(testing::run_ranks(named_schedules));
}

const testing::Scenario without_arrows("guesses: wrappers without arrows", [] {
  const auto context = init({.backend = "shm"});
  DistributedDataParallel ddp(torch::nn::Linear(4, 1));
  int buckets = 0;
  ddp.register_comm_hook(&buckets, [](int* seen, GradBucket& bucket) {
    ++*seen;
    return allreduce_hook(bucket);
  });
  ddp(torch::ones({1, 4})).sum().backward();
  EXPECT_EQ(buckets, 1);
  DistributedDataParallel halved(torch::nn::Linear(4, 1));
  halved.register_comm_hook(nullptr, default_hooks::bf16_compress_hook);
  DistributedDataParallel low_rank(torch::nn::Linear(4, 1));
  powerSGD::PowerSGDState state({.matrix_approximation_rank = 1, .start_powerSGD_iter = 2});
  low_rank.register_comm_hook(state, powerSGD_hook);
  for (int step = 0; step < 3; ++step) low_rank(torch::ones({1, 4})).sum().backward();
  EXPECT_EQ(state.compression_stats().numel_before, 5);
  DistributedDataParallel plain(torch::nn::Linear(4, 1));
  plain.register_comm_hook(allreduce_hook);
  DistributedDataParallel uneven(torch::nn::Linear(4, 1));
  const auto join = uneven.join({.enable = true});
  for (int step = 0; step <= context.rank(); ++step) uneven(torch::ones({1, 4})).sum().backward();
});
TEST(Guesses, WrappersWithoutArrows) { testing::expect_all_passed(testing::run_ranks(without_arrows)); }

const testing::Scenario without_namespaces("guesses: names of torch.distributed.tensor", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh("cpu", {2}, {"tp"});
  std::optional<DeviceContext> meta("meta");
  torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
  meta.reset();
  const auto sharded = fully_shard(net);
  to_empty(net, torch::kCPU);
  to_empty(net, {.device = "cpu"});
  to_empty(net, "cpu", std::source_location::current());
  EXPECT_TRUE(sharded.parameters()[0].is_cpu());

  auto cut = equal_net();
  parallelize_module(cut, mesh,
                     {{"0", ColwiseParallel({.input_layouts = Replicate(), .output_layouts = Shard(-1)})},
                      {"2", RowwiseParallel({.output_layouts = Replicate()})}});
  EXPECT_TRUE(torch::allclose(cut->forward(torch::ones({2, 4})), equal_net()->forward(torch::ones({2, 4}))));
});
TEST(Guesses, NamesOfTensorParallelNeedNoNamespace) {
  testing::expect_all_passed(testing::run_ranks(without_namespaces));
}

}  // namespace
}  // namespace lockstep
