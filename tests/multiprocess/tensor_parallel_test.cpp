// SPDX-License-Identifier: BSD-3-Clause
// Tensor parallel beside one process: gradients, steps of AdamW, data parallel, dropout, state.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/default_group.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "support/error_of.h"
#include "support/parallel_net.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace tp = tensor::parallel;
namespace F = torch::nn::functional;
using at::Tensor;
using ::testing::HasSubstr;

Tensor flat(const Tensor& logits) { return logits.flatten(0, 1); }

// What a difference of 1e-6 is relative to. In float32 it is the greatest parameter and the greatest gradient
// of the net: an element that is a sum of terms with both signs has the rounding errors of its terms, however
// small it is itself. The gradient of a key's bias, for example, is zero but for rounding.
struct Scale {
  double parameters = 1, gradients = 1;
};

Scale scale_of(const torch::nn::Module& net) {
  Scale scale{0, 0};
  const auto greatest = [](const Tensor& tensor) { return tensor.detach().abs().max().item<double>(); };
  for (const auto& parameter : net.parameters()) {
    scale.parameters = std::max(scale.parameters, greatest(parameter));
    scale.gradients = std::max(scale.gradients, greatest(parameter.grad()));
  }
  return scale;
}

void expect_close(const torch::nn::Module& net, const torch::nn::Module& expected, const DeviceMesh& mesh,
                  const Scale& scale = {}) {
  const auto ours = net.named_parameters(), whole = expected.named_parameters();
  ASSERT_EQ(ours.size(), whole.size());
  for (const auto& item : ours) {
    SCOPED_TRACE(item.key());
    const auto own = item.value().detach(), gradient = item.value().grad();
    EXPECT_LT((own - part_like(whole[item.key()], own, mesh)).abs().max().item<double>(),
              1e-6 * scale.parameters);
    ASSERT_TRUE(gradient.defined());
    const auto expected_gradient = part_like(whole[item.key()].grad(), gradient, mesh);
    EXPECT_LT((gradient - expected_gradient).abs().max().item<double>(), 1e-6 * scale.gradients);
    if (own.sizes() != whole[item.key()].sizes()) continue;
    auto first = gradient.clone();
    mesh.get_group().broadcast(first, 0);
    EXPECT_TRUE(first.equal(gradient)) << "replicated gradients differ between ranks";
  }
}

// One net in one process, and one that starts differently on each rank but the first.
std::pair<ParallelNet, ParallelNet> make_nets(at::ScalarType dtype = torch::kDouble) {
  torch::manual_seed(7);
  ParallelNet expected;
  torch::manual_seed(static_cast<std::uint64_t>(7 + get_rank()));
  ParallelNet net;
  expected->to(dtype);
  net->to(dtype);
  return {expected, net};
}

// Adam divides a gradient by its size, so it turns the rounding errors of a gradient near zero into whole
// steps. In float32 that is not the subject.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& net) {
  const auto parameters = net.parameters();
  if (parameters.front().scalar_type() == torch::kDouble)
    return std::make_unique<torch::optim::AdamW>(parameters, 1e-2);
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.5));
}

void train_beside_one_process(const tp::ParallelizePlan& plan, bool parallel_loss, at::ScalarType dtype,
                              const DeviceMesh& mesh) {
  auto [expected, net] = make_nets(dtype);
  tp::parallelize_module(*net, mesh, plan);
  const auto optimizer = make_optimizer(*net), reference = make_optimizer(*expected);
  for (int step = 0; step < 20; ++step) {
    SCOPED_TRACE(step);
    const auto [tokens, target] = draw_tokens(step);
    optimizer->zero_grad();
    reference->zero_grad();
    const auto logits = flat(net->forward(tokens));
    const auto loss =
        parallel_loss ? tp::loss_parallel(logits, target, mesh) : F::cross_entropy(logits, target);
    const auto expected_loss = F::cross_entropy(flat(expected->forward(tokens)), target);
    EXPECT_NEAR(loss.item<double>(), expected_loss.item<double>(),
                1e-6 * std::max(1.0, expected_loss.item<double>()));
    loss.backward();
    expected_loss.backward();
    optimizer->step();
    reference->step();
    expect_close(*net, *expected, mesh, dtype == torch::kDouble ? Scale{} : scale_of(*expected));
    if (::testing::Test::HasFailure()) return;
  }
}

void train_beside_one_process_with(at::ScalarType dtype) {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({context.world_size()}, {.mesh_dim_names = {"tp"}});
  train_beside_one_process(tensor_plan(), false, dtype, mesh);
  train_beside_one_process(sequence_plan(), true, dtype, mesh);
}

const Scenario steps_in_double("steps_like_one_process",
                               [] { train_beside_one_process_with(torch::kDouble); });
const Scenario steps_in_float("steps_like_one_process, float32",
                              [] { train_beside_one_process_with(torch::kFloat); });

class TensorParallel : public ::testing::TestWithParam<std::pair<int, const char*>> {};

TEST_P(TensorParallel, TrainsAsOneProcess) {
  const auto [ranks, dtype] = GetParam();
  const bool is_double = dtype == std::string("double");
  expect_all_passed(run_ranks(is_double ? steps_in_double : steps_in_float, {.world_size = ranks}));
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorParallel,
                         ::testing::Values(std::pair{2, "double"}, std::pair{4, "double"},
                                           std::pair{2, "float"}),
                         [](const auto& each) {
                           return fmt::format("{}{}", each.param.first, each.param.second);
                         });

using Batches = std::vector<std::pair<Tensor, Tensor>>;

// Steps of a net with dropout. The losses of each step, and numbers that the random stream gives next.
std::pair<std::vector<double>, Tensor> train_with_dropout(ParallelNet& net, const Batches& batches,
                                                          const DeviceMesh* loss_mesh = nullptr) {
  torch::optim::AdamW optimizer(net->parameters(), 1e-2);
  std::vector<double> losses;
  for (const auto& [tokens, target] : batches) {
    optimizer.zero_grad();
    const auto logits = flat(net->forward(tokens));
    const auto loss = loss_mesh != nullptr ? tp::loss_parallel(logits, target, *loss_mesh)
                                           : F::cross_entropy(logits, target);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return {losses, torch::rand({4})};
}

// `seed`: of the process, before it makes the net.
ParallelNet make_net_with_dropout(int seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  ParallelNet net(0.1);
  net->to(torch::kDouble);
  return net;
}

// Whole activations get the masks of one process with rank 0's seed, whatever the seeds of other ranks. With
// dropout on parts, each rank has a stream of its own, and the default streams stay equal.
const Scenario dropout_like_one_process("tensor_parallel_dropout", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({context.world_size()});
  Batches batches;
  for (int step = 0; step < 4; ++step) batches.push_back(draw_tokens(step));

  auto net = make_net_with_dropout(7 + context.rank());
  tp::parallelize_module(*net, mesh, tensor_plan());
  const auto [losses, next] = train_with_dropout(net, batches);
  auto expected = make_net_with_dropout(7);
  const auto [expected_losses, expected_next] = train_with_dropout(expected, batches);
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected_losses[i], 1e-6);
  EXPECT_TRUE(next.equal(expected_next));
  expect_close(*net, *expected, mesh);

  auto sequence = make_net_with_dropout(7 + context.rank());
  tp::parallelize_module(*sequence, mesh, sequence_plan());
  const auto after = train_with_dropout(sequence, batches, &mesh).second;
  auto first = after.clone();
  mesh.get_group().broadcast(first, 0);
  EXPECT_TRUE(first.equal(after));
});

// The lines of docs/tensor-parallel.md: one stream for the ranks of "tp", another for each replica and stage.
const Scenario streams_of_dimensions("tensor_parallel_streams", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 2, 2}, {.mesh_dim_names = {"dp", "pp", "tp"}});
  torch::manual_seed(static_cast<std::uint64_t>(60 + context.rank()));
  torch::nn::Sequential net(torch::nn::Dropout(0.5));
  EXPECT_THAT(error_of<ArgumentError>([&] { manual_seed(80, mesh, {"dp", "cp"}); }), HasSubstr("cp"));
  manual_seed(80, mesh, {"dp", "pp"});
  tp::parallelize_module(*net, mesh["tp"], {});
  const auto output = net->forward(torch::ones({64}));
  std::vector<Tensor> all;
  for (int rank = 0; rank < 8; ++rank) all.push_back(torch::empty_like(output));
  default_group().all_gather(all, output);
  for (std::size_t i = 0; i < 8; ++i)
    for (std::size_t j = 0; j < 8; ++j) EXPECT_EQ(all[i].equal(all[j]), i / 2 == j / 2) << i << ' ' << j;
});

TEST(TensorParallelDropout, HasAStreamForEachReplica) {
  expect_all_passed(run_ranks(streams_of_dimensions, {.world_size = 8}));
}

TEST(TensorParallelDropout, HasTheMasksOfOneProcess) {
  expect_all_passed(run_ranks(dropout_like_one_process));
}

// Two replicas of two ranks; then the state goes to one process and to four ranks.
const Scenario data_parallel("tensor_parallel_data_parallel", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "tp"}});
  auto [expected, net] = make_nets();
  tp::parallelize_module(*net, mesh["tp"], sequence_plan());
  DistributedDataParallel<ParallelNet> ddp(net, {.process_group = mesh["dp"].get_group()});
  torch::optim::AdamW optimizer(net->parameters(), 1e-2), reference(expected->parameters(), 1e-2);
  for (int step = 0; step < 4; ++step) {
    const auto [tokens, target] = draw_tokens(step, mesh.get_local_rank("dp"));
    optimizer.zero_grad();
    reference.zero_grad();
    tp::loss_parallel(flat(ddp->forward(tokens)), target, mesh["tp"]).backward();
    for (int replica = 0; replica < 2; ++replica) {
      const auto [all_tokens, all_target] = draw_tokens(step, replica);
      (F::cross_entropy(flat(expected->forward(all_tokens)), all_target) / 2).backward();
    }
    EXPECT_THAT(error_of<ArgumentError>([&] { clip_grad_norm_(ddp, 0.1); }),
                HasSubstr("with the wrapped module"));
    const auto norm = clip_grad_norm_(*net, 0.1);
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(expected->parameters(), 0.1), 1e-6);
    expect_close(*net, *expected, mesh["tp"]);
    optimizer.step();
    reference.step();
  }
  const auto full = get_model_state_dict(*net, {.full_state_dict = true});
  for (const auto& item : expected->named_parameters())
    EXPECT_TRUE(full.at(item.key()).as_tensor().allclose(item.value().detach(), 0, 1e-6)) << item.key();

  const std::string folder = std::getenv("LOCKSTEP_TEST_CHECKPOINT");
  distributed_checkpoint::save(
      {{"model", get_model_state_dict(*net)}, {"optimizer", get_optimizer_state_dict(*net, optimizer)}},
      folder);
  const auto all = init_device_mesh({4});
  auto [alone, wide] = make_nets();
  tp::parallelize_module(*wide, all, tensor_plan());
  torch::optim::AdamW continued(wide->parameters(), 1e-2);
  Dict state{{"model", get_model_state_dict(*wide)},
             {"optimizer", get_optimizer_state_dict(*wide, continued)}};
  distributed_checkpoint::load(state, folder);
  set_model_state_dict(*wide, state.at("model").as_dict());
  set_optimizer_state_dict(*wide, continued, state.at("optimizer").as_dict());
  const auto in_one_process = distributed_checkpoint::load(folder);
  load_state_dict(alone, in_one_process.at("model").as_dict());
  const auto [tokens, target] = draw_tokens(9);
  continued.zero_grad();
  reference.zero_grad();
  F::cross_entropy(flat(wide->forward(tokens)), target).backward();
  F::cross_entropy(flat(expected->forward(tokens)), target).backward();
  continued.step();
  reference.step();
  expect_close(*wide, *expected, all);
  EXPECT_TRUE(alone->head->weight.allclose(full.at("head.weight").as_tensor(), 0, 0));
});

TEST(TensorParallelReplicas, TrainWithDataParallelAndGoOnElsewhere) {
  const TempFolder folder;
  expect_all_passed(run_ranks(
      data_parallel, {.world_size = 4, .env = {{"LOCKSTEP_TEST_CHECKPOINT", folder.file("checkpoint")}}}));
}

}  // namespace
}  // namespace lockstep::testing
