// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/models/vision.h>
#include <lockstep/serialize/safetensors.h>
#include <lockstep/serialize/torch_file.h>

#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using torch::nn::Linear;

torch::nn::Sequential two_layers(std::int64_t classes = 2) {
  return torch::nn::Sequential(Linear(3, 4), Linear(4, classes));
}

Dict prefixed(const Dict& state, const std::string& prefix) {
  Dict result;
  for (const auto& [key, value] : state) result.set(prefix + key.as_string(), value);
  return result;
}

std::string printed(const LoadReport& report) {
  std::ostringstream text;
  text << report;
  return text.str();
}

TEST(LoadPretrained, ReadsBothFormatsAndChangesPrefixes) {
  const TempFolder folder;
  const auto saved = two_layers();
  const auto state = state_dict(saved);
  const auto pt = folder.file("net.pt");
  const auto safe = folder.file("net.safetensors");
  const auto expect_loaded = [&](const std::string& file, const LoadStateDictOptions& options) {
    auto net = two_layers();
    EXPECT_EQ(load_pretrained(net, file, options).loaded_keys.size(), 4U);
    EXPECT_TRUE(equal(state_dict(net), state)) << file;
  };
  save(state, pt, {.sync = false});
  expect_loaded(pt, {});
  save(Dict{{"epoch", 3}, {"model", prefixed(state, "module.")}}, pt, {.sync = false});
  expect_loaded(pt, {});
  save(prefixed(state, "backbone."), pt, {.sync = false});
  expect_loaded(pt, {.remove_prefix = "backbone."});

  safetensors::save_file(state, safe);
  expect_loaded(safe, {});
  auto whole = std::make_shared<torch::nn::Module>("Whole");
  whole->register_module("body", two_layers());
  const auto added = load_pretrained(whole, safe, {.add_prefix = "body."});
  EXPECT_EQ(added.loaded_keys.front(), "body.0.weight");
  EXPECT_TRUE(torch::equal(state_dict(whole).at("body.1.bias").as_tensor(), state.at("1.bias").as_tensor()));
}

// Which tells whether a count of batches may be missing.
TEST(LoadPretrained, ChangesPrefixesOfModuleVersions) {
  const TempFolder folder;
  const auto file = folder.file("net.pt");
  torch::nn::Sequential norm(torch::nn::BatchNorm1d(2));
  auto whole = std::make_shared<torch::nn::Module>("Whole");
  whole->register_module("body", norm);
  auto state = state_dict(norm);
  state.erase("0.num_batches_tracked");
  save(state, file, {.sync = false});
  const auto error =
      error_of<CheckpointError>([&] { load_pretrained(whole, file, {.add_prefix = "body."}); });
  EXPECT_NE(error.find("Missing key(s) in state_dict: \"body.0.num_batches_tracked\""), std::string::npos)
      << error;
  state.set_attributes({});
  save(state, file, {.sync = false});
  load_pretrained(whole, file, {.add_prefix = "body."});
}

TEST(LoadPretrained, ReportsWhatDoesNotFit) {
  const TempFolder folder;
  const auto file = folder.file("net.pt");
  auto state = state_dict(two_layers(5));
  state.set("extra", torch::zeros({1}));
  state.erase("0.bias");
  save(state, file, {.sync = false});
  auto net = two_layers();
  EXPECT_EQ(printed(load_pretrained(net, file, {.partial = true})),
            "1 tensors loaded\n"
            "missing in the state dict: 0.bias\n"
            "not in the module: extra\n"
            "skipped: 1.weight: shape [5, 4] instead of [2, 4]\n"
            "skipped: 1.bias: shape [5] instead of [2]\n");
  EXPECT_TRUE(torch::equal(net[0]->as<Linear>()->weight, state.at("0.weight").as_tensor()));
  const auto error = error_of<CheckpointError>([&] { load_pretrained(net, file); });
  EXPECT_TRUE(error.starts_with(
      file + ": Error(s) in loading state_dict for Sequential (at load_pretrained_test.cpp:"))
      << error;
}

TEST(LoadPretrained, RefusesFilesWithSeveralStateDictsOrNone) {
  const TempFolder folder;
  const auto file = folder.file("net.pt");
  auto net = two_layers();
  save(Dict{{"model", state_dict(net)}, {"ema", state_dict(net)}}, file, {.sync = false});
  const auto error = error_of<CheckpointError>([&] { load_pretrained(net, file); });
  EXPECT_NE(error.find("2 entries are ('model', 'ema')"), std::string::npos) << error;
  save(Dict{{"epoch", 3}}, file, {.sync = false});
  EXPECT_NE(error_of<CheckpointError>([&] { load_pretrained(net, file); }).find("0 entries"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
