// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints of sharded modules and their optimizers: 2 ranks of C++, 3 of Python, 4 and 1 of C++.
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/optim/fused.h>
#include <lockstep/runtime/default_group.h>
#include <lockstep/serialize/torch_file.h>

#include "parity/both_sides.h"
#include "support/error_of.h"
#include "support/odd_net.h"
#include "support/python.h"

namespace lockstep::testing::fully_shard_checkpoint_test {
namespace {

using std::filesystem::path;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr StateDictOptions kFlat{.flatten_optimizer_state_dict = true};
constexpr StateDictOptions kFull{.full_state_dict = true, .cpu_offload = true};

// Of dimensions other than 0, those that this number of ranks divides.
std::optional<tensor::Placement> placement_of(const at::Tensor& parameter) {
  const auto* const placement = std::getenv("LOCKSTEP_TEST_PLACEMENT");
  if (placement == nullptr || placement != std::string("columns")) return std::nullopt;
  if (parameter.dim() == 1 || parameter.size(-1) % get_world_size() != 0) return std::nullopt;
  return tensor::Shard(-1);
}

struct Sharded {
  explicit Sharded(bool shares)
      : module([&] {
          const FullyShardOptions options{.shard_placement_fn = placement_of, .share_memory = shares};
          for (const auto& child : net->children_to_shard()) fully_shard(*child, options);
          return fully_shard(*net, options);
        }()),
        optimizer(module.parameters(), optim::FusedAdamWOptions(1e-2)) {}

  void step(int number) {
    torch::manual_seed(static_cast<std::uint64_t>(number));
    optimizer.zero_grad();
    net->forward(torch::randint(11, {2, 4}), true).backward();
    optimizer.step();
  }
  Dict state(const StateDictOptions& options = {}) {
    return {{"model", get_model_state_dict(module, options)},
            {"optim", get_optimizer_state_dict(module, optimizer, options)}};
  }
  Dict state_with_flat() {
    auto all = state();
    all.set("flat", get_optimizer_state_dict(module, optimizer, kFlat));
    return all;
  }
  void load(const Dict& dict, const StateDictOptions& options = {}) {
    set_model_state_dict(module, dict.at("model").as_dict(), options);
    set_optimizer_state_dict(module, optimizer, dict.at("optim").as_dict());
  }

  OddNet net;
  FSDPModule module;
  optim::FusedAdamW optimizer;
};

void expect_equal(const Dict& ours, const Dict& expected, const std::string& where = "") {
  for (const auto& [key, value] : expected) {
    const auto name = where + "." + (key.is<std::string>() ? key.as_string() : repr(key));
    const auto* const own = ours.find(key);
    ASSERT_NE(own, nullptr) << name;
    if (value.is<Dict>()) {
      expect_equal(own->as_dict(), value.as_dict(), name);
    } else if (value.is<at::Tensor>()) {
      EXPECT_TRUE(own->as_tensor().equal(value.as_tensor())) << name;
    }
  }
}

const Scenario save_it("fully_shard checkpoint: save", [] {
  as_parity_ranks([](const Context& context) {
    Sharded sharded(true);
    for (int number = 0; number < 3; ++number) sharded.step(number);
    const path folder = record_folder();
    distributed_checkpoint::save(sharded.state_with_flat(), folder / "a");
    const auto full = sharded.state(kFull);
    EXPECT_EQ(full.at("model").as_dict().empty(), context.rank() != 0);
    if (context.rank() == 0) save(full, folder / "a.pt");
  });
});

const Scenario load_it("fully_shard checkpoint: load", [] {
  as_parity_ranks([](const Context& context) {
    const path folder = record_folder();
    const auto expected = load(folder / "b.pt").as_dict();
    for (const bool shared : {true, false}) {
      Sharded sharded(shared);
      auto state = sharded.state_with_flat();
      distributed_checkpoint::load(state, folder / "b");
      sharded.load(state);
      expect_equal(sharded.state({.full_state_dict = true}), expected);
      Sharded from_flat(shared);
      set_model_state_dict(from_flat.module, state.at("model").as_dict());
      set_optimizer_state_dict(from_flat.module, from_flat.optimizer, state.at("flat").as_dict(), kFlat);
      expect_equal(from_flat.state({.full_state_dict = true}), expected);
      // The values that the net computes with.
      for (const auto& [name, whole] : state_dict(*sharded.net))
        EXPECT_TRUE(whole.as_tensor().equal(expected.at("model")[name].as_tensor())) << repr(name);

      Sharded other(!shared);
      other.load(expected);
      expect_equal(other.state({.full_state_dict = true}), expected);
      sharded.step(7);
      other.step(7);
      const auto after = sharded.state({.full_state_dict = true});
      expect_equal(other.state({.full_state_dict = true}), after);

      Sharded third(shared);
      const auto model = context.rank() == 0 ? expected.at("model").as_dict() : Dict();
      set_model_state_dict(third.module, model, {.broadcast_from_rank0 = true});
      const auto optim = context.rank() == 0 ? expected.at("optim").as_dict() : Dict();
      set_optimizer_state_dict(third.module, third.optimizer, optim, {.broadcast_from_rank0 = true});
      expect_equal(third.state({.full_state_dict = true}), expected);
      EXPECT_THAT(error_of<CheckpointError>([&] {
                    set_optimizer_state_dict(third.module, third.optimizer, {},
                                             {.broadcast_from_rank0 = true});
                  }),
                  StartsWith("rank 0: "));
      for (const auto* name : {"head.weight", "lstm.weight_ih_l0"})
        EXPECT_TRUE(full_tensor(*third.net, name).equal(expected.at("model")[name].as_tensor())) << name;
    }
    Sharded wrong(true);
    auto short_one = expected.at("model").as_dict();
    short_one.set("norm.weight", torch::ones({5}));
    EXPECT_THAT(error_of<CheckpointError>([&] { set_model_state_dict(wrong.module, short_one); }),
                StartsWith("norm.weight has the shape torch.Size([5]), but the module's is torch.Size([6])"));
    auto long_one = expected.at("model").as_dict();
    long_one.set("extra", torch::ones({5}));
    for (const bool from_rank_0 : {false, true}) {
      const auto model = from_rank_0 && context.rank() != 0 ? Dict() : long_one;
      EXPECT_THAT(error_of<CheckpointError>([&] {
                    set_model_state_dict(wrong.module, model, {.broadcast_from_rank0 = from_rank_0});
                  }),
                  HasSubstr("the state dict has entries that the module does not have: \"extra\""));
      const auto report =
          set_model_state_dict(wrong.module, model, {.strict = false, .broadcast_from_rank0 = from_rank_0});
      EXPECT_THAT(report.unexpected_keys, ::testing::ElementsAre("extra"));
    }
    short_one.erase("norm.weight");
    for (const bool from_rank_0 : {false, true}) {
      Sharded part(true);
      const auto before = full_tensor(*part.net, "norm.weight");
      const auto model = from_rank_0 && context.rank() != 0 ? Dict() : short_one;
      EXPECT_THAT(error_of<CheckpointError>([&] {
                    set_model_state_dict(part.module, model, {.broadcast_from_rank0 = from_rank_0});
                  }),
                  HasSubstr("norm.weight"));
      set_model_state_dict(part.module, model, {.strict = false, .broadcast_from_rank0 = from_rank_0});
      EXPECT_TRUE(full_tensor(*part.net, "norm.weight").equal(before));
      EXPECT_TRUE(
          full_tensor(*part.net, "head.weight").equal(expected.at("model")["head.weight"].as_tensor()));
    }
  });
});

// "columns": two and three ranks have shards of dimension 1, four have rows.
class FullyShardCheckpoint : public ::testing::TestWithParam<std::string> {};

TEST_P(FullyShardCheckpoint, TravelsToPythonAndToOtherNumbersOfRanks) {
  const TempFolder folder;
  const auto run = [&](const Scenario& scenario, int ranks) {
    expect_all_passed(run_ranks(scenario, {.world_size = ranks,
                                           .env = {{"LOCKSTEP_TEST_FOLDER", folder.path().string()},
                                                   {"LOCKSTEP_PARITY_BACKEND", "shm"},
                                                   {"LOCKSTEP_TEST_PLACEMENT", GetParam()}}}));
  };
  run(save_it, 2);
  ASSERT_FALSE(HasFailure());
  run_python("parity/fully_shard_checkpoint.py",
             {.args = {folder.path().string(), GetParam()},
              .env = {{"OMP_NUM_THREADS", "1"}, {"GLOO_SOCKET_IFNAME", "lo"}}});
  run(load_it, 4);
  run(load_it, 1);
}
INSTANTIATE_TEST_SUITE_P(Placement, FullyShardCheckpoint, ::testing::Values("rows", "columns"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace lockstep::testing::fully_shard_checkpoint_test
