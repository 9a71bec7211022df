// SPDX-License-Identifier: BSD-3-Clause
// Where PyTorch's DDP raises, ours does, too: the twin of ddp_errors.py.
#include <fstream>
#include <functional>
#include <sstream>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "parity/both_sides.h"
#include "parity/models/special_nets.h"
#include "support/file_text.h"
#include "support/python.h"

namespace lockstep::testing {
namespace {

// Notes what is begun.
struct Case {
  std::string point = "nothing";

  template <typename Module>
  DistributedDataParallel<Module> wrap(const Module& module,
                                       const DistributedDataParallelOptions& options = {}) {
    point = "construction";
    return DistributedDataParallel<Module>(module, options);
  }

  template <typename Ddp>
  void step(Ddp& ddp, int number, int which, bool twice = false) {
    point = "forward " + std::to_string(number);
    auto output = ddp->forward(at::ones({2, 1, 28, 28}), which);
    point = "backward " + std::to_string(number);
    at::Tensor logits;
    if constexpr (std::is_same_v<decltype(output), at::Tensor>) {
      logits = output;
    } else {
      logits = output.first;
    }
    logits.sum().backward({}, twice);
    if (!twice) return;
    point += " again";
    logits.sum().backward();
  }
};

const std::vector<std::pair<std::string, std::function<void(Case&)>>> kCases = {
    {"frozen_module",
     [](Case& each) {
       torch::nn::Linear net(2, 2);
       for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
       each.wrap(net);
     }},
    {"module_without_parameters", [](Case& each) { each.wrap(torch::nn::Functional(at::relu)); }},
    {"delay_without_trigger",
     [](Case& each) { each.wrap(torch::nn::Linear(2, 2), {.delay_all_reduce_named_params = {"weight"}}); }},
    {"unused_parameter",
     [](Case& each) {
       auto ddp = each.wrap(Experts(false));
       for (int number = 1; number < 4; ++number) each.step(ddp, number, 0);
     }},
    {"unused_parameter_found",
     [](Case& each) {
       auto ddp = each.wrap(Experts(true), {.find_unused_parameters = true});
       for (int number = 1; number < 4; ++number) each.step(ddp, number, number);
     }},
    {"static_graph_that_changes",
     [](Case& each) {
       auto ddp = each.wrap(Experts(false), {.static_graph = true});
       for (int number = 1; number < 5; ++number) each.step(ddp, number, number < 3 ? 0 : 1);
     }},
    {"reentrant_checkpoint_twice",
     [](Case& each) {
       auto ddp = each.wrap(Reuse("reentrant"));
       each.step(ddp, 1, 0);
     }},
    {"reentrant_checkpoint_twice_static",
     [](Case& each) {
       auto ddp = each.wrap(Reuse("reentrant"), {.static_graph = true});
       for (int number = 1; number < 4; ++number) each.step(ddp, number, 0);
     }},
    {"backward_twice",
     [](Case& each) {
       auto ddp = each.wrap(Reuse("none"));
       for (int number = 1; number < 3; ++number) each.step(ddp, number, 0, true);
     }},
    {"hook_twice",
     [](Case& each) {
       auto ddp = each.wrap(torch::nn::Linear(2, 2));
       each.point = "registration 1";
       ddp->register_comm_hook(allreduce_hook);
       each.point = "registration 2";
       ddp->register_comm_hook(allreduce_hook);
     }},
    {"powersgd_too_early",
     [](Case& each) {
       each.point = "construction of the hook";
       PowerSGD({.start_powerSGD_iter = 1});
     }},
};

std::string point_of(const std::function<void(Case&)>& run) {
  Case each;
  try {
    run(each);
  } catch (const Error&) {
    return each.point;
  }
  return "nothing";
}

const Scenario kRunAll("ddp errors", [] {
  at::set_num_threads(1);
  const auto context = init({.backend = "gloo"});
  std::ostringstream lines;
  for (const auto& [name, run] : kCases) lines << name << ' ' << point_of(run) << '\n';
  if (context.is_main_process()) std::ofstream(record_folder() + "/points") << lines.str();
});

TEST(DdpErrors, OccurAtTheSamePointAsPyTorchs) {
  const BothSides sides("parity/ddp_errors.py", kRunAll, {}, "gloo", 2);
  ASSERT_FALSE(HasFailure());
  const auto python = text_of(sides.python_folder() / "points");
  EXPECT_THAT(python, ::testing::HasSubstr("unused_parameter forward 2"));
  EXPECT_EQ(python, text_of(sides.our_folder() / "points"));
}

}  // namespace
}  // namespace lockstep::testing
