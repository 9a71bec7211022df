// SPDX-License-Identifier: BSD-3-Clause
// What a PyTorch user writes first, from memory of Python: it compiles and does what it does there.
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

using data::BatchSampler, data::DataLoader, data::DistributedSampler, data::RandomSampler,
    data::SequentialSampler, data::WeightedRandomSampler;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor number(double value) { return torch::full({1}, value); }

std::vector<at::Tensor> zeros(int count) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(number(0));
  return tensors;
}

// Over three ranks: rank r begins with r + 1.
const testing::Scenario reductions("guesses: reductions", [] {
  init_process_group("shm");
  const int rank = get_rank();
  auto t = number(rank + 1);
  all_reduce(t);
  EXPECT_EQ(t.item<double>(), 6);
  all_reduce(t, ReduceOp::MAX);
  auto work = all_reduce_async(t);
  work.wait();
  EXPECT_EQ(t.item<double>(), 18);
  t = number(rank + 1);
  reduce(t, 2);
  if (rank == 2) {
    EXPECT_EQ(t.item<double>(), 6);
  }
  auto part = number(0);
  reduce_scatter(part, {number(1), number(2), number(3)});
  EXPECT_EQ(part.item<double>(), 3 * (rank + 1));
  reduce_scatter_tensor(part, torch::ones({3}));
  EXPECT_EQ(part.item<double>(), 3);
  EXPECT_EQ(reduce_value(number(rank), true).item<double>(), 1);
  EXPECT_EQ(reduce_value(1.0 * rank, false), 3);
  EXPECT_EQ(is_main_process(), rank == 0);
  destroy_process_group();
  EXPECT_FALSE(is_initialized());
  EXPECT_THAT([] { destroy_process_group(); },
              ThrowsMessage<ArgumentError>(HasSubstr("init_process_group()")));
});
TEST(Guesses, ReductionsOnTheDefaultGroup) {
  testing::expect_all_passed(testing::run_ranks(reductions, {.world_size = 3}));
}

const testing::Scenario copies("guesses: copies", [] {
  init_process_group({.backend = "shm"});
  const int rank = get_rank();
  auto t = number(rank + 1);
  broadcast(t, 1);
  EXPECT_EQ(t.item<double>(), 2);
  auto list = zeros(3);
  all_gather(list, number(rank));
  EXPECT_EQ(torch::cat(list).sum().item<double>(), 3);
  auto gathered = torch::zeros({3});
  all_gather_into_tensor(gathered, number(rank));
  EXPECT_TRUE(gathered.equal(torch::arange(3, torch::kFloat)));
  list = zeros(rank == 0 ? 3 : 0);
  gather(number(rank), list);
  if (rank == 0) {
    EXPECT_EQ(list[2].item<double>(), 2);
  }
  scatter(t, rank == 1 ? std::vector{number(5), number(6), number(7)} : std::vector<at::Tensor>(), 1);
  EXPECT_EQ(t.item<double>(), 5 + rank);
  list = zeros(3);
  all_to_all(list, {number(rank), number(rank), number(rank)});
  EXPECT_EQ(list[2].item<double>(), 2);
  auto rows = torch::zeros({3});
  all_to_all_single(rows, torch::full({3}, 1.0 * rank));
  EXPECT_TRUE(rows.equal(torch::arange(3, torch::kFloat)));
  barrier();
  monitored_barrier(std::nullopt, 30);
  destroy_process_group();
});
TEST(Guesses, CopiesOnTheDefaultGroup) {
  testing::expect_all_passed(testing::run_ranks(copies, {.world_size = 3}));
}

const testing::Scenario messages("guesses: messages", [] {
  init_process_group("shm");
  const int rank = get_rank();
  auto t = number(rank);
  if (rank == 0) send(t, 1);
  if (rank == 1) {
    EXPECT_EQ(recv(t, 0), 0);
  }
  if (rank == 1) isend(t, 2).wait();
  if (rank == 2) irecv(t, 1)->wait();
  EXPECT_EQ(t.item<double>(), 0);
  std::vector<std::string> objects;
  all_gather_object(objects, std::to_string(rank));
  EXPECT_THAT(objects, ElementsAre("0", "1", "2"));
  objects = rank == 2 ? std::vector<std::string>{"x", "y"} : std::vector<std::string>(2);
  broadcast_object_list(objects, 2);
  EXPECT_THAT(objects, ElementsAre("x", "y"));
  gather_object(std::to_string(rank), objects);
  EXPECT_EQ(objects.size(), rank == 0 ? 3U : 0U);
  scatter_object_list(objects,
                      rank == 0 ? std::vector<std::string>{"a", "b", "c"} : std::vector<std::string>());
  EXPECT_THAT(objects, ElementsAre(std::string(1, static_cast<char>('a' + rank))));
  destroy_process_group();
});
TEST(Guesses, MessagesAndObjects) {
  testing::expect_all_passed(testing::run_ranks(messages, {.world_size = 3}));
}

// As in Python, src and dst are global ranks.
const testing::Scenario groups_of_guesses("guesses: groups", [] {
  init_process_group("shm");
  const auto group = new_group({1, 2});
  if (group) {
    auto t = number(get_rank());
    broadcast(t, 2, group);
    EXPECT_EQ(t.item<double>(), 2);
    all_reduce(t, ReduceOp::SUM, group);
    EXPECT_EQ(t.item<double>(), 4);
    if (get_rank() == 1) send(number(7), 2, group);
    if (get_rank() == 2) {
      EXPECT_EQ(recv(t, std::nullopt, group), 1);
    }
    EXPECT_EQ(get_group_rank(group, 2), 1);
    EXPECT_EQ(get_global_rank(group, 0), 1);
    EXPECT_THAT([&] { broadcast(t, 0, group); },
                ThrowsMessage<ArgumentError>(HasSubstr("rank 0 is not in group")));
    barrier(group);
  }
  EXPECT_EQ(get_rank(group), get_rank() - 1);
  EXPECT_EQ(get_world_size(group), get_rank() == 0 ? -1 : 2);
  auto t = number(get_rank());
  all_reduce(t, ReduceOp::SUM, group);
  EXPECT_EQ(t.item<double>(), get_rank() == 0 ? 0 : 3);
  if (!group) {
    const auto says_so = ThrowsMessage<ArgumentError>(HasSubstr(": rank 0 is not in group group 1"));
    torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
    EXPECT_THAT([&] { DistributedDataParallel(net, {.process_group = group}); }, says_so);
    EXPECT_THAT([&] { convert_sync_batchnorm(net, group); }, says_so);
    EXPECT_THAT([&] { SyncBatchNorm(2, group); }, says_so);
    EXPECT_THAT([&] { reduce_value(t, true, group); }, says_so);
    EXPECT_THAT([&] { amp::GradScaler(torch::kCPU, {.process_group = group}); }, says_so);
    EXPECT_THAT([&] { batch_isend_irecv({P2POp(isend, t, 1, group)}); }, says_so);
  } else {
    EXPECT_THAT(get_process_group_ranks(group), ElementsAre(1, 2));
    EXPECT_EQ(get_backend(group), "shm");
    const auto other = get_rank() == 1 ? P2POp(isend, t, 2, group) : P2POp(irecv, t, 1, group);
    batch_isend_irecv({other}).front().wait();
  }
  destroy_process_group(new_group({0, 2}, 30, "gloo"));
  const auto [own, all] = new_subgroups_by_enumeration({{0}, {2, 1}}, {.timeout = 30});
  EXPECT_EQ(get_rank(own), get_rank() == 1 ? 1 : 0);
  EXPECT_EQ(get_world_size(all[1]), get_rank() == 0 ? -1 : 2);
  EXPECT_EQ(new_subgroups(3).first.size(), 3);
  EXPECT_THAT([] { new_subgroups(2); }, ThrowsMessage<ArgumentError>(HasSubstr("group_size is 2")));
  EXPECT_THAT(
      [] {
        new_subgroups_by_enumeration({{0, 1}, {1}});
      },
      ThrowsMessage<ArgumentError>(HasSubstr("rank 1 is listed twice")));
  EXPECT_EQ(group == GroupMember::NON_GROUP_MEMBER, !group);
  EXPECT_EQ(get_world_size(GroupMember::WORLD), 3);
  EXPECT_TRUE(is_available());
  EXPECT_TRUE(is_backend_available("shm"));
  EXPECT_FALSE(is_backend_available("tcp"));
  const auto mesh = init_device_mesh("cpu", {3}, {"dp"});
  EXPECT_EQ(mesh.get_local_rank("dp"), get_rank());
  EXPECT_EQ(init_device_mesh("cpu", {3}, {.mesh_dim_names = {"dp"}}).size(), 3);
  EXPECT_THAT([] { init_device_mesh("xpu", {3}); }, ThrowsMessage<ArgumentError>(HasSubstr("trains on cpu")));
  destroy_process_group();
});
TEST(Guesses, GroupsTakeGlobalRanks) {
  testing::expect_all_passed(testing::run_ranks(groups_of_guesses, {.world_size = 3}));
}

const testing::Scenario training("guesses: training", [] {
  init_process_group("gloo");
  torch::manual_seed(get_rank());
  torch::nn::Linear net(4, 1);
  nn::parallel::DistributedDataParallel ddp(net, {.device_ids = {"cpu"},
                                                  .output_device = torch::kCPU,
                                                  .broadcast_buffers = true,
                                                  .bucket_cap_mb = 1,
                                                  .find_unused_parameters = false,
                                                  .gradient_as_bucket_view = true,
                                                  .static_graph = false});
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  ddp.train();
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    ddp(torch::randn({8, 4})).sum().backward();
    EXPECT_GT(nn::utils::clip_grad_norm_(ddp, 1.0), 1);
    nn::utils::clip_grad_value_(ddp.parameters(), 0.5);
    EXPECT_LE(ddp.parameters()[1].grad().abs().item<double>(), 0.5);
    optimizer.step();
  }
  ddp.eval();
  {
    const algorithms::Join join({ddp});
    for (int step = 0; step < get_rank(); ++step) ddp(torch::randn({8, 4})).sum().backward();
  }
  {
    const auto local = ddp->no_sync();
    ddp(torch::ones({1, 4})).sum().backward();
  }
  ddp(torch::ones({1, 4})).sum().backward();
  ddp->to(torch::kCPU);
  ddp->load_state_dict(ddp->state_dict());
  EXPECT_TRUE(ddp.state_dict().contains("module.weight"));
  int buckets = 0;
  DistributedDataParallel counting(torch::nn::Linear(4, 1));
  counting->register_comm_hook(&buckets, [](int* seen, GradBucket& bucket) {
    ++*seen;
    return allreduce_hook(bucket);
  });
  counting(torch::ones({1, 4})).sum().backward();
  EXPECT_EQ(buckets, 1);
  DistributedDataParallel halved(torch::nn::Linear(4, 1));
  halved->register_comm_hook(nullptr, algorithms::ddp_comm_hooks::default_hooks::bf16_compress_hook);
  EXPECT_EQ(checkpoint(net, torch::ones({1, 4}), {.use_reentrant = false}).numel(), 1);
  auto all = torch::zeros({2, 4});
  all_gather_into_tensor(all, ddp->module()->weight.detach());
  EXPECT_TRUE(all[0].equal(all[1]));
  EXPECT_THAT(
      [&] {
        DistributedDataParallel(net, {.device_ids = {0, 1}});
      },
      ThrowsMessage<ArgumentError>(HasSubstr("device_ids has 2 devices")));
  destroy_process_group();
});
TEST(Guesses, ATrainingStep) { testing::expect_all_passed(testing::run_ranks(training)); }

// Ranks that do not call destroy_process_group() leave at their end.
const testing::Scenario spawned("guesses: spawn", [] {
  const auto train = [](int rank, int world_size) {
    init_process_group("shm");
    auto t = number(rank);
    all_reduce(t);
    if (t.item<double>() != 1 || get_world_size() != world_size) throw Error("another sum");
  };
  spawn(train, std::tuple(2), {.nprocs = 2});
  spawn([&](int rank) { train(rank, 2); }, {.nprocs = 2});
});
TEST(Guesses, SpawnWithoutDestroyProcessGroup) {
  testing::expect_all_passed(
      testing::run_ranks(spawned, {.world_size = 1, .env = {{"RANK", ""}, {"WORLD_SIZE", ""}}}));
}

const testing::Scenario contexts("guesses: contexts", [] {
  EXPECT_THAT([] { init_process_group("gloo", {.backend = "shm"}); },
              ThrowsMessage<ArgumentError>(HasSubstr("leave one of them out")));
  EXPECT_THAT([] { all_reduce(number(1)); }, ThrowsMessage<ArgumentError>(HasSubstr("init_process_group()")));
  {
    const auto context = init({.backend = "gloo", .timeout = 30});
    EXPECT_THAT([] { destroy_process_group(); },
                ThrowsMessage<ArgumentError>(HasSubstr("leave out this call")));
    auto t = number(1);
    all_reduce(t);
    EXPECT_EQ(t.item<double>(), 1);
  }
  Context& kept = init_process_group();
  EXPECT_EQ(kept.world_size(), 1);
  EXPECT_THAT([] { init_process_group(); }, ThrowsMessage<ArgumentError>(HasSubstr("in a run already")));
  destroy_process_group();
});
TEST(Guesses, InitProcessGroupBesideInit) {
  testing::expect_all_passed(testing::run_ranks(contexts, {.world_size = 1}));
}

// As LibTorch's tutorials write a dataset.
struct Squares : torch::data::Dataset<Squares> {
  torch::data::Example<> get(std::size_t index) override {
    const auto value = static_cast<std::int64_t>(index);
    return {torch::full({2}, static_cast<double>(value)), torch::tensor(value * value)};
  }
  std::optional<std::size_t> size() const override { return 10; }
};

struct Pairs {
  std::tuple<at::Tensor, int> get(std::size_t index) const {
    return {torch::full({2}, static_cast<double>(index)), static_cast<int>(index)};
  }
  std::int64_t size() const { return 10; }
};

struct Padded : Pairs {
  at::Tensor collate(const std::vector<std::tuple<at::Tensor, int>>& samples) const {
    return torch::full({1}, static_cast<std::int64_t>(samples.size()), torch::kLong);
  }
};

TEST(Guesses, DatasetsWithGetAndSize) {
  for (const int workers : {0, 2}) {
    std::vector<std::int64_t> squares;
    for (auto& [x, y] : DataLoader(Squares(), {.batch_size = 4, .num_workers = workers})) {
      EXPECT_TRUE(x.select(1, 0).square().equal(y.to(torch::kFloat)));
      for (std::int64_t i = 0; i < y.size(0); ++i) squares.push_back(y[i].item<std::int64_t>());
    }
    EXPECT_THAT(squares, ElementsAre(0, 1, 4, 9, 16, 25, 36, 49, 64, 81));
  }
  DataLoader pairs(Pairs(), {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(pairs.size(), 2);
  for (auto& [x, y] : pairs) EXPECT_TRUE(x.select(1, 1).to(torch::kLong).equal(y));
  for (auto& sizes : DataLoader(Padded(), {.batch_size = 5})) EXPECT_EQ(sizes.item<std::int64_t>(), 5);
}

TEST(Guesses, SamplersByValueAndWithPositions) {
  const Pairs dataset;
  DistributedSampler sampler(dataset, 2, 0);
  DataLoader loader(dataset, {.batch_size = 5, .sampler = sampler});
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& [x, y] : loader)
      EXPECT_TRUE(y.equal(sampler.indices())) << "set_epoch() did not reach the loader";
  }
  BatchSampler batches(SequentialSampler(dataset), 4, true);
  EXPECT_EQ(DataLoader(dataset, {.batch_sampler = batches}).size(), 2);
  EXPECT_EQ(BatchSampler(RandomSampler(dataset, true, 7), 4, false).size(), 2);
  EXPECT_EQ(WeightedRandomSampler({0.1, 0.9}, 4, true).size(), 4);
  EXPECT_EQ(WeightedRandomSampler(torch::ones({3}), 2, false).size(), 2);
}

// Options take PyTorch's arguments in PyTorch's order.
TEST(Guesses, OrderOfDesignators) {
  const InitOptions init_options{.backend = "gloo",
                                 .init_method = "env://",
                                 .timeout = 30,
                                 .world_size = 2,
                                 .rank = 0,
                                 .store = {},
                                 .group_name = "train"};
  EXPECT_EQ(init_options.world_size, 2);
  const data::DataLoaderOptions loader{.batch_size = 4,
                                       .shuffle = true,
                                       .sampler = nullptr,
                                       .batch_sampler = nullptr,
                                       .num_workers = 2,
                                       .collate_fn = nullptr,
                                       .pin_memory = true,
                                       .drop_last = true,
                                       .timeout = 30,
                                       .worker_init_fn = {},
                                       .generator = {},
                                       .prefetch_factor = 2,
                                       .persistent_workers = true,
                                       .in_order = true};
  EXPECT_EQ(loader.num_workers, 2);
  const DistributedDataParallelOptions ddp{.device_ids = {0},
                                           .output_device = 0,
                                           .broadcast_buffers = true,
                                           .init_sync = true,
                                           .process_group = {},
                                           .bucket_cap_mb = 25,
                                           .find_unused_parameters = true,
                                           .gradient_as_bucket_view = true,
                                           .static_graph = true,
                                           .delay_all_reduce_named_params = {},
                                           .param_to_hook_all_reduce = {},
                                           .mixed_precision = {},
                                           .skip_all_reduce_unused_params = true,
                                           .bucket_cap_mb_list = {},
                                           .batched_grad_copy = true,
                                           .forward_sync_buffers = true,
                                           .lazy_bucket_allocation = true};
  EXPECT_EQ(ddp.device_ids.size(), 1U);
  const data::MNISTOptions mnist{.train = true, .transform = {}, .target_transform = {}, .download = true};
  EXPECT_TRUE(mnist.download);
  const data::DistributedSamplerOptions sampler{
      .num_replicas = 2, .rank = 0, .shuffle = true, .seed = 1, .drop_last = true};
  EXPECT_EQ(sampler.seed, 1);
}

}  // namespace
}  // namespace lockstep
