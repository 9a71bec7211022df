// SPDX-License-Identifier: BSD-3-Clause
// Forwards past DistributedDataParallel, whose gradients nothing averages, are noticed where they do harm.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "multiprocess/changed_net.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing::past_the_wrapper_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Scenario past_the_wrapper("forwards past the wrapper", [] {
  const auto context = init();
  Net net;
  DistributedDataParallel ddp(net);
  optim::FusedSGD fused(ddp->parameters(), optim::FusedSGDOptions(0.1));
  optim::Adamax named(ddp->parameters());
  const auto backward = [&](auto& module) { loss_of(module->forward(inputs(context.rank()))).backward(); };
  const auto refusals = [&] {
    return std::vector{error_of([&] { fused.step(); }), error_of([&] { named.step(); }),
                       error_of([&] { state_dict(*net); }), error_of([&] { clip_grad_norm_(ddp, 1.0); })};
  };
  const auto past = HasSubstr("not averaged");
  {
    const auto alone = ddp->no_sync();
    backward(net);  // as ddp would
  }
  EXPECT_THAT(refusals(), ElementsAre("", "", "", past));
  backward(ddp);
  EXPECT_TRUE(ddp->has_averaged_gradients());

  backward(net);
  EXPECT_FALSE(ddp->has_averaged_gradients());
  EXPECT_THAT(refusals(), ElementsAre(past, past, past, past));
  EXPECT_THAT(error_of([&] { clip_grad_norm_(*net, 1.0); }), past) << "of the module itself";
  fused.zero_grad();  // a probe without a step does no harm
  EXPECT_THAT(refusals(), ElementsAre("", "", "", ""));
  backward(net);
  fused.zero_grad(/*set_to_none=*/false);
  EXPECT_THAT(refusals(), ElementsAre("", "", "", past));

  const auto output = loss_of(ddp->forward(inputs(context.rank())));
  output.backward({}, /*keep_graph=*/true);
  EXPECT_TRUE(ddp->has_averaged_gradients());
  output.backward();  // a second one, which nothing averages
  EXPECT_THAT(refusals(), ElementsAre(past, past, past, past));
  backward(ddp);  // averages what has accumulated
  EXPECT_THAT(refusals(), ElementsAre("", "", "", ""));

  torch::optim::SGD plain(ddp->parameters(), 0.1);
  backward(net);
  plain.step();
  plain.zero_grad();
  EXPECT_THAT(error_of([&] { state_dict(*net); }), past) << "the weights have diverged";
  Net other;
  load_state_dict(*net, state_dict(*other));
  EXPECT_EQ(error_of([&] { state_dict(*net); }), "") << "the weights are others";
});

// What refuses gradients that no backward has averaged.
std::vector<std::string> refusals_of(DistributedDataParallel<Net>& ddp, Net& net) {
  // Anew, so that none knows the parameters' former dtypes.
  optim::FusedSGD fused(net->parameters(), optim::FusedSGDOptions(0));
  optim::Adamax named(net->parameters(), 0);
  return {error_of([&] { fused.step(); }), error_of([&] { named.step(); }),
          error_of([&] { state_dict(*net); }), error_of([&] { get_model_state_dict(*net); }),
          error_of([&] { clip_grad_norm_(ddp, 1.0); })};
}

const Scenario past_a_changed_wrapper("forwards past the wrapper after a change", [] {
  const auto context = init();
  const auto backward = [&](auto& module) { loss_of(module->forward(inputs(context.rank()))).backward(); };
  const DistributedDataParallelOptions low{.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}};
  const std::vector<Way> ways = {
      {"to double", to_double},
      {"to double and back", [](Net& net) { to_double(net), net->to(torch::kFloat); }},
      {"one layer to double", [](Net& net) { net->first->to(torch::kDouble); }},
      {"unfreeze", unfreeze},
      {"unfreeze what alone is trained", [](Net& net) { freeze_all(net), unfreeze(net); }},
      {"to double and unfreeze", [](Net& net) { to_double(net), unfreeze(net); }},
      {"freeze", freeze},
      {"mixed precision", [](Net&) {}, "", low},
  };
  const std::vector<Change> replacements = {
      [](Net& net) { net->last = net->replace_module("last", torch::nn::Linear(6, 2)); }, replace_member};
  for (const auto& replace : replacements) {
    Net net;
    DistributedDataParallel ddp(net);
    backward(ddp);
    freeze_all(net);
    replace(net);
    backward(net);
    EXPECT_FALSE(ddp->has_averaged_gradients()) << "of a layer that is new";
    const auto weight = net->last->weight;
    optim::FusedSGD fused({weight}, optim::FusedSGDOptions(0));
    optim::Adamax named({weight}, 0);
    ZeroRedundancyOptimizer<torch::optim::SGD> shared({weight}, torch::optim::SGDOptions(0));
    const auto errors = [&] {
      return std::vector{error_of([&] { fused.step(); }), error_of([&] { named.step(); }),
                         error_of([&] { shared.step(); })};
    };
    EXPECT_THAT(errors(), Each(HasSubstr("parameter last.weight has been added or has replaced")));
    const auto other = torch::ones({2}, torch::requires_grad());
    other.mutable_grad() = torch::ones({2});
    optim::FusedSGD of_others({other}, optim::FusedSGDOptions(0));
    EXPECT_EQ(error_of([&] { of_others.step(); }), "") << "it is in no wrapped module";
    net->zero_grad();
    weight.mutable_grad().reset();
    EXPECT_THAT(errors(), Each(""));
    if (!weight.is_same(net->named_parameters()["last.weight"])) continue;
    DistributedDataParallel anew(net);
    backward(anew);
    EXPECT_THAT(errors(), Each("")) << "the new wrapper averages it";
  }
  {
    Net net;
    DistributedDataParallel ddp(net);
    backward(net);
    net->zero_grad();
    for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
      net->to(dtype);
      EXPECT_THAT(refusals_of(ddp, net), Each("")) << "a probe without a step, then " << dtype;
    }
  }
  for (const auto& way : ways) {
    SCOPED_TRACE(way.name);
    Net net;
    DistributedDataParallel ddp(net, way.options);
    backward(ddp);
    way.change(net);
    net->zero_grad();
    backward(net);
    EXPECT_THAT(refusals_of(ddp, net), Each(HasSubstr("not averaged")));
    EXPECT_FALSE(ddp->has_averaged_gradients());
    backward(ddp);  // averages what has accumulated
    EXPECT_THAT(refusals_of(ddp, net), Each(""));
  }
  for (const auto& way : ways) {
    SCOPED_TRACE(way.name + ", in no_sync()");
    Net net;
    DistributedDataParallel ddp(net, way.options);
    backward(ddp);
    way.change(net);
    net->zero_grad();
    {
      const auto alone = ddp->no_sync();
      backward(ddp);
    }
    EXPECT_FALSE(ddp->has_averaged_gradients());
    EXPECT_THAT(refusals_of(ddp, net)[0], "");
    backward(ddp);
    EXPECT_THAT(refusals_of(ddp, net), Each(""));
  }
});

TEST(ForwardPastTheWrapper, IsNoticedAfterAChange) { expect_all_passed(run_ranks(past_a_changed_wrapper)); }

TEST(ForwardPastTheWrapper, IsNoticedOnceAndRefusedWhereItDoesHarm) {
  const auto results = run_ranks(past_the_wrapper);
  expect_all_passed(results);
  const std::string warning = "past_the_wrapper_test.cpp:";
  for (const auto& rank : results) {
    const auto first = rank.err.find(warning);
    EXPECT_NE(first, std::string::npos) << rank.err;
    EXPECT_EQ(rank.err.find(warning, first + 1), std::string::npos) << rank.err;
  }
}

}  // namespace
}  // namespace lockstep::testing::past_the_wrapper_test
