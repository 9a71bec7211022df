// SPDX-License-Identifier: BSD-3-Clause
#include <regex>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "parity/models/resnet.h"
#include "support/error_of.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

// Without the line of this file, which Python's message does not have.
std::string message_of(torch::nn::Sequential& net, const Dict& dict, bool strict) {
  const auto text = error_of<CheckpointError>([&] { load_state_dict(net, dict, {.strict = strict}); });
  return std::regex_replace(text, std::regex(R"( \(at state_dict_test\.cpp:[0-9]+\))"), "");
}

TEST(StateDict, MismatchesAreReportedInPythonsWords) {
  const TempFolder folder;
  const auto python = run_python("parity/state_dict_errors.py", {.args = {folder.file("state.pt")}});
  const auto state = load(folder.file("state.pt"));
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 1));
  EXPECT_EQ(python, message_of(net, state.as_dict(), true) + "\n--\n" +
                        message_of(net, state.as_dict(), false) + "\n");
}

TEST(StateDict, OfAResNetFromPythonRoundTrips) {
  const TempFolder folder;
  run_python("parity/state_dict_of.py", {.args = {folder.file("net.pt"), folder.file("wrapped.pt")}});
  const auto python = load(folder.file("net.pt"));
  ResNet18 net(8, 1);
  const auto report = load_state_dict(net, python.as_dict());
  EXPECT_EQ(report.loaded_keys.size(), python.as_dict().size());
  EXPECT_TRUE(equal(state_dict(net), python));
  EXPECT_TRUE(equal(state_dict(net).attributes(), python.as_dict().attributes()));

  const auto wrapped = load(folder.file("wrapped.pt"));
  ResNet18 other(8, 1);
  EXPECT_EQ(load_state_dict(other, wrapped.as_dict()).prefix, PrefixChange::removed);
  EXPECT_TRUE(equal(state_dict(other), python));
}

}  // namespace
}  // namespace lockstep::testing
