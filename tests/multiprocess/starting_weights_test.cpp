// SPDX-License-Identifier: BSD-3-Clause
// Ranks that begin with other weights, and then have the same.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "multiprocess/backends.h"
#include "parity/resume_training.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// With weights and running statistics that no other rank has.
ResumeNet net_of(int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(10 + rank));
  ResumeNet net;
  for (auto& buffer : net->buffers()) buffer.add_(rank + 1);
  return net;
}

std::string variable_of_test(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class StartingWeights : public EveryBackend {
 protected:
  void run_here(const Scenario& scenario) const { run(scenario, {{"FOLDER", folder_.path().string()}}); }
  TempFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, StartingWeights, backends_and_ranks({1, 2, 3}), name_of_case);

const Scenario from_a_file("weights written by rank 0 and read by all", [] {
  const auto context = init({.backend = backend_under_test()});
  const std::filesystem::path folder = variable_of_test("FOLDER");
  for (const auto reading : {CheckpointReading::broadcast, CheckpointReading::every_rank}) {
    auto net = net_of(context.rank());
    share_starting_weights(net, folder / "start.pt", reading);
    EXPECT_TRUE(equal(state_dict(net), state_dict(net_of(0))));
    EXPECT_TRUE(equal(load(folder / "start.pt"), state_dict(net_of(0))));
    context.group().barrier();
  }
});
TEST_P(StartingWeights, AreWrittenByOneAndReadByAll) { run_here(from_a_file); }

const Scenario from_a_file_in_vain("weights that cannot be written or do not match", [] {
  const auto context = init({.backend = backend_under_test()});
  const std::filesystem::path folder = variable_of_test("FOLDER");
  auto net = net_of(context.rank());
  EXPECT_THAT(error_of([&] { share_starting_weights(net, folder / "missing" / "start.pt"); }),
              HasSubstr("missing"));
  EXPECT_TRUE(equal(state_dict(net), state_dict(net_of(context.rank()))));
  if (context.world_size() == 1) return;
  torch::nn::Linear layer(3, context.rank() == 1 ? 5 : 4);
  EXPECT_THAT(error_of([&] { share_starting_weights(layer, folder / "start.pt"); }),
              AllOf(HasSubstr("rank 1"), HasSubstr("size mismatch for weight")));
});
TEST_P(StartingWeights, FailTogether) { run_here(from_a_file_in_vain); }

// As where the folder is each host's own.
const Scenario from_other_files("weights from other files", [] {
  const auto context = init({.backend = backend_under_test()});
  if (context.world_size() == 1) return;
  const std::filesystem::path folder = variable_of_test("FOLDER");
  auto net = net_of(context.rank());
  const bool is_last = context.rank() == context.world_size() - 1;
  if (is_last) save(state_dict(net), folder / "old.pt");
  EXPECT_THAT(error_of([&] {
                share_starting_weights(net, folder / (is_last ? "old.pt" : "start.pt"),
                                       CheckpointReading::every_rank);
              }),
              HasSubstr(fmt::format("the starting weights that rank {} read", context.world_size() - 1)));
});
TEST_P(StartingWeights, FromDifferentFilesAreDetected) { run_here(from_other_files); }

const Scenario by_broadcast("weights broadcast without a DDP", [] {
  const auto context = init({.backend = backend_under_test()});
  for (const int source : {0, context.world_size() - 1}) {
    auto net = net_of(context.rank());
    broadcast_module(net, source, context.group());
    EXPECT_TRUE(equal(state_dict(net), state_dict(net_of(source))));
    const at::Tensor weight = net->first->weight;
    EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
  }
});
TEST_P(StartingWeights, AreBroadcastFromAnyRank) { run_here(by_broadcast); }

const Scenario of_other_modules("modules that differ are not broadcast", [] {
  const auto context = init({.backend = backend_under_test()});
  if (context.world_size() == 1) return;
  const int last = context.world_size() - 1;
  torch::nn::Linear layer(3, context.rank() == last ? 5 : 4);
  const auto before = layer->weight.detach().clone();
  EXPECT_THAT(error_of([&] { broadcast_module(layer); }),
              AllOf(HasSubstr("rank 0 has tensor weight Float[4, 3] on cpu"),
                    HasSubstr(fmt::format("rank {} has tensor weight Float[5, 3] on cpu", last))));
  EXPECT_TRUE(torch::equal(layer->weight, before));
  torch::nn::Linear other(torch::nn::LinearOptions(3, 4).bias(context.rank() != last));
  EXPECT_THAT(error_of([&] { broadcast_module(other); }),
              HasSubstr(fmt::format("rank 0 has tensor bias Float[4] on cpu, rank {} has nothing", last)));
});
TEST_P(StartingWeights, OfDifferentModulesAreNamed) { run_here(of_other_modules); }

}  // namespace
}  // namespace lockstep::testing
