// SPDX-License-Identifier: BSD-3-Clause
#include <functional>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/error_of.h"

namespace lockstep::module_state_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 1));
}

std::vector<std::string> keys_of(const Dict& dict) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : dict) keys.push_back(key.as_string());
  return keys;
}

std::string error_of(torch::nn::Sequential& net, const Dict& dict, const LoadStateDictOptions& options = {}) {
  return testing::error_of([&] { load_state_dict(net, dict, options); });
}

TEST(ModuleState, HasPythonsNamesInPythonsOrderAndSharesTheData) {
  auto net = make_net();
  const auto dict = state_dict(net);
  EXPECT_THAT(keys_of(dict), ElementsAre("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
                                         "1.running_var", "1.num_batches_tracked", "2.weight", "2.bias"));
  const auto& weight = dict.at("0.weight").as_tensor();
  EXPECT_FALSE(weight.requires_grad());
  EXPECT_TRUE(weight.is_alias_of(net[0]->parameters()[0]));
}

TEST(ModuleState, FitsAnotherModuleOfTheSameKindAndCopies) {
  auto from = make_net();
  auto to = make_net();
  const auto report = load_state_dict(to, state_dict(from));
  EXPECT_TRUE(equal(state_dict(from), state_dict(to)));
  EXPECT_THAT(report.loaded_keys, SizeIs(9));
  EXPECT_EQ(report.prefix, PrefixChange::none);
  EXPECT_TRUE(to[0]->parameters()[0].requires_grad());
  const torch::NoGradGuard no_grad;
  from[0]->parameters()[0].zero_();
  EXPECT_FALSE(equal(state_dict(from), state_dict(to)));
}

TEST(ModuleState, AMismatchChangesNothing) {
  auto net = make_net();
  auto dict = state_dict(make_net());
  dict.set("2.bias", torch::zeros({5}));
  auto before = ordered_dict();
  for (const auto& [key, value] : state_dict(net)) before.set(key, value.as_tensor().clone());
  EXPECT_THAT(error_of(net, dict), HasSubstr("size mismatch for 2.bias"));
  EXPECT_TRUE(equal(state_dict(net), before));
}

TEST(ModuleState, LenientLoadingReportsMissingAndUnexpectedKeys) {
  auto net = make_net();
  auto dict = state_dict(make_net());
  dict.erase("0.weight");
  dict.set("head.weight", torch::zeros({1}));
  EXPECT_THAT(error_of(net, dict), HasSubstr("Missing key(s) in state_dict: \"0.weight\""));
  const auto report = load_state_dict(net, dict, {.strict = false});
  EXPECT_THAT(report.missing_keys, ElementsAre("0.weight"));
  EXPECT_THAT(report.unexpected_keys, ElementsAre("head.weight"));
}

TEST(ModuleState, PartialLoadingSkipsMismatchesWithReasons) {
  auto net = make_net();
  Dict dict = ordered_dict({{"0.weight", torch::ones({3, 2})},
                            {"0.bias", torch::ones({1, 3})},  // as many elements
                            {"1.weight", "text"},
                            {"other", torch::ones({1})}});
  const auto report = load_state_dict(net, dict, {.partial = true});
  EXPECT_THAT(report.loaded_keys, ElementsAre("0.weight"));
  ASSERT_THAT(report.skipped, SizeIs(2));
  EXPECT_EQ(report.skipped[0].key, "0.bias");
  EXPECT_THAT(report.skipped[0].reason, HasSubstr("shape [1, 3] instead of [3]"));
  EXPECT_EQ(report.skipped[1].key, "1.weight");
  EXPECT_THAT(report.unexpected_keys, ElementsAre("other"));
  EXPECT_TRUE(net[0]->parameters()[0].eq(1).all().item<bool>());
}

TEST(ModuleState, ATensorOnMetaIsNotLoaded) {
  const auto dict = state_dict(make_net());
  std::optional<DeviceContext> meta(at::kMeta);
  auto net = make_net();
  meta.reset();
  EXPECT_THAT(error_of(net, dict),
              HasSubstr("\"0.weight\": the module's tensor is on device meta; call to_empty()"));
  const auto report = load_state_dict(net, dict, {.partial = true});
  EXPECT_THAT(report.loaded_keys, ElementsAre());
  EXPECT_THAT(report.skipped, SizeIs(dict.size()));
}

TEST(ModuleState, KeysAreRenamedByTheFirstMatchingRule) {
  auto net = make_net();
  Dict dict = ordered_dict();
  for (const auto& [key, value] : state_dict(make_net())) dict.set("backbone.layer" + key.as_string(), value);
  EXPECT_NO_THROW(load_state_dict(net, dict, {.rename = {{"^backbone\\.layer(\\d)", "$1"}}}));
  EXPECT_THAT(error_of(net, dict, {.rename = {{"(", ""}}}), HasSubstr("not a regular expression"));
  EXPECT_THAT(error_of(net, dict, {.rename = {{"^.*$", "x"}}}), HasSubstr("two keys the name 'x'"));
}

TEST(ModuleState, LoadedParametersCanBeFrozen) {
  auto net = make_net();
  Dict dict = ordered_dict({{"0.weight", torch::ones({3, 2})}});
  load_state_dict(net, dict, {.strict = false, .freeze = true});
  EXPECT_FALSE(net[0]->parameters()[0].requires_grad());
  EXPECT_TRUE(net[0]->parameters()[1].requires_grad());
}

TEST(ModuleState, DtypesAreConvertedAndOneElementFitsAScalar) {
  auto net = make_net();
  auto dict = state_dict(make_net());
  dict.set("0.weight", torch::ones({3, 2}, torch::kDouble));
  dict.set("1.num_batches_tracked", torch::full({1}, 7, torch::kLong));
  load_state_dict(net, dict);
  EXPECT_EQ(net[0]->parameters()[0].scalar_type(), torch::kFloat);
  EXPECT_EQ(state_dict(net).at("1.num_batches_tracked").as_tensor().item<int>(), 7);
}

TEST(ModuleState, OldDictsMayLackNumBatchesTracked) {
  auto net = make_net();
  Dict dict = ordered_dict();
  for (const auto& [key, value] : state_dict(make_net())) dict.set(key, value);  // without _metadata
  dict.erase("1.num_batches_tracked");
  EXPECT_NO_THROW(load_state_dict(net, dict));
  auto versioned = state_dict(make_net());
  versioned.erase("1.num_batches_tracked");
  EXPECT_THAT(error_of(net, versioned), HasSubstr("1.num_batches_tracked"));
}

// Any of the four pairings of wrapped and bare works by itself.
TEST(ModuleState, WrappedAndBareModulesAreCompatible) {
  auto bare = make_net();
  auto inner = make_net();
  DataParallel wrapped(inner, {.device_ids = {at::kCPU}});
  const auto wrapped_dict = state_dict(wrapped);
  EXPECT_TRUE(wrapped_dict.contains("module.0.weight"));
  EXPECT_EQ(load_state_dict(bare, wrapped_dict).prefix, PrefixChange::removed);
  EXPECT_TRUE(equal(state_dict(bare), state_dict(inner)));

  auto source = make_net();
  EXPECT_EQ(load_state_dict(wrapped, state_dict(source)).prefix, PrefixChange::added);
  EXPECT_TRUE(equal(state_dict(source), state_dict(inner)));
  EXPECT_EQ(load_state_dict(wrapped, wrapped_dict).prefix, PrefixChange::none);
  EXPECT_EQ(load_state_dict(bare, state_dict(source)).prefix, PrefixChange::none);
}

std::string said_by(const std::function<void()>& action) {
  ::testing::internal::CaptureStderr();
  action();
  return ::testing::internal::GetCapturedStderr();
}

TEST(ModuleState, ARemovedOrAddedPrefixIsReported) {
  auto bare = make_net();
  DataParallel wrapped(make_net(), {.device_ids = {at::kCPU}});
  EXPECT_THAT(said_by([&] { load_state_dict(bare, state_dict(wrapped)); }),
              HasSubstr("removed \"module.\" from the keys of the checkpoint"));
  EXPECT_THAT(said_by([&] { load_state_dict(wrapped, state_dict(bare)); }),
              HasSubstr("added \"module.\" to the keys of the checkpoint"));
  EXPECT_THAT(said_by([&] {
                load_state_dict(bare, state_dict(make_net()));
                load_state_dict(wrapped, state_dict(wrapped));
              }),
              IsEmpty());
}

TEST(ModuleState, MetaTensorsAreRejectedBeforeAnyChange) {
  auto net = make_net();
  auto dict = state_dict(make_net());
  dict.set("2.bias", torch::empty({1}, torch::kMeta));
  EXPECT_THAT(error_of(net, dict), HasSubstr("loaded without data"));
}

TEST(ModuleState, SyncBatchNormHasTheVersionOfBatchNorm) {
  const torch::nn::Sequential net(SyncBatchNorm(3));
  const auto metadata = state_dict(net).attributes().at("_metadata");
  EXPECT_EQ(metadata["0"]["version"].as_int(), 2);
}

TEST(ModuleState, WithoutPrefixRenamesMetadata) {
  auto inner = make_net();
  DataParallel wrapped(inner, {.device_ids = {at::kCPU}});
  const auto stripped = without_prefix(state_dict(wrapped));
  EXPECT_TRUE(equal(stripped, state_dict(inner)));
  EXPECT_TRUE(equal(stripped.attributes(), state_dict(inner).attributes()));
}

}  // namespace
}  // namespace lockstep::module_state_test
