// SPDX-License-Identifier: BSD-3-Clause
// What managers and distributed checkpoints are made of.
#include <chrono>
#include <filesystem>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "checkpoint/distributed_metadata.h"
#include "checkpoint/flatten.h"
#include "checkpoint/generator_states.h"
#include "checkpoint/shard_coverage.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace dcp = distributed_checkpoint;
using dcp::Piece;
using ::testing::HasSubstr;

std::vector<Piece> pieces(std::initializer_list<std::pair<dcp::Sizes, dcp::Sizes>> given) {
  std::vector<Piece> made;
  for (const auto& [offsets, sizes] : given) made.push_back({.offsets = offsets, .sizes = sizes});
  return made;
}

TEST(ShardCoverage, RequiresEveryElementOnce) {
  EXPECT_TRUE(dcp::covers({}, pieces({{{}, {}}})));
  EXPECT_FALSE(dcp::covers({}, pieces({})));
  EXPECT_FALSE(dcp::covers({}, pieces({{{}, {}}, {{}, {}}})));
  EXPECT_TRUE(dcp::covers({0, 3}, pieces({})));
  EXPECT_TRUE(dcp::covers({4}, pieces({{{0}, {3}}, {{3}, {1}}, {{4}, {0}}})));
  // As many elements as the whole tensor, but not all of it.
  EXPECT_FALSE(dcp::covers({4}, pieces({{{0}, {2}}, {{1}, {2}}})));
  EXPECT_FALSE(dcp::covers({2, 2}, pieces({{{0, 0}, {2, 1}}, {{0, 0}, {1, 2}}})));
  // Four pieces around a middle one: no straight cut separates them.
  const auto whirl =
      pieces({{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}});
  EXPECT_TRUE(dcp::covers({3, 3}, whirl));
  EXPECT_FALSE(dcp::covers({3, 3}, {whirl.begin(), whirl.end() - 1}));
}

TEST(ShardCoverage, TimeIsLinearInThePieces) {
  std::vector<Piece> rows;
  for (std::int64_t i = 0; i < 200'000; ++i) rows.push_back({.offsets = {i, 0}, .sizes = {1, 7}});
  EXPECT_TRUE(dcp::covers({200'000, 7}, rows));
  rows.back().offsets[0] = 5;
  EXPECT_FALSE(dcp::covers({200'000, 7}, rows));
  const dcp::Sizes deep(20, 2);
  EXPECT_THAT(error_of([&] {
                dcp::covers(deep, pieces({{dcp::Sizes(20, 0), dcp::Sizes(20, 1)}}));
              }),
              HasSubstr("20 dimensions"));
  // A few pieces along many dimensions would have more corners than fit into memory.
  const std::vector<Piece> small(5000, {.offsets = dcp::Sizes(12, 0), .sizes = dcp::Sizes(12, 1)});
  EXPECT_THAT(error_of([&] { dcp::covers(dcp::Sizes(12, 2), small); }),
              HasSubstr("12 dimensions into 5000 parts"));
}

TEST(ShardCoverage, SizesNearTheMaximumAreCountedCorrectly) {
  constexpr std::int64_t half = std::int64_t{1} << 61;
  EXPECT_TRUE(dcp::covers({2 * half}, pieces({{{0}, {half}}, {{half}, {half}}})));
  EXPECT_FALSE(dcp::covers({2 * half}, pieces({{{0}, {half}}, {{half}, {half - 1}}})));
  // A grid whose number of corners exceeds 64 bits.
  const dcp::Sizes flat(12, 37);
  auto left = flat;
  left[0] = 20;
  auto right = flat;
  right[0] = 17;
  dcp::Sizes middle(12, 0);
  middle[0] = 20;
  EXPECT_TRUE(dcp::covers(flat, pieces({{dcp::Sizes(12, 0), left}, {middle, right}})));
  const auto twice = pieces({{{0}, {2 * half}}, {{0}, {2 * half}}, {{0}, {2 * half}}});
  EXPECT_THAT(dcp::coverage_problem({2 * half}, twice), HasSubstr("overlap"));
}

TEST(Structure, KeepsKeysAndKindsAndHasEveryNameOnce) {
  auto inner = ordered_dict({{"w", 1}, {3, torch::ones({2})}});
  inner.set_attributes({{"_metadata", 2}});
  const Dict contents{
      {"model", inner}, {"list", List{torch::zeros({1}), Dict{{7, "x"}}}}, {"numbers", List{1, 2}}};
  std::map<std::string, Value> entries;
  for (const auto& leaf : dcp::flatten(contents)) entries.emplace(dcp::name_of(leaf.path), *leaf.value);
  const auto structure = dcp::structure_of(contents);
  const auto again =
      dcp::fill_structure(structure, [&](const std::string& name) { return entries.at(name); });
  EXPECT_TRUE(equal(again, contents));
  EXPECT_EQ(again["model"].as_dict().attributes().at("_metadata").as_int(), 2);
  EXPECT_THAT(error_of([] {
                dcp::fill_structure(List{"a", "a"}, [](const std::string&) { return Value(); });
              }),
              HasSubstr("'a' occurs twice"));
}

// A fresh optimizer's state is an empty dict, which takes what was saved below it.
TEST(Resuming, AFreshOptimizerTakesItsStateFromAFolderOfParts) {
  const TempFolder temp;
  const auto weight = torch::ones({3}, torch::requires_grad());
  torch::optim::Adam trained({weight}, 0.1);
  (weight * weight).sum().backward();
  trained.step();
  dcp::save({{"optimizer", state_dict(trained)}, {"list", List{Dict{{"a", 1}}}}}, temp.path());
  const auto fresh_weight = weight.detach().clone().requires_grad_();
  torch::optim::Adam fresh({fresh_weight}, 0.1);
  Dict contents{{"optimizer", state_dict(fresh)}, {"list", List{Dict()}}, {"none", Dict()}};
  dcp::load(contents, temp.path());
  EXPECT_TRUE(equal(contents["optimizer"], state_dict(trained)));
  EXPECT_EQ(contents["list"].as_items()[0]["a"].as_int(), 1);
  EXPECT_TRUE(contents["none"].as_dict().empty());
  load_state_dict(fresh, contents["optimizer"].as_dict());
  EXPECT_TRUE(equal(state_dict(fresh), state_dict(trained)));
}

// Generators of the CPU stand for those of GPUs: the code is the same, but for the list of them.
TEST(GeneratorStates, CoverTheCpuAndGpus) {
  const auto make = [](std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); };
  const auto next = [](at::Generator& generator) { return torch::rand({3}, generator); };
  auto cpu = make(1);
  std::vector<at::Generator> gpus{make(2), make(3)};
  const auto states = checkpointing::generator_states(cpu, {.all = gpus});
  const std::vector<at::Tensor> expected{next(cpu), next(gpus[0]), next(gpus[1])};
  checkpointing::set_generator_states(cpu, {.all = gpus}, states);
  EXPECT_TRUE(next(cpu).equal(expected[0]));
  EXPECT_TRUE(next(gpus[0]).equal(expected[1]));
  EXPECT_TRUE(next(gpus[1]).equal(expected[2]));
  // On a host with one GPU, and on one with none.
  checkpointing::set_generator_states(cpu, {.all = {gpus[1]}}, states);
  EXPECT_TRUE(next(cpu).equal(expected[0]));
  EXPECT_TRUE(next(gpus[1]).equal(expected[1]));
  checkpointing::set_generator_states(cpu, {}, states);
  EXPECT_TRUE(next(cpu).equal(expected[0]));
  EXPECT_TRUE(checkpointing::generator_states(cpu, {}).is<at::Tensor>());
  EXPECT_THAT(error_of([&] { checkpointing::set_generator_states(cpu, {}, torch::zeros({3}, at::kByte)); }),
              HasSubstr("not the state of a generator"));
}

TEST(ReplacedCheckpoint, IsReadAgain) {
  const TempFolder temp;
  dcp::save({{"step", 1}}, temp.path());
  int reads = 0;
  const auto fail = [&] {
    ++reads;
    throw CheckpointError("a file is missing");
  };
  EXPECT_THROW(distributed_checkpoint::read_again_if_replaced(temp.path(), fail), CheckpointError);
  EXPECT_EQ(reads, 1);
  distributed_checkpoint::read_again_if_replaced(temp.path(), [&] {
    if (++reads > 2) return;
    std::filesystem::last_write_time(temp.path() / ".metadata",
                                     std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
    throw CheckpointError("a file is missing");
  });
  EXPECT_EQ(reads, 3);
}

// Each rank has one GPU, and may have another index for it, or see it alone, after a restart.
TEST(GeneratorStates, ApplyToTheCurrentGpuOfTheRank) {
  const auto make = [](std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); };
  const auto next = [](at::Generator& generator) { return torch::rand({3}, generator); };
  auto cpu = make(1);
  std::vector<at::Generator> gpus{make(2), make(3)};
  const auto states = checkpointing::generator_states(cpu, {.all = gpus, .own = 1, .only_own = true});
  const auto expected = next(gpus[1]);
  auto alone = make(7);
  checkpointing::set_generator_states(cpu, {.all = {alone}, .own = 0, .only_own = true}, states);
  EXPECT_TRUE(next(alone).equal(expected));
  // Not that of another rank.
  const auto of_first = gpus[0].get_state();
  checkpointing::set_generator_states(cpu, {.all = gpus, .own = 1, .only_own = true}, states);
  EXPECT_TRUE(next(gpus[1]).equal(expected));
  EXPECT_TRUE(gpus[0].get_state().equal(of_first));
  checkpointing::set_generator_states(cpu, {.all = {}, .only_own = true}, states);
}

}  // namespace
}  // namespace lockstep::testing
