// SPDX-License-Identifier: BSD-3-Clause
// What a PyTorch user writes first, from memory of Python: it compiles and does what it does there.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
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

at::Tensor number(double value) { return torch::full({1}, value); }

std::vector<at::Tensor> zeros(int count) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(number(0));
  return tensors;
}

template <typename T>
constexpr bool takes_tensor_as_list = requires(T one) { gather(one, one); } || requires(T one) {
  gather_async(one, one, {.dst = 1});
} || requires(T one) { scatter(one, one, 1); } || requires(T one) { scatter_async(one, one); };

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
  t = number(rank);
  all_reduce(t, {.op = ReduceOp::MAX, .async_op = false});
  EXPECT_EQ(t.item<double>(), 2);
  all_reduce_async(t, {.op = ReduceOp::AVG}).wait();
  all_reduce(t, {});
  all_reduce(t, {ReduceOp::AVG});
  static_assert(!std::is_constructible_v<RequiredRank>);
  static_assert(!takes_tensor_as_list<at::Tensor>);
  broadcast(t, {.src = 1});
  EXPECT_EQ(t.item<double>(), 6);
  reduce_scatter_tensor(part, torch::full({3}, 1.0 * rank), {.op = ReduceOp::MAX});
  EXPECT_EQ(part.item<double>(), 2);
  monitored_barrier({.timeout = 30});
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
  if (rank == 2) {
    const auto work = irecv(t, 1);
    work->wait();
  }
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

const testing::Scenario objects_of_one_type("guesses: objects of one type", [] {
  init_process_group("shm");
  const int rank = get_rank();
  std::vector<double> losses(get_world_size());
  all_gather_object(losses, rank / 2.0);
  EXPECT_THAT(losses, ElementsAre(0, 0.5, 1));
  using Report = std::map<std::string, double>;
  std::vector<Report> reports;
  all_gather_object(reports, {{"rank", rank}, {"loss", 0.25}});
  EXPECT_EQ(reports.at(2), (Report{{"rank", 2}, {"loss", 0.25}}));
  std::vector<std::int64_t> epoch{rank == 1 ? 7 : 0};
  broadcast_object_list(epoch, 1);
  EXPECT_THAT(epoch, ElementsAre(7));
  const auto group = new_group({0, 1});
  std::vector<int> ranks{-1};
  all_gather_object(ranks, rank, {.group = group});
  EXPECT_EQ(ranks.size(), rank == 2 ? 1U : 2U) << "outside of the group nothing changes";
  destroy_process_group();
});
TEST(Guesses, ObjectsOfOneType) {
  testing::expect_all_passed(testing::run_ranks(objects_of_one_type, {.world_size = 3}));
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
    all_reduce(t, ReduceOp::SUM, {.group = group});
    all_reduce(t, {.group = group});
    all_reduce(t, ReduceOp::SUM, group, /*async_op=*/false);
    EXPECT_EQ(t.item<double>(), 32);
    broadcast(t, {.src = 1, .group = group});
    broadcast(t, 1, {.group = group});
    std::vector<std::string> names;
    all_gather_object(names, "a", {.group = group});
    EXPECT_EQ(names.size(), 2);
    barrier({.group = group});
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
  barrier(GroupMember::WORLD);
  auto t = number(get_rank());
  all_reduce(t, ReduceOp::SUM, group);
  EXPECT_EQ(t.item<double>(), get_rank() == 0 ? 0 : 3);
  if (!group) {
    const auto says_so = ThrowsMessage<ArgumentError>(HasSubstr(": rank 0 is not in group group 1"));
    torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
    EXPECT_THAT([&] { DistributedDataParallel(net, {.process_group = group}); }, says_so);
    EXPECT_THAT([&] { convert_sync_batchnorm(net, group); }, says_so);
    EXPECT_THAT([&] { PostLocalSGD({.subgroup = group}); }, says_so);
    EXPECT_THAT([&] { PowerSGD({.process_group = group}); }, says_so);
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
  auto old = new_group({0, 2}, 30, "gloo");
  const auto moved = std::move(old);
  EXPECT_THAT([&] { destroy_process_group(old); },  // NOLINT(bugprone-use-after-move)
              ThrowsMessage<ArgumentError>(HasSubstr("this ProcessGroup has been moved from")));
  destroy_process_group(moved);
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
  const auto context = init({.backend = "gloo"});
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
    std::optional<decltype(ddp)::NoSync> local;
    local.emplace(ddp.no_sync());
    ddp(torch::ones({1, 4})).sum().backward();
  }
  ddp(torch::ones({1, 4})).sum().backward();
  ddp->to(torch::kCPU);
  ddp.load_state_dict(ddp->state_dict());
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
  EXPECT_THAT([&] { context.rank(); }, ThrowsMessage<ArgumentError>(HasSubstr("destroy_process_group()")));
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
  mp::spawn(train, std::tuple(2), 2);
  spawn([](int, int value) { EXPECT_EQ(value, 7); }, std::tuple(7), {});
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
    auto t = number(1);
    all_reduce(t);
    EXPECT_EQ(t.item<double>(), 1);
    destroy_process_group();
    EXPECT_FALSE(is_initialized());
    EXPECT_THAT([&] { context.barrier(); },
                ThrowsMessage<ArgumentError>(HasSubstr("destroy_process_group()")));
  }
  Context& kept = init_process_group();
  EXPECT_EQ(kept.world_size(), 1);
  EXPECT_THAT([] { init_process_group(); }, ThrowsMessage<ArgumentError>(HasSubstr("in a run already")));
  destroy_process_group();
  EXPECT_THAT([&] { kept.device(); }, ThrowsMessage<ArgumentError>(HasSubstr("destroy_process_group()")));
});
TEST(Guesses, InitProcessGroupBesideInit) {
  testing::expect_all_passed(testing::run_ranks(contexts, {.world_size = 1}));
}

}  // namespace
}  // namespace lockstep
