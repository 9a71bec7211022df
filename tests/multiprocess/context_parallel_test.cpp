// SPDX-License-Identifier: BSD-3-Clause
// Attention over a sequence in parts beside one process: values, gradients, training of GPT-2 and Llama,
// errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/amp/autocast.h>
#include <lockstep/context_parallel/context_parallel.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/models/language.h>
#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

namespace cp = context_parallel;
using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Attention in one process, from elementary operators.
Tensor plain_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal,
                       std::optional<double> scale) {
  const auto groups = query.size(1) / key.size(1);
  const auto keys = key.repeat_interleave(groups, 1), values = value.repeat_interleave(groups, 1);
  auto scores = query.matmul(keys.transpose(-1, -2));
  scores = scores * scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3))));
  if (is_causal) {
    const auto later = torch::ones({query.size(2), key.size(2)}, at::kBool).triu(1);
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  }
  return scores.softmax(-1).matmul(values);
}

double relative_difference(const Tensor& ours, const Tensor& expected) {
  return ((ours - expected).norm() / expected.norm()).item<double>();
}

struct AttentionCase {
  bool is_causal;
  cp::LoadBalancer load_balancer;
  std::int64_t key_heads;
  at::ScalarType dtype;
  double tolerance;
  std::optional<double> scale = {};
};

void expect_as_one_process(const AttentionCase& each, const DeviceMesh& mesh) {
  torch::manual_seed(3);
  const auto length = 6 * mesh.size();
  const auto draw = [&](std::int64_t heads) {
    return torch::randn({2, heads, length, 8}, torch::kDouble).to(each.dtype);
  };
  const std::vector<Tensor> inputs{draw(4), draw(each.key_heads), draw(each.key_heads)};
  const auto output_gradient = draw(4);
  std::vector<Tensor> whole, parts;
  for (const auto& input : inputs) {
    whole.push_back(input.to(torch::kDouble).requires_grad_());
    parts.push_back(cp::shard(input, mesh, 2, each.load_balancer).requires_grad_());
  }
  const auto expected = plain_attention(whole[0], whole[1], whole[2], each.is_causal, each.scale);
  const auto expected_gradients = torch::autograd::grad({expected}, whole, {output_gradient});
  const auto output = cp::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], mesh,
      {.is_causal = each.is_causal, .scale = each.scale, .load_balancer = each.load_balancer});
  EXPECT_EQ(output.scalar_type(), each.dtype);
  const auto gradients =
      torch::autograd::grad({output}, parts, {cp::shard(output_gradient, mesh, 2, each.load_balancer)});
  const auto all = cp::unshard(output.detach(), mesh, 2, each.load_balancer);
  EXPECT_LT(relative_difference(all, expected), each.tolerance);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto gradient = cp::unshard(gradients[i], mesh, -2, each.load_balancer);
    EXPECT_LT(relative_difference(gradient, expected_gradients[i]), each.tolerance) << "of input " << i;
  }
}

const Scenario attention_like_one_process("attention_like_one_process", [] {
  using enum cp::LoadBalancer;
  const auto context = init({.backend = backend_under_test()});
  const auto mesh = init_device_mesh({context.world_size()}, {.mesh_dim_names = {"cp"}});
  for (const auto& each : std::vector<AttentionCase>{{true, head_tail, 4, at::kFloat, 1e-5},
                                                     {true, none, 4, at::kFloat, 1e-5},
                                                     {false, head_tail, 4, at::kFloat, 1e-5},
                                                     {true, head_tail, 4, at::kDouble, 1e-10},
                                                     {true, none, 2, at::kDouble, 1e-10},
                                                     {false, none, 2, at::kDouble, 1e-10, 0.3},
                                                     {true, head_tail, 1, at::kDouble, 1e-10, 0.3},
                                                     {true, head_tail, 2, at::kBFloat16, 1e-2}}) {
    SCOPED_TRACE(::testing::Message()
                 << "causal " << each.is_causal << ", balanced " << (each.load_balancer == head_tail)
                 << ", key heads " << each.key_heads << ", " << toString(each.dtype));
    expect_as_one_process(each, mesh);
  }
});

class ContextParallel : public EveryBackend {};

TEST_P(ContextParallel, AttendsAsOneProcess) { run(attention_like_one_process); }

INSTANTIATE_TEST_SUITE_P(Backends, ContextParallel, backends_and_ranks({2, 3, 4}), name_of_case);

// Keys of another length, as of an encoder; shard() and unshard() of other dimensions.
const Scenario cross_attention("cross_attention", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2});
  const auto query = torch::randn({1, 2, 5, 4}), key = torch::randn({1, 2, 3, 4}),
             value = torch::randn({1, 2, 3, 4});
  const auto rows = [](const Tensor& part, const DeviceMesh& of) {
    return cp::unshard(part, of, 2, cp::LoadBalancer::none);
  };
  const auto output = cp::scaled_dot_product_attention(query, key, value, mesh);
  const auto expected = plain_attention(query, rows(key, mesh), rows(value, mesh), false, {});
  EXPECT_LT(relative_difference(output, expected), 1e-5);

  const auto numbers = torch::arange(8).view({8, 1}).expand({8, 3});
  const auto part = cp::shard(numbers, mesh, 0);
  const auto own = context.rank() == 0 ? torch::tensor({0, 1, 6, 7}) : torch::tensor({2, 3, 4, 5});
  EXPECT_TRUE(part.select(1, 0).equal(own));
  EXPECT_TRUE(cp::unshard(part, mesh, 0).equal(numbers));
  EXPECT_TRUE(
      cp::unshard(cp::shard(numbers, mesh, 0, cp::LoadBalancer::none), mesh, 0, cp::LoadBalancer::none)
          .equal(numbers));
});

TEST(ContextParallelShapes, KeysOfAnotherLengthAndPartsOfAnyDimension) {
  expect_all_passed(run_ranks(cross_attention));
}

Tensor loss_of(const Tensor& logits, const Tensor& target) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), target.flatten());
}

// The same net in one process, and with a part of the sequence on each rank, of two replicas.
template <typename Net, typename Options>
void train_beside_one_process(Options options, const DeviceMesh& mesh) {
  torch::manual_seed(5);
  Net alone(options);
  options.attn_implementation = [&](const Tensor& queries, const Tensor& keys, const Tensor& values) {
    return cp::scaled_dot_product_attention(queries, keys, values, mesh["cp"], {.is_causal = true});
  };
  Net net(options);
  DistributedDataParallel<Net> ddp(net);
  {
    const torch::NoGradGuard no_gradients;
    for (const auto& item : alone->named_parameters())
      net->named_parameters()[item.key()].copy_(item.value());
  }
  torch::optim::AdamW reference(alone->parameters(), 1e-2), optimizer(net->parameters(), 1e-2);
  for (int step = 0; step < 10; ++step) {
    SCOPED_TRACE(step);
    const auto tokens = torch::randint(options.vocab_size, {4, 17});
    const auto input = tokens.slice(1, 0, -1), target = tokens.slice(1, 1);
    const Tensor expected = loss_of(alone->forward(input), target);
    const auto own = [&](const Tensor& batch) {
      return cp::shard(batch.narrow(0, 2 * mesh.get_local_rank("dp"), 2), mesh["cp"], 1);
    };
    const auto positions = cp::shard(at::arange(16), mesh["cp"], 0).unsqueeze(0);
    const Tensor loss = loss_of(ddp->forward(own(input), nullptr, positions), own(target));
    const Tensor mean = loss.detach().clone();
    default_group().all_reduce(mean, ReduceOp::AVG);
    EXPECT_NEAR(mean.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());
    reference.zero_grad();
    optimizer.zero_grad();
    expected.backward();
    loss.backward();
    for (const auto& item : alone->named_parameters())
      EXPECT_LT(relative_difference(net->named_parameters()[item.key()].grad(), item.value().grad()), 1e-4)
          << item.key();
    reference.step();
    optimizer.step();
  }
}

const Scenario language_models_in_parts("language_models_in_parts", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "cp"}});
  using namespace models;
  train_beside_one_process<GPT2>(GPT2Options{.vocab_size = 40,
                                             .n_positions = 16,
                                             .n_embd = 16,
                                             .n_layer = 2,
                                             .n_head = 2,
                                             .resid_pdrop = 0,
                                             .embd_pdrop = 0,
                                             .attn_pdrop = 0},
                                 mesh);
  train_beside_one_process<Llama>(LlamaOptions{.vocab_size = 40,
                                               .hidden_size = 16,
                                               .intermediate_size = 24,
                                               .num_hidden_layers = 2,
                                               .num_attention_heads = 4,
                                               .num_key_value_heads = 2},
                                  mesh);
  const Attention none = [](const Tensor& queries, const Tensor&, const Tensor&) { return queries; };
  EXPECT_THAT(error_of<ArgumentError>([&] { GPT2 net(GPT2Options{.attn_implementation = none}); }),
              HasSubstr("attn_pdrop = 0.1"));
  GPT2 net(GPT2Options{.vocab_size = 8, .n_embd = 4, .n_layer = 1, .n_head = 1});
  EXPECT_THAT(error_of<ArgumentError>([&] {
                net->forward(torch::zeros({1, 4}, at::kLong), nullptr, torch::arange(3).unsqueeze(0));
              }),
              HasSubstr("position_ids of shape [1, 3] for tokens of shape [1, 4]"));
});

TEST(ContextParallelModels, TrainAsInOneProcess) {
  expect_all_passed(run_ranks(language_models_in_parts, {.world_size = 4}));
}

const Scenario context_parallel_misuse("context_parallel_misuse", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2});
  const auto x = torch::randn({1, 2, 3, 4});
  const auto error = [&](const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal) {
    return error_of<ArgumentError>(
        [&] { cp::scaled_dot_product_attention(query, key, value, mesh, {.is_causal = is_causal}); });
  };
  EXPECT_THAT(error_of<ArgumentError>([&] { cp::shard(torch::arange(6), mesh, 0); }),
              AllOf(HasSubstr("6 elements"), HasSubstr("multiple of 4"), HasSubstr("LoadBalancer::none")));
  EXPECT_THAT(error_of<ArgumentError>([&] { cp::shard(torch::arange(5), mesh, 0, cp::LoadBalancer::none); }),
              HasSubstr("multiple of 2"));
  EXPECT_THAT(error_of<ArgumentError>([&] { cp::shard(torch::arange(4), mesh, 1); }), HasSubstr("dim 1"));
  EXPECT_THAT(error_of<ArgumentError>([&] { cp::unshard(torch::arange(3), mesh, 0); }),
              HasSubstr("multiple of 2"));
  EXPECT_THAT(error(x, x, x, true), AllOf(HasSubstr("even length"), HasSubstr("context_parallel_test.cpp")));
  EXPECT_THAT(error(x.slice(2, 0, 2), x, x, true), HasSubstr("as many queries as keys"));
  EXPECT_THAT(error(x, torch::randn({1, 3, 3, 4}), torch::randn({1, 3, 3, 4}), false),
              HasSubstr("a multiple of"));
  EXPECT_THAT(error(x, x, x.slice(3, 0, 2), false), HasSubstr("of one shape"));
  EXPECT_THAT(error(x, x.to(at::kDouble), x, false), HasSubstr("one dtype"));

  auto query = torch::randn({1, 2, 4, 4}, torch::requires_grad());
  const auto twice = cp::scaled_dot_product_attention(query, query, query, mesh);
  EXPECT_THAT(error_of<Error>([&] { torch::autograd::grad({twice.sum()}, {query}, {}, true, true); }),
              HasSubstr("create_graph"));
  auto changed = cp::scaled_dot_product_attention(query * 1, query, query, mesh);
  changed.mul_(2);
  EXPECT_THROW(changed.sum().backward(), std::exception);  // as saved tensors of LibTorch's operators
});

// Rotary embeddings make queries and keys float32.
const Scenario attention_under_autocast("attention_under_autocast", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2});
  const auto query = torch::randn({1, 2, 4, 8}, torch::requires_grad());
  const auto value = torch::randn({1, 2, 4, 8}).to(at::kBFloat16);
  const auto attend = [&] {
    const amp::Autocast autocast(at::kCPU);
    return cp::scaled_dot_product_attention(query, query, value, mesh);
  };
  const auto output = attend();
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  output.sum().backward();
  EXPECT_EQ(query.grad().scalar_type(), at::kFloat);
});

TEST(ContextParallelDtypes, Autocast) { expect_all_passed(run_ranks(attention_under_autocast)); }

TEST(ContextParallelErrors, SayWhatIsWrong) { expect_all_passed(run_ranks(context_parallel_misuse)); }

}  // namespace
}  // namespace lockstep::testing
