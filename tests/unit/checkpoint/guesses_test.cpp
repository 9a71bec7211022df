// SPDX-License-Identifier: BSD-3-Clause
// Values and files as a user of PyTorch writes them first.
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempFolder;

template <typename Printed>
std::string printed(const Printed& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

TEST(Guesses, ATrainingCheckpointIsSavedAndLoaded) {
  const TempFolder folder;
  const auto file = folder / "run.pt";
  const torch::nn::Linear net(3, 2);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.25));
  const std::vector<double> losses{1.5, 0.5};
  save({{"epoch", 7},
        {"model", state_dict(net)},
        {"optimizer", state_dict(optimizer)},
        {"losses", losses},
        {"args", {{"arch", "linear"}, {"bias", true}}}},
       file);

  const auto saved = load(file, "cpu");
  torch::nn::Linear loaded(3, 2);
  load_state_dict(loaded, saved["model"]);
  load_state_dict(optimizer, saved["optimizer"]);
  EXPECT_TRUE(equal(state_dict(loaded), state_dict(net)));

  int epoch = saved["epoch"];
  EXPECT_EQ(saved["epoch"].to<int>(), 7);
  EXPECT_EQ(saved["epoch"].toInt(), 7);
  EXPECT_EQ(saved["epoch"].item<int>(), 7);
  EXPECT_EQ(saved["optimizer"]["param_groups"][0]["lr"].toDouble(), 0.25);
  EXPECT_TRUE(saved["args"]["bias"].toBool());
  EXPECT_EQ(saved["args"]["arch"].toStringRef(), "linear");
  EXPECT_TRUE(saved["model"]["weight"].toTensor().equal(net->weight));
  EXPECT_EQ(Value(torch::tensor(3)).item<int>(), 3);
  EXPECT_EQ(Value(Parameter{torch::tensor(3)}).item<int>(), 3);
  const std::vector<double> read = saved["losses"];
  EXPECT_EQ(read, losses);
  EXPECT_THAT(error_of([&] { (void)saved["args"]["arch"].item<double>(); }), HasSubstr("has str 'linear'"));
  const float lr = saved["optimizer"]["param_groups"][0]["lr"];
  const std::string arch = saved["args"]["arch"];
  const bool bias = saved["args"]["bias"];
  const at::Tensor weight = saved["model"]["weight"];
  EXPECT_EQ(epoch, 7);
  EXPECT_EQ(lr, 0.25F);
  EXPECT_EQ(arch, "linear");
  EXPECT_TRUE(bias);
  EXPECT_TRUE(torch::equal(weight, net->weight));
  EXPECT_TRUE(torch::equal(saved["model"]["bias"], net->bias));

  double sum = 0;
  for (const double loss : saved["losses"].as_items()) sum += loss;
  EXPECT_EQ(sum, 2);
  const double last = saved["losses"][-1];
  EXPECT_EQ(last, 0.5);
  epoch = saved["args"]["bias"] ? 1 : 0;
  epoch = saved["epoch"];
  EXPECT_EQ(epoch, 7);
}

TEST(Guesses, ALoadedDictIsLoopedOverAndPrinted) {
  const auto bytes = save_bytes({{"epoch", 1}, {"lr", 0.5}, {"net", {{"w", torch::zeros({2, 3})}}}});
  std::vector<std::string> names;
  for (auto& [name, value] : load_bytes(bytes)) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("epoch", "lr", "net"));
  EXPECT_EQ(printed(load_bytes(bytes)), "{'epoch': 1, 'lr': 0.5, 'net': {'w': Tensor(float32, [2, 3])}}");
  EXPECT_EQ(printed(Dict{{"x", 1}}), "{'x': 1}");
  const Dict& net = load_bytes(bytes)["net"];  // lives as long as the reference
  EXPECT_EQ(net.size(), 1);
  EXPECT_THAT(error_of([&] {
                for (const auto& item : load_bytes(bytes)["epoch"]) (void)item;
              }),
              AllOf(HasSubstr("needs a dict, but this is int 1"), HasSubstr("as_items()")));
}

TEST(Guesses, AStateDictIsLoadedFromAFileWithoutItsType) {
  const TempFolder folder;
  const torch::nn::Linear from(3, 2);
  torch::nn::Linear to(3, 2);
  save(state_dict(from), folder / "net.pt");
  load_state_dict(to, load(folder / "net.pt"));
  EXPECT_TRUE(equal(state_dict(from), state_dict(to)));
}

TEST(Guesses, StrictAtItsPositionReturnsMissingAndUnexpectedKeys) {
  torch::nn::Linear net(3, 2);
  Dict weights = state_dict(net);
  weights.erase("bias");
  weights.set("extra", torch::zeros({1}));
  const auto [missing, unexpected] = load_state_dict(net, weights, false);
  EXPECT_THAT(missing, ElementsAre("bias"));
  EXPECT_THAT(unexpected, ElementsAre("extra"));
  EXPECT_THAT(load_state_dict(net, weights, {.strict = false}).missing_keys, ElementsAre("bias"));
  EXPECT_THROW(load_state_dict(net, weights, true), CheckpointError);
}

TEST(Guesses, DistributedCheckpointsAsDcp) {
  const TempFolder folder;
  torch::nn::Linear net(3, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  dcp::save({{"model", state_dict(net)}, {"optim", state_dict(optimizer)}}, folder / "step1",
            {.no_dist = true});
  torch::nn::Linear other(3, 2);
  Dict state{{"model", state_dict(other)}};
  dcp::load(state, folder / "step1", {.no_dist = true});
  load_state_dict(other, state["model"]);
  EXPECT_TRUE(equal(state_dict(net), state_dict(other)));

  torch::nn::Linear third(3, 2);
  dcp::load({{"model", state_dict(third)}}, {.checkpoint_id = folder / "step1", .no_dist = true});
  EXPECT_TRUE(equal(state_dict(net), state_dict(third)));
  EXPECT_THAT(error_of([&] {
                dcp::load({{"model", state_dict(third)}, {"epoch", 1}}, folder / "step1", {.no_dist = true});
              }),
              AllOf(HasSubstr("'epoch' is not a tensor but int"), HasSubstr("keep the dict in a variable")));
  EXPECT_THAT(
      error_of([&] {
        dcp::load({{"optim", state_dict(optimizer)}}, {.checkpoint_id = folder / "step1", .no_dist = true});
      }),
      HasSubstr("'optim.state' is not a tensor but an empty dict"));
  dcp::save(state, {.checkpoint_id = folder / "step2", .no_dist = true});
  dcp::load(state, folder / "step2", {.no_dist = true});
  EXPECT_THAT(
      error_of([&] { dcp::save(state, folder / "step2", {.checkpoint_id = "step3", .no_dist = true}); }),
      HasSubstr("name two folders"));
  EXPECT_THAT(error_of([&] { dcp::save(state, {.no_dist = true}); }), HasSubstr("no folder is given"));
}

TEST(Guesses, AnotherTypeIsAnErrorThatNamesBoth) {
  const Value value{
      {"name", "resnet"}, {"large", std::int64_t{1} << 40}, {"half", 0.5}, {"list", List{1, 2}}};
  EXPECT_THAT(error_of([&] {
                const int number = value["name"];
                (void)number;
              }),
              HasSubstr("expected an int of at most 64 bits, but the checkpoint has str 'resnet'"));
  EXPECT_THAT(error_of([&] {
                const int number = value["half"];
                (void)number;
              }),
              HasSubstr("has float 0.5"));
  EXPECT_THAT(error_of([&] {
                const std::uint8_t number = value["large"];
                (void)number;
              }),
              HasSubstr("expected an int from 0 to 255, but the checkpoint has int 1099511627776"));
  EXPECT_THAT(error_of([&] {
                const bool flag = value["half"];
                (void)flag;
              }),
              HasSubstr("expected a bool"));
  EXPECT_THAT(error_of([&] {
                const at::Tensor tensor = value["list"];
                (void)tensor;
              }),
              HasSubstr("expected a Tensor, but the checkpoint has list [1, 2]"));
  EXPECT_THAT(error_of([&] {
                const Size size = value["list"];
                (void)size;
              }),
              HasSubstr("expected a torch.Size, but the checkpoint has list [1, 2]"));
  EXPECT_THAT(error_of([&] { (void)value["list"][2]; }),
              HasSubstr("there is no item 2 in this list of 2 items"));
  EXPECT_THAT(error_of([&] { (void)value["name"][0]; }), HasSubstr("expected a dict"));
  const std::int64_t large = value["large"];
  EXPECT_EQ(large, std::int64_t{1} << 40);
}

TEST(Guesses, MapLocationIsADeviceOrItsName) {
  const auto bytes = save_bytes(torch::ones({2}));
  EXPECT_TRUE(load_bytes(bytes, {.map_location = "cpu"}).as_tensor().is_cpu());
  EXPECT_TRUE(load_bytes(bytes, {.map_location = "cpu", .weights_only = true}).as_tensor().is_cpu());
  EXPECT_TRUE(load_bytes(bytes, {.map_location = "meta"}).as_tensor().is_meta());
  EXPECT_TRUE(load_bytes(bytes, {.map_location = at::Device(at::kMeta)}).as_tensor().is_meta());
  EXPECT_THAT(error_of([&] { load_bytes(bytes, {.map_location = "gpu"}); }),
              HasSubstr("\"gpu\" is not a device"));
}

TEST(Guesses, ThePrintedReportNamesAPrefixThatNobodyAskedToRemove) {
  torch::nn::Linear net(3, 2);
  Dict wrapped;
  for (const auto& [key, value] : state_dict(net)) wrapped.set("module." + key.as_string(), value);
  EXPECT_THAT(printed(load_state_dict(net, wrapped)), HasSubstr("\"module.\" was removed from the keys"));
}

}  // namespace
}  // namespace lockstep
