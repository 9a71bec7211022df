// SPDX-License-Identifier: BSD-3-Clause
// What state dicts call the parameters and buffers of wrapped and converted modules.
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "parity/models/resnet.h"
#include "support/python.h"

namespace lockstep::testing {
namespace {

std::set<std::string> names_of(const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const auto& item : module.named_parameters()) names.insert(item.key());
  for (const auto& item : module.named_buffers()) names.insert(item.key());
  return names;
}

TEST(StateNames, AreThoseOfPythonsDataParallelAndSyncBatchNorm) {
  std::map<std::string, std::set<std::string>> python;
  std::istringstream lines(run_python("parity/state_names.py"));
  for (std::string kind, name; lines >> kind >> name;) python[kind].insert(name);
  const ResNet18 net(8, 1);
  const DataParallel model(
      net, {.device_ids = {at::kCPU, at::kCPU}, .make_replica = [] { return ResNet18(8, 1).ptr(); }});
  EXPECT_EQ(python.at("data_parallel").size(), names_of(*net).size());
  EXPECT_EQ(names_of(*model), python.at("data_parallel"));
  EXPECT_EQ(names_of(*convert_sync_batchnorm(ResNet18(8, 1))), python.at("sync_batch_norm"));
}

}  // namespace
}  // namespace lockstep::testing
