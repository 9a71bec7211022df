// SPDX-License-Identifier: BSD-3-Clause
// The networks of lockstep::models in DistributedDataParallel and DataParallel, and language models in
// pipelines and cut by tensor parallelism.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/language.h>
#include <lockstep/models/vision.h>

#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using namespace models;
namespace tp = tensor_parallel;
using ::testing::HasSubstr;

at::Tensor logits_of(const at::Tensor& logits) { return logits; }
at::Tensor logits_of(const std::tuple<at::Tensor, at::Tensor>& output) { return std::get<0>(output); }

template <typename Net>
void backward(Net& net, const at::Tensor& input) {
  logits_of(net->forward(input)).square().mean().backward();
}

void expect_same_gradients(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& averaged,
                           double tolerance) {
  ASSERT_EQ(expected.size(), averaged.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto difference = (averaged[i].grad() - expected[i].grad()).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * std::max(1e-3, expected[i].grad().abs().max().item<double>()));
  }
}

at::Tensor part_of(const at::Tensor& batch) {
  return batch.chunk(get_world_size())[static_cast<std::size_t>(get_rank())];
}

// On each rank a part of the batch, and its gradients the averages, which are those of the whole batch.
template <typename Make>
void expect_trains(const char* name, const at::Tensor& batch, Make make) {
  SCOPED_TRACE(name);
  torch::manual_seed(1);
  auto alone = make();
  torch::manual_seed(static_cast<std::uint64_t>(1 + get_rank()));
  auto net = make();
  DistributedDataParallel ddp(net);
  EXPECT_TRUE(equal(state_dict(net), state_dict(alone))) << "starting weights and buffers";
  // eval(): without dropout, and with each sample by itself in normalizations.
  alone->eval();
  ddp->eval();
  backward(alone, batch);
  backward(ddp, part_of(batch));
  expect_same_gradients(alone->parameters(), ddp->parameters(), 1e-5);
  // The buffers of rank 0 before each forward.
  ddp->train();
  backward(ddp, batch + get_rank());
  ddp->eval();
  backward(ddp, batch);
  std::vector<at::Tensor> sums;
  for (const auto& buffer : net->buffers()) sums.push_back(buffer.to(at::kDouble).sum());
  if (!sums.empty()) {
    auto most = torch::stack(sums);
    auto least = most.clone();
    default_group().all_reduce(most, ReduceOp::MAX);
    default_group().all_reduce(least, ReduceOp::MIN);
    EXPECT_TRUE(torch::equal(most, least)) << "buffers";
  }
  auto plain = make();
  EXPECT_EQ(load_state_dict(plain, state_dict(ddp)).prefix, PrefixChange::removed);
}

// Its layers have two names each.
void expect_normalizes_together(const at::Tensor& points) {
  torch::manual_seed(1);
  DGCNN alone(DGCNNOptions{.k = 4, .emb_dims = 32, .dropout = 0});
  DGCNN net(DGCNNOptions{.k = 4, .emb_dims = 32, .dropout = 0});
  load_state_dict(net, state_dict(alone));
  convert_sync_batchnorm(net);
  DistributedDataParallel ddp(net);
  backward(alone, points);
  backward(ddp, part_of(points));
  expect_same_gradients(alone->parameters(), ddp->parameters(), 1e-4);
  for (const auto& [name, value] : state_dict(alone)) {
    EXPECT_TRUE(torch::allclose(state_dict(net).at(name).as_tensor(), value.as_tensor(), 1e-4, 1e-6))
        << name.as_string();
  }
}

const Scenario models_in_ddp("models in DistributedDataParallel", [] {
  const auto context = init();
  torch::manual_seed(7);
  const auto images = torch::randn({4, 3, 32, 32});
  const auto points = torch::randn({4, 3, 16});
  const auto tokens = torch::randint(32, {4, 6}, torch::kLong);
  expect_trains("ResNet", images, [] { return ResNet(ResNetBlock::basic, std::array{1L, 1L, 1L, 1L}); });
  expect_trains("PointNet", points, [] { return PointNet(); });
  expect_trains("DGCNN", points, [] { return DGCNN(DGCNNOptions{.k = 4, .emb_dims = 32}); });
  expect_normalizes_together(points);
  expect_trains("GPT2", tokens, [] {
    return GPT2(GPT2Options{.vocab_size = 40, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 2});
  });
});

TEST(Models, TrainInDistributedDataParallel) { expect_all_passed(run_ranks(models_in_ddp)); }

const Scenario models_in_data_parallel("models in DataParallel", [] {
  torch::manual_seed(7);
  const auto expect_same = [](auto net, const at::Tensor& batch) {
    net->eval();
    auto copy = DataParallel(net, {.device_ids = {at::kCPU, at::kCPU}});
    const auto own = logits_of(net->forward(batch));
    EXPECT_TRUE(torch::allclose(logits_of(copy->forward(batch)), own, 1e-4, 1e-5));
  };
  auto net = mobilenet_v2();
  net->classifier = net->replace_module(
      "classifier", torch::nn::Sequential(torch::nn::Dropout(0.2), torch::nn::Linear(1280, 3)));
  expect_same(net, torch::randn({4, 3, 32, 32}));
  expect_same(DGCNN(DGCNNOptions{.k = 4, .emb_dims = 32}), torch::randn({4, 3, 16}));
  expect_same(GPT2(GPT2Options{.vocab_size = 40, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 2}),
              torch::randint(32, {4, 6}, torch::kLong));
});

TEST(Models, RunInDataParallel) { expect_all_passed(run_ranks(models_in_data_parallel, {.world_size = 1})); }

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), target.flatten());
}

std::pair<at::Tensor, at::Tensor> tokens_and_target() {
  torch::manual_seed(4);
  const auto tokens = torch::randint(40, {4, 9});
  return {tokens.slice(1, 0, -1), tokens.slice(1, 1)};
}

template <typename Make>
auto make_seeded(Make make, int seed = 3) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return make();
}

GPT2 small_gpt2() {
  return GPT2(GPT2Options{.vocab_size = 40,
                          .n_positions = 8,
                          .n_embd = 16,
                          .n_layer = 3,
                          .n_head = 2,
                          .resid_pdrop = 0,
                          .embd_pdrop = 0,
                          .attn_pdrop = 0});
}

LlamaOptions small_llama(bool tied) {
  return {.vocab_size = 40,
          .hidden_size = 32,
          .intermediate_size = 24,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .tie_word_embeddings = tied};
}

// Two stages on two ranks beside one process. The first and the last layer may be the same matrix.
template <typename Make>
void expect_pipelines(const Context& context, bool tied, Make make) {
  auto alone = make_seeded(make);
  const auto stage = make_seeded(make, 3 + context.rank())->pipeline_stage(context.rank(), 2);
  const auto [tokens, target] = tokens_and_target();
  {
    const torch::NoGradGuard no_grad;
    const auto hidden = alone->pipeline_stage(0, 2)->forward(tokens);
    EXPECT_TRUE(alone->pipeline_stage(1, 2)->forward(hidden).equal(alone->forward(tokens)));
    const auto whole = alone->named_parameters();
    for (const auto& item : stage->named_parameters())
      if (const auto* const found = whole.find(item.key())) item.value().copy_(*found);
  }
  pipelining::PipelineStageOptions options;
  if (tied) {
    const auto parameters = stage->parameters();
    options.tied_parameters = {{"tokens", context.rank() == 0 ? parameters.front() : parameters.back()}};
  }
  pipelining::ScheduleInterleavedZeroBubble schedule(
      {pipelining::PipelineStage(stage, context.rank(), 2, options)}, /*n_microbatches=*/2, loss_of);
  schedule.step({tokens}, target);
  loss_of(alone->forward(tokens), target).backward();
  const auto expected = alone->named_parameters();
  for (const auto& item : stage->named_parameters()) {
    const auto* const found = expected.find(item.key());
    const auto& parameter = found != nullptr ? *found : expected.front().value();  // the tied one
    EXPECT_TRUE(item.value().grad().allclose(parameter.grad(), 1e-4, 1e-6)) << item.key();
  }
  const auto norm = torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.1);
  EXPECT_NEAR(schedule.clip_grad_norm_(0.1), norm, 1e-5);
}

const Scenario models_in_pipelines("language models in a pipeline", [] {
  const auto context = init({.backend = "shm"});
  expect_pipelines(context, true, small_gpt2);
  for (const bool tied : {false, true})
    expect_pipelines(context, tied, [tied] { return Llama(small_llama(tied)); });

  const auto stage = small_gpt2()->pipeline_stage(1, 2);
  EXPECT_THAT(error_of<ArgumentError>([&] { stage->forward(tokens_and_target().first); }),
              HasSubstr("hidden states [batch, length, width] of the stage before"));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                stage->generate(torch::zeros({1, 2}, torch::kLong));
              }),
              HasSubstr("does not generate()"));
  EXPECT_THAT(error_of<ArgumentError>([] { small_gpt2()->pipeline_stage(0, 4); }),
              HasSubstr("stage 0 of 4 stages, with 3 layers"));
});

TEST(Models, TrainInPipelinesAsInOneProcess) { expect_all_passed(run_ranks(models_in_pipelines)); }

// The library's model as it is, its embedding and logits in parts of the vocabulary.
const Scenario llama_in_parts("a Llama cut by tensor parallelism", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2});
  const tp::ParallelizePlan plan{
      {"model.embed_tokens", tp::RowwiseParallel{.input_layouts = tp::Replicate()}},
      {"model.layers.*.self_attn", tp::PrepareModuleInput{.input_layouts = tp::Replicate()}},
      {"model.layers.*.self_attn.[qkv]_proj", tp::ColwiseParallel()},
      {"model.layers.*.self_attn.o_proj", tp::RowwiseParallel()},
      {"model.layers.*.self_attn.attention_dropout", tp::SequenceParallel()},
      {"model.layers.*.mlp", tp::PrepareModuleInput{.input_layouts = tp::Replicate()}},
      {"model.layers.*.mlp.[gu]*_proj", tp::ColwiseParallel()},
      {"model.layers.*.mlp.down_proj", tp::RowwiseParallel()},
      {"lm_head", tp::ColwiseParallel()}};
  const auto make = [] { return Llama(small_llama(false)); };
  auto alone = make_seeded(make), net = make_seeded(make, 3 + context.rank());
  tp::parallelize_module(*net, mesh, plan);
  torch::optim::AdamW reference(alone->parameters(), 1e-2), optimizer(net->parameters(), 1e-2);
  const auto [tokens, target] = tokens_and_target();
  for (int step = 0; step < 4; ++step) {
    SCOPED_TRACE(step);
    reference.zero_grad();
    optimizer.zero_grad();
    const auto expected = loss_of(alone->forward(tokens), target);
    const auto loss = tp::loss_parallel(net->forward(tokens).flatten(0, 1), target.flatten(), mesh);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
    expected.backward();
    loss.backward();
    EXPECT_NEAR(clip_grad_norm_(*net, 0.1), torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.1),
                1e-5);
    reference.step();
    optimizer.step();
  }
  const auto full = get_model_state_dict(*net, {.full_state_dict = true});
  for (const auto& item : alone->named_parameters())
    EXPECT_TRUE(full.at(item.key()).as_tensor().allclose(item.value().detach(), 0, 1e-5)) << item.key();

  auto options = small_llama(false);
  options.num_key_value_heads = 1;
  Llama one_key_head(options);
  tp::parallelize_module(*one_key_head, mesh, plan);
  EXPECT_THAT(error_of<ArgumentError>([&] { one_key_head->forward(tokens); }),
              HasSubstr("must divide num_attention_heads = 4 and num_key_value_heads = 1"));
});

// Whether the ranks have the same logits, where they have the same weights and attention heads, and nothing
// is summed over them: then only dropout in attention makes a difference.
bool have_equal_logits(const DeviceMesh& mesh, const tp::ParallelizePlan& dropout_plan, bool is_training) {
  auto options = small_llama(false);
  options.attention_dropout = 0.5;
  auto net = make_seeded([&] { return Llama(options); });
  tp::ParallelizePlan plan{
      {"model.layers.*.self_attn.[qkv]_proj", tp::ColwiseParallel()},
      {"model.layers.*.self_attn.o_proj", tp::RowwiseParallel{.output_layouts = tp::Partial()}}};
  plan.insert(plan.end(), dropout_plan.begin(), dropout_plan.end());
  tp::parallelize_module(*net, mesh, plan);
  for (const auto& parameter : net->parameters()) mesh.get_group().broadcast(parameter.detach(), 0);
  net->train(is_training);
  const auto logits = net->forward(tokens_and_target().first).detach();
  auto first = logits.clone();
  mesh.get_group().broadcast(first, 0);
  const auto differs = torch::full({1}, first.equal(logits) ? 0 : 1);
  mesh.get_group().all_reduce(differs, ReduceOp::MAX);
  return differs.item<int>() == 0;
}

const Scenario llama_dropout("dropout in the attention of a Llama", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2});
  const tp::ParallelizePlan apart{{"model.layers.*.self_attn.attention_dropout", tp::SequenceParallel()}};
  EXPECT_FALSE(have_equal_logits(mesh, apart, true)) << "the heads of all ranks have the same masks";
  EXPECT_TRUE(have_equal_logits(mesh, apart, false));
  EXPECT_TRUE(have_equal_logits(mesh, {}, true));
});

TEST(Models, HeadsOfALlamaOnOtherRanksHaveOtherDropout) { expect_all_passed(run_ranks(llama_dropout)); }

TEST(Models, ALlamaTrainsInPartsAsInOneProcess) { expect_all_passed(run_ranks(llama_in_parts)); }

}  // namespace
}  // namespace lockstep::testing
