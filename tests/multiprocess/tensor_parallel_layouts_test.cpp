// SPDX-License-Identifier: BSD-3-Clause
// Layouts beside one process, and where they are refused: sums that a net leaves to redistribute(), and
// inputs that layers share.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "support/error_of.h"
#include "support/parallel_net.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

namespace tp = tensor_parallel;
using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Pairs of layers whose outputs are added before the sum over the ranks. Three ranks share its sizes equally.
struct BranchesImpl : torch::nn::Module {
  explicit BranchesImpl(bool bias) {
    for (const auto* name : {"tokens", "colors"})
      tables.push_back(register_module(name, torch::nn::Embedding(12, 6)));
    const auto linear = [&](const char* name, int in, int out) {
      layers.push_back(
          register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias))));
    };
    linear("left_in", 6, 9);
    linear("left_out", 9, 6);
    linear("right_in", 6, 12);
    linear("right_out", 12, 6);
    linear("head", 6, 3);
  }

  // `mesh`: of the ranks that share the layers; nullptr: the whole net.
  Tensor forward(const Tensor& indices, const DeviceMesh* mesh) {
    auto x = tables[0](indices) + tables[1](indices);
    if (mesh != nullptr) {
      const auto part = tp::redistribute(x, *mesh, tp::Partial(), tp::Shard(-1));
      x = tp::redistribute(part, *mesh, tp::Shard(-1), tp::Replicate());
    }
    auto y = layers[1](torch::tanh(layers[0](x))) + layers[3](torch::sigmoid(layers[2](x)));
    if (mesh != nullptr) y = tp::redistribute(y, *mesh, tp::Partial(), tp::Replicate());
    return layers[4](y);
  }

  std::vector<torch::nn::Embedding> tables;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Branches);

Branches make_branches(bool bias) {
  torch::manual_seed(9);
  Branches net(bias);
  net->to(torch::kDouble);
  return net;
}

void compare_branches(bool bias, const Tensor& indices, const DeviceMesh& mesh) {
  auto expected = make_branches(bias), net = make_branches(bias);
  const tp::RowwiseParallel lookup{.input_layouts = tp::Replicate(), .output_layouts = tp::Partial()};
  tp::parallelize_module(*net, mesh,
                         {{"tokens", lookup},
                          {"colors", lookup},
                          {"*_in", tp::ColwiseParallel()},
                          {"*_out", tp::RowwiseParallel{.output_layouts = tp::Partial()}},
                          {"head", tp::ColwiseParallel{.output_layouts = tp::Replicate()}}});
  const auto options = torch::optim::SGDOptions(0.1).weight_decay(0.5);
  torch::optim::SGD optimizer(net->parameters(), options), reference(expected->parameters(), options);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    reference.zero_grad();
    const auto output = net->forward(indices, &mesh), whole = expected->forward(indices, nullptr);
    EXPECT_TRUE(output.allclose(whole, 0, 1e-12));
    output.pow(2).sum().backward();
    whole.pow(2).sum().backward();
    optimizer.step();
    reference.step();
    for (const auto& item : net->named_parameters()) {
      const auto other = expected->named_parameters()[item.key()];
      const auto gradient = item.value().grad(), own = item.value().detach();
      EXPECT_TRUE(gradient.allclose(part_like(other.grad(), gradient, mesh), 0, 1e-12)) << item.key();
      EXPECT_TRUE(own.allclose(part_like(other, own, mesh), 0, 1e-12)) << item.key();
    }
  }
  const torch::NoGradGuard no_gradients;
  EXPECT_TRUE(net->forward(indices, &mesh).allclose(expected->forward(indices, nullptr), 0, 1e-12));
}

void check_refused_layouts(const DeviceMesh& mesh) {
  const auto refused = [&](const char* pattern, const tp::ParallelStyle& style, const char* layout) {
    auto net = make_branches(true);
    EXPECT_THAT(error_of<ArgumentError>([&] {
                  tp::parallelize_module(*net, mesh, {{pattern, style}});
                }),
                AllOf(HasSubstr(pattern), HasSubstr(layout), HasSubstr("tensor_parallel_layouts_test")));
    EXPECT_EQ(net->layers[0]->weight.size(0), 9) << "an error changes nothing";
  };
  const auto sum = tp::Partial();
  refused("*_in", tp::ColwiseParallel{.input_layouts = sum}, "ColwiseParallel{.input_layouts = Partial()}");
  refused("*_in", tp::ColwiseParallel{.output_layouts = sum}, "ColwiseParallel{.output_layouts = Partial()}");
  refused("*_out", tp::RowwiseParallel{.input_layouts = sum}, "RowwiseParallel{.input_layouts = Partial()}");
  refused("tokens", tp::ColwiseParallel{.output_layouts = sum},
          "ColwiseParallel{.output_layouts = Partial()}");
  refused("tokens", tp::RowwiseParallel{.input_layouts = sum}, "RowwiseParallel{.input_layouts = Partial()}");
  EXPECT_THAT(error_of<ArgumentError>([&] {
                tp::ColumnParallelLinear(torch::nn::LinearOptions(6, 9), mesh,
                                         tp::ColwiseParallel{.input_layouts = sum});
              }),
              HasSubstr("ColumnParallelLinear"));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                tp::VocabParallelEmbedding(torch::nn::EmbeddingOptions(12, 6), mesh,
                                           tp::RowwiseParallel{.input_layouts = sum});
              }),
              HasSubstr("VocabParallelEmbedding"));
  EXPECT_THAT(error_of<ArgumentError>(
                  [&] { tp::redistribute(torch::ones({3}), mesh, tp::Replicate(), tp::Partial()); }),
              HasSubstr("cannot become Partial()"));
}

// The gradient of a gradient: that of a norm's whole weight is summed over parts of the sequence.
void compare_second_gradients(const DeviceMesh& mesh) {
  torch::manual_seed(10);
  const auto x = torch::randn({6, 5}, torch::kDouble);
  const auto norm_of = [](torch::nn::LayerNorm& norm, const Tensor& input) {
    const auto gradient =
        torch::autograd::grad({norm(input).pow(3).sum()}, {norm->weight}, {}, /*retain_graph=*/true,
                              /*create_graph=*/true)[0];
    gradient.pow(2).sum().backward();
    return norm->weight.grad();
  };
  torch::nn::LayerNorm expected(torch::nn::LayerNormOptions({5})), norm(torch::nn::LayerNormOptions({5}));
  expected->to(torch::kDouble);
  norm->to(torch::kDouble);
  tp::parallelize_module(*norm, mesh, {{"", tp::SequenceParallel()}});
  const auto part = x.chunk(mesh.size())[static_cast<std::size_t>(mesh.get_local_rank())];
  EXPECT_TRUE(norm_of(norm, part).allclose(norm_of(expected, x), 1e-10, 0));
}

struct PairImpl : torch::nn::Module {
  PairImpl() {
    for (const auto* name : {"first", "second"}) {
      layers.push_back(register_module(name, torch::nn::Linear(4, 6)));
      layers.back()->to(torch::kDouble);
    }
  }
  Tensor forward(const Tensor& x, const Tensor& y) { return layers[0](x) * layers[1](y); }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Pair);

std::size_t calls_of(const DeviceMesh& mesh, const std::function<void()>& action) {
  const auto before = mesh.get_group().recent_calls();
  const auto first = before.empty() ? 0 : before.back().number;
  action();
  return mesh.get_group().recent_calls().back().number - first;
}

constexpr std::size_t kShared = 3, kEach = 4;  // calls of a forward: of one or two inputs, and of two outputs

// Layers that get one tensor gather it once, and scatter its gradient once.
void compare_prepared(const DeviceMesh& mesh) {
  torch::manual_seed(11);
  Pair net, expected;
  {
    const torch::NoGradGuard no_gradients;
    for (const auto& item : net->named_parameters())
      expected->named_parameters()[item.key()].copy_(item.value());
  }
  const tp::ColwiseParallel whole{.output_layouts = tp::Replicate()};
  const tp::PrepareModuleInput rows{.input_layouts = tp::Shard(0)};
  tp::parallelize_module(*net, mesh, {{"", rows}, {"*", whole}, {"first", whole}});
  auto x = torch::randn({6, 4}, torch::kDouble).requires_grad_();
  auto part = x.detach().chunk(mesh.size())[static_cast<std::size_t>(mesh.get_local_rank())].clone();
  Tensor output;
  const auto forward_calls = [&](const Tensor& other) {
    return calls_of(mesh, [&] { output = net->forward(part, other); });
  };
  EXPECT_EQ(forward_calls(part), kShared) << "an input without gradients";
  part.requires_grad_();
  for (const bool trained : {true, false}) {
    for (const auto& layer : net->layers) layer->weight.requires_grad_(trained);
    EXPECT_EQ(forward_calls(part), kShared + (trained ? 0 : 2)) << "the ranks agree on a change";
    EXPECT_EQ(forward_calls(part), kShared) << "trained " << trained;
    EXPECT_TRUE(output.allclose(expected->forward(x, x), 0, 1e-12));
    EXPECT_EQ(calls_of(mesh, [&] { output.pow(2).sum().backward(); }), 1U) << "trained " << trained;
    expected->forward(x, x).pow(2).sum().backward();
    EXPECT_TRUE(part.grad().allclose(part_like(x.grad(), part, mesh), 0, 1e-10));
    const torch::NoGradGuard no_gradients;
    EXPECT_EQ(forward_calls(part), kShared) << "without gradients";
    EXPECT_EQ(forward_calls(part.clone()), kEach) << "two tensors";
    part.add_(1);  // another value in the same tensor
    x.add_(1);
    EXPECT_EQ(forward_calls(part), kShared);
    EXPECT_TRUE(output.allclose(expected->forward(x, x), 0, 1e-12));
    const c10::InferenceMode inference;
    const auto fixed = part + 0;
    EXPECT_EQ(calls_of(mesh, [&] { output = net->forward(fixed, fixed); }), kEach);
    EXPECT_TRUE(output.allclose(expected->forward(x, x), 0, 1e-12));
  }
  Pair own_first;  // the first entry of a layer decides, so that only one layer shares
  tp::parallelize_module(
      *own_first, mesh,
      {{"", rows}, {"first", tp::ColwiseParallel{tp::Shard(0), tp::Replicate()}}, {"*", whole}});
  for (int step = 0; step < 2; ++step)
    EXPECT_EQ(calls_of(mesh, [&] { own_first->forward(part, part); }), kEach) << step;
  const auto refused = [&](const tp::ParallelizePlan& plan) {
    Pair other;
    return error_of<ArgumentError>([&] { tp::parallelize_module(*other, mesh, plan); });
  };
  EXPECT_THAT(refused({{"", rows}}), HasSubstr("has PrepareModuleInput, but the plan has no Linear"));
  EXPECT_THAT(refused({{"", rows}, {"*", tp::ColwiseParallel{.input_layouts = tp::Replicate()}}}),
              HasSubstr("without input_layouts"));
  EXPECT_THAT(refused({{"", tp::PrepareModuleInput{tp::Shard(0), tp::Shard(1)}}, {"*", whole}}),
              HasSubstr("desired_input_layouts"));
  EXPECT_THAT(refused({{"", tp::PrepareModuleInput{tp::Partial()}}, {"*", whole}}), HasSubstr("Partial()"));
}

const Scenario partial_layouts("tensor parallel sums", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({context.world_size()});
  for (const bool bias : {false, true}) {
    for (const auto& indices :
         {torch::tensor(4), torch::tensor({0, 11, 4, 4}), torch::tensor({3, 7, 0, 11, 4, 6}).view({2, 3})}) {
      SCOPED_TRACE(::testing::Message()
                   << "bias " << bias << ", indices of " << indices.dim() << " dimensions");
      compare_branches(bias, indices, mesh);
    }
  }
  auto x = torch::ones({3}).requires_grad_();
  tp::redistribute(x, mesh, tp::Partial(), tp::Partial()).sum().backward();
  EXPECT_TRUE(x.grad().equal(torch::ones({3})));
  check_refused_layouts(mesh);
  compare_second_gradients(mesh);
  compare_prepared(mesh);
});

TEST(TensorParallelLayouts, SumsOfBranches) {
  expect_all_passed(run_ranks(partial_layouts, {.world_size = 3}));
}

}  // namespace
}  // namespace lockstep::testing
