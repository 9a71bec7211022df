// SPDX-License-Identifier: BSD-3-Clause
// Pipelines whose arguments, target and outputs are nested values, over every backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "support/error_of.h"

namespace lockstep::testing {
namespace {

using namespace pipelining;
using at::Tensor;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// What the first stage takes: tensors in a map, one that every micro-batch uses, and a number.
struct Sample {
  std::map<std::string, Tensor> features;
  Tensor shift;
  double scale = 0;
  template <typename F>
  void visit_tensors(F&& f) {
    lockstep::visit_tensors(features, f);
  }
};
struct EncoderImpl : torch::nn::Module {
  EncoderImpl() { linear = register_module("linear", torch::nn::Linear(3, 3)); }
  std::pair<Tensor, Tensor> forward(const Sample& sample) {
    const auto y = linear(sample.features.at("left") + sample.features.at("right") + sample.shift);
    return {y * sample.scale, y.pow(2).mean()};
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Encoder);
using Output = std::tuple<std::map<std::string, Tensor>, std::string>;
struct DecoderImpl : torch::nn::Module {
  DecoderImpl() { linear = register_module("linear", torch::nn::Linear(3, 3)); }
  Output forward(const Tensor& hidden, const Tensor& auxiliary_loss) {
    return {{{"logits", linear(hidden)}, {"auxiliary_loss", auxiliary_loss}}, "decoded"};
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Decoder);

using Target = std::pair<Tensor, std::vector<Tensor>>;
Tensor nested_loss(const Output& output, const Target& target) {
  const auto& values = std::get<0>(output);
  return torch::mse_loss(values.at("logits") * target.second.front(), target.first) +
         0.1 * values.at("auxiliary_loss");
}

const Scenario nested_values("pipelining nested values", [] {
  const auto context = init({.backend = backend_under_test()});
  torch::manual_seed(3);
  Encoder encoder;
  Decoder decoder;
  const auto tensor = [] { return torch::randn({8, 3}); };
  const Sample batch{{{"left", tensor()}, {"right", tensor()}}, torch::randn({3}), 2};
  const Target target{tensor(), {tensor()}};
  Schedule1F1B schedule(context.rank() == 0 ? PipelineStage(encoder, 0, 2) : PipelineStage(decoder, 1, 2), 2,
                        nested_loss);
  const auto [outputs, text] = schedule.step<Output>(batch, target);
  const auto [evaluated, again] = schedule.eval<Output>(batch);

  // The micro-batches in one process.
  auto& own = context.rank() == 0 ? encoder->linear->weight : decoder->linear->weight;
  const auto gradient = own.grad().clone();
  own.mutable_grad().reset();
  Tensors logits, auxiliary_losses;
  for (const auto& rows : {torch::indexing::Slice(0, 4), torch::indexing::Slice(4, 8)}) {
    auto part = batch;
    for (auto& [name, feature] : part.features) feature = feature.index({rows});
    const auto [hidden, auxiliary_loss] = encoder->forward(part);
    const auto output = decoder->forward(hidden, auxiliary_loss);
    const Target wanted{target.first.index({rows}), {target.second.front().index({rows})}};
    (nested_loss(output, wanted) / 2).backward();
    logits.push_back(std::get<0>(output).at("logits"));
    auxiliary_losses.push_back(auxiliary_loss);
  }
  EXPECT_TRUE(gradient.allclose(own.grad(), 1e-5, 1e-7));
  EXPECT_EQ(outputs.empty(), context.rank() == 0);
  if (context.rank() == 0) return;
  EXPECT_EQ(text, "decoded");
  for (const auto& values : {outputs, evaluated}) {
    EXPECT_TRUE(values.at("logits").equal(torch::cat(logits)));
    EXPECT_TRUE(values.at("auxiliary_loss").equal(torch::stack(auxiliary_losses)));
    EXPECT_FALSE(values.at("logits").requires_grad());
  }
});
class PipelineValues : public EveryBackend {};
TEST_P(PipelineValues, ArgumentsTargetAndOutputsAreOfAnyPyTreeType) { run(nested_values); }
INSTANTIATE_TEST_SUITE_P(OneHost, PipelineValues, backends_and_ranks({2}), name_of_case);
INSTANTIATE_TEST_SUITE_P(TwoHosts, PipelineValues, two_hosts(1, 1), name_of_case);

// A tensor converts to it.
struct Scaled {
  Scaled(Tensor tensor, double factor = 1) : x(std::move(tensor)), scale(factor) {}
  template <typename F>
  void visit_tensors(F&& f) {
    f(x), f(mask);
  }
  Tensor x, mask;
  double scale;
};
struct ScaleImpl : torch::nn::Module {
  ScaleImpl() { weight = register_parameter("weight", torch::ones({1})); }
  c10::IValue forward(const Scaled& value) {
    c10::Dict<std::string, Tensor> outputs;
    outputs.insert("y", weight * value.x * value.scale);
    return outputs;
  }
  Tensor weight;
};
TORCH_MODULE(Scale);

TEST(Pipelining, AValueKeepsWhatIsNotATensorAndADictionaryGivesItsTensors) {
  const auto context = init({.backend = "fake", .world_size = 1, .rank = 0});
  Schedule1F1B schedule(PipelineStage(Scale(), 0, 1), 2, [](const c10::IValue& outputs, const Tensor& t) {
    return torch::mse_loss(outputs.toGenericDict().at("y").toTensor(), t);
  });
  const auto x = torch::rand({4, 3});
  const auto y = schedule.step(Scaled(x, 2), x);
  ASSERT_EQ(y.size(), 1);
  EXPECT_TRUE(y.front().equal(2 * x));
}

TEST(Pipelining, ValuesOfOtherTypesAreRefused) {
  const auto context = init({.backend = "fake", .world_size = 1, .rank = 0});
  const PipelineStage stage(torch::nn::Linear(3, 3), 0, 1);
  const auto x = torch::ones({4, 3});
  Schedule1F1B pairs(stage, 2,
                     [](const std::pair<Tensor, Tensor>& y, const Tensor&) { return y.first.sum(); });
  EXPECT_THAT(
      error_of<ArgumentError>([&] { pairs.step({x}, x); }),
      ContainsRegex("action 0F0: a value of type at::Tensor with 1 tensors is not a std::pair<at::Tensor"));
  Schedule1F1B schedule(stage, 2, [](const Tensor& y, const Tensor& t) { return torch::mse_loss(y, t); });
  EXPECT_THAT(error_of<ArgumentError>([&] { schedule.step({x}); }), HasSubstr("pass its target"));
  EXPECT_THAT(error_of<ArgumentError>([&] { schedule.step<std::string>({x}, x); }),
              HasSubstr("a value of type at::Tensor with 1 tensors is not a "));
  EXPECT_THAT(error_of<ArgumentError>([&] { schedule.step(std::make_shared<Tensor>(x), x); }),
              HasSubstr("are behind a shared pointer"));
  Schedule1F1B columns(stage, 2, [](const Tensor& y, const Tensor&) { return y.sum(); }, {.chunk_dim = 1});
  EXPECT_THAT(error_of<ArgumentError>([&] { columns.step({torch::ones({4})}, x); }),
              HasSubstr("an argument of 1 dimensions has no dimension chunk_dim = 1"));
  int calls = 0;
  const auto grows = [&](const Tensor& value) { return Tensors(static_cast<std::size_t>(++calls), value); };
  Schedule1F1B growing(PipelineStage(torch::nn::Linear(3, 3).ptr(), grows, 0, 1, {}), 2);
  EXPECT_THAT(error_of<ArgumentError>([&] { growing.eval({x}); }),
              HasSubstr("returns 1 tensors for one micro-batch and 2 for another"));
}

TEST(Pipelining, TensorsOfTooManyDimensionsAreNamed) {
  const auto context = init({.backend = "fake", .world_size = 2, .rank = 0});
  torch::nn::Linear layer(3, 3);
  const std::vector<std::int64_t> sizes(45, 1);
  const auto forward = [&](const AnyPyTree& x) -> AnyPyTree {
    return Tensors(3, layer(x.tensors().front()).sum().view(sizes));
  };
  const auto loss_fn = [](const Tensor& y, const Tensor& target) { return torch::mse_loss(y, target); };
  Schedule1F1B schedule(PipelineStage(layer.ptr(), forward, 0, 2, {}), 2, loss_fn);
  EXPECT_THAT(error_of<ArgumentError>([&] {
                schedule.step({torch::ones({4, 3})});
              }),
              HasSubstr("3 tensors of 45 + 45 + 45 dimensions; 3 tensors that can be sent to the next one "
                        "have at most 118 dimensions together"));
}

}  // namespace
}  // namespace lockstep::testing
