// SPDX-License-Identifier: BSD-3-Clause
// What DistributedDataParallel does at construction, between real processes.
#include <array>
#include <chrono>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "multiprocess/expect_told.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::expect_told;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const testing::Scenario starts_equal("ddp starts equal", [] {
  const auto context = init();
  torch::manual_seed(100 + context.rank());
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  net->named_buffers()["1.running_mean"].fill_(context.rank() + 5);
  const DistributedDataParallel ddp(net);
  for (const auto& tensors : {net->named_parameters(), net->named_buffers()}) {
    for (const auto& item : tensors) {
      auto of_rank_0 = item.value().detach().clone();
      context.group().broadcast(of_rank_0, 0);
      EXPECT_TRUE(torch::equal(of_rank_0, item.value())) << item.key();
    }
  }
  EXPECT_EQ(net->named_buffers()["1.running_mean"][0].item<float>(), 5);
});

TEST(DdpAgreement, ParametersAndBuffersComeFromRank0) {
  testing::expect_all_passed(testing::run_ranks(starts_equal, {.world_size = 3}));
}

const testing::Scenario other_shape("ddp other shape", [] {
  const auto context = init();
  const torch::nn::Linear net(3, context.rank() == 1 ? 5 : 4);
  EXPECT_THAT([&] { DistributedDataParallel ddp(net); },
              ThrowsMessage<DesyncError>(AllOf(HasSubstr("parameter weight"), HasSubstr("[4, 3]"),
                                               HasSubstr("[5, 3]"), HasSubstr("rank 0 has"),
                                               HasSubstr("rank 1 has"))));
});

TEST(DdpAgreement, ADifferentShapeIsNamedOnEveryRank) {
  testing::expect_all_passed(testing::run_ranks(other_shape, {.world_size = 3}));
}

const testing::Scenario more_parameters("ddp more parameters", [] {
  const auto context = init();
  const torch::nn::Linear net(torch::nn::LinearOptions(3, 4).bias(context.rank() == 0));
  EXPECT_THAT([&] { DistributedDataParallel ddp(net); },
              ThrowsMessage<DesyncError>(AllOf(HasSubstr("bias"), HasSubstr("rank 1 has"))));
});

TEST(DdpAgreement, AMissingParameterIsNamed) {
  testing::expect_all_passed(testing::run_ranks(more_parameters));
}

const testing::Scenario averages_others("model averager: other gradients", [] {
  const auto context = init();
  torch::nn::Linear first(3, 4), second(3, 4);
  (context.rank() == 0 ? first : second)->forward(torch::ones({2, 3})).sum().backward();
  PeriodicModelAverager averager({.period = 1});
  const auto before = first->weight.detach().clone();
  EXPECT_THAT(
      [&] {
        averager.average_parameters({first->weight, second->weight});
      },
      ThrowsMessage<DesyncError>(
          AllOf(HasSubstr("parameter 0"), HasSubstr("without a gradient"), HasSubstr("rank 1 has"))));
  EXPECT_TRUE(first->weight.equal(before));
});

TEST(ModelAverager, NamesAParameterThatHasAGradientOnOneRankOnly) {
  testing::expect_all_passed(testing::run_ranks(averages_others));
}

const testing::Scenario other_options("ddp other options", [] {
  const auto context = init();
  const torch::nn::Linear net(3, 4);
  EXPECT_THAT([&] { DistributedDataParallel ddp(net, {.broadcast_buffers = context.rank() == 0}); },
              ThrowsMessage<DesyncError>(HasSubstr("broadcast_buffers=false")));
});

TEST(DdpAgreement, DifferentOptionsAreNamed) {
  testing::expect_all_passed(testing::run_ranks(other_options));
}

const testing::Scenario other_modules("ddp other modules", [] {
  const auto context = init();
  const bool odd = context.rank() == 1;
  const auto expect_named = [](const auto& net, const char* what) {
    EXPECT_THAT([&] { DistributedDataParallel ddp(net); }, ThrowsMessage<DesyncError>(HasSubstr(what)));
  };
  torch::nn::Linear of_other_dtype(3, 4);
  if (odd) of_other_dtype->to(at::kDouble);
  expect_named(of_other_dtype, "Double");
  torch::nn::Conv2d of_other_layout(2, 3, 3);
  if (odd)
    of_other_layout->weight.set_data(of_other_layout->weight.contiguous(at::MemoryFormat::ChannelsLast));
  expect_named(of_other_layout, "strides");
  torch::nn::Linear frozen(3, 4);
  if (odd) frozen->bias.requires_grad_(false);
  expect_named(frozen, "no gradient");
  struct Net : torch::nn::Module {};
  const auto in_other_order = std::make_shared<Net>();
  for (const char* name : odd ? std::array{"b", "a"} : std::array{"a", "b"}) {
    in_other_order->register_module(name, torch::nn::Linear(2, 2));
  }
  expect_named(in_other_order, "parameter b.weight");
});

TEST(DdpAgreement, DifferentTypesOrdersAndFrozenParametersAreNamed) {
  testing::expect_all_passed(testing::run_ranks(other_modules));
}

const testing::Scenario unsendable("ddp of tensors that cannot be sent", [] {
  const auto context = init();
  const auto error_of = [&](const at::Tensor& buffer) -> std::string {
    torch::nn::Linear net(2, 2);
    net->register_buffer("mask", buffer);
    try {
      DistributedDataParallel ddp(net);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of(torch::ones({1}).expand({3})), AllOf(HasSubstr("mask"), HasSubstr("clone()")));
  EXPECT_THAT(error_of(torch::ones({3}).as_strided({2, 2}, {1, 1})),
              AllOf(HasSubstr("mask"), HasSubstr("or name it in params_and_buffers_to_ignore")));
  torch::nn::Linear sent(2, 2);
  sent->register_buffer("mask", torch::ones({1}).expand({3}));
  EXPECT_THAT(
      [&] { broadcast_module(*sent); },
      ThrowsMessage<ArgumentError>(AllOf(HasSubstr("broadcast_module: the tensor mask"), HasSubstr("clone()"),
                                         ::testing::Not(HasSubstr("params_and_buffers_to_ignore")))));
  EXPECT_THAT(error_of(torch::ones({2, 2}).to_sparse()), AllOf(HasSubstr("mask"), HasSubstr("to_dense()")));
  EXPECT_THAT(error_of(torch::ones({3}).to(at::kFloat8_e5m2)),
              AllOf(HasSubstr("mask"), HasSubstr("does not carry")));
  EXPECT_THAT(error_of(context.rank() == 0 ? torch::ones({3}) : torch::ones({1}).expand({3})),
              HasSubstr("mask"));
  EXPECT_EQ(error_of(torch::ones({4, 6}).narrow(1, 1, 2)), "");
  const auto on_meta = torch::ones({3}, at::kMeta);
  EXPECT_THAT(error_of(on_meta),
              AllOf(HasSubstr("mask"), HasSubstr("is on meta"), HasSubstr("does not carry")));
  EXPECT_THAT(error_of(context.rank() == 0 ? torch::ones({3}) : on_meta),
              HasSubstr("rank 1 has buffer mask Float[3] on meta"));
});

TEST(DdpAgreement, TensorsThatCannotBeSentAreNamed) {
  testing::expect_all_passed(testing::run_ranks(unsendable));
}

const testing::Scenario lazy_views("ddp of lazy conjugates and negations", [] {
  const auto context = init();
  const double value = context.rank() + 1;
  const auto complex = torch::full({3}, c10::complex<double>(value, value));
  const auto expect_equal = [](const at::Tensor& buffer, const at::Tensor& of_rank_0) {
    torch::nn::Linear net(2, 2);
    net->register_buffer("sent", buffer);
    const DistributedDataParallel ddp(net);
    EXPECT_TRUE(buffer.equal(of_rank_0)) << buffer;
  };
  expect_equal(complex.conj(), torch::full({3}, c10::complex<double>(1, -1)));
  expect_equal(torch::_neg_view(torch::full({3}, value)), torch::full({3}, -1.0));
  // Large enough to be sent by itself.
  const std::int64_t many = 200'000;
  expect_equal(torch::_neg_view(torch::full({many}, value, at::kDouble)),
               torch::full({many}, -1.0, at::kDouble));
});

TEST(DdpAgreement, LazyConjugatesAndNegationsComeFromRank0) {
  testing::expect_all_passed(testing::run_ranks(lazy_views));
}

const testing::Scenario refused_on_one("wrapping refused on one rank", [] {
  const auto context = init();
  const bool odd = context.rank() == 1;
  torch::nn::Linear net(2, 2), frozen(2, 2), mixed(2, 2);
  for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(!odd);
  if (odd) mixed->register_parameter("extra", torch::ones({2}, at::kMeta));
  const auto expect_ddp_told = [&](const torch::nn::Linear& module,
                                   const DistributedDataParallelOptions& options, const char* reason) {
    expect_told(
        context, [&] { DistributedDataParallel ddp(module, options); }, reason);
  };
  for (const bool syncs : {true, false}) {
    expect_ddp_told(frozen, {.init_sync = syncs}, "has no parameter that requires a gradient");
    expect_ddp_told(mixed, {.init_sync = syncs}, "weight is on cpu, extra on meta");
    expect_ddp_told(net, {.init_sync = syncs, .bucket_cap_mb = odd ? -1 : 1}, "bucket_cap_mb is -1 MiB");
    std::vector<std::string> ignored;
    if (odd) ignored = {"no such name"};
    expect_ddp_told(net, {.init_sync = syncs, .params_and_buffers_to_ignore = ignored},
                    "the module has no no such name");
  }
  expect_ddp_told(odd ? torch::nn::Linear(nullptr) : net, {}, "the module is empty");
  const auto parameter = odd ? torch::ones({2, 2}).to_sparse().requires_grad_() : net->weight;
  expect_told(
      context,
      [&] { ZeroRedundancyOptimizer<torch::optim::SGD>({parameter}, torch::optim::SGDOptions(0.1)); },
      "not dense");
  expect_told(
      context,
      [&] {
        ZeroRedundancyOptimizer<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(odd ? -1 : 1));
      },
      "Invalid learning rate: -1");
  const auto expanded = torch::zeros({1}).expand({4}).detach().requires_grad_();
  EXPECT_THAT([&] { ZeroRedundancyOptimizer<torch::optim::SGD>({expanded}, torch::optim::SGDOptions(0.1)); },
              ThrowsMessage<ArgumentError>(
                  AllOf(HasSubstr("parameter 0"), HasSubstr("several elements in one place"))));
  const auto spaced = odd ? torch::ones({2, 4}).slice(1, 0, 4, 2) : torch::ones({2, 2});
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer({net->weight}, torch::optim::SGDOptions(0.1));
  net->weight.set_data(spaced);
  expect_told(
      context, [&] { optimizer.share_parameters(); }, "share_parameters() needs dense parameters");
});

TEST(DdpAgreement, ARefusalOnOneRankIsAnErrorOnAll) {
  testing::expect_all_passed(testing::run_ranks(refused_on_one, {.timeout = std::chrono::seconds(30)}));
}

// Without init_sync, values may differ, and nothing else.
const testing::Scenario without_init_sync("ddp without init_sync", [] {
  const auto context = init();
  const bool odd = context.rank() == 1;
  torch::nn::Linear net(2, 2);
  const auto expect_named = [&](const torch::nn::Linear& module, DistributedDataParallelOptions options,
                                const char* what) {
    options.init_sync = false;
    EXPECT_THAT([&] { DistributedDataParallel ddp(module, options); },
                ThrowsMessage<DesyncError>(AllOf(HasSubstr("rank 1 has"), HasSubstr(what))));
  };
  expect_named(torch::nn::Linear(2, odd ? 3 : 2), {}, "[3, 2]");
  expect_named(net, {.static_graph = odd}, "static_graph=true");
  DistributedDataParallelOptions stepping;
  if (odd) {
    stepping.optimizer_in_backward = [](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.1));
    };
  }
  expect_named(net, stepping, "optimizer_in_backward=true");
  torch::nn::Linear frozen(2, 2);
  frozen->bias.requires_grad_(!odd);
  expect_named(frozen, {}, "no gradient");
  EXPECT_THAT([&] { DistributedDataParallel ddp(net, {.init_sync = !odd}); },
              ThrowsMessage<DesyncError>(AllOf(HasSubstr("rank 1 has"), HasSubstr("init_sync=false"))));
  const torch::NoGradGuard no_grad;
  net->weight.fill_(context.rank());
  const DistributedDataParallel ddp(net, {.init_sync = false});
  EXPECT_TRUE(net->weight.eq(context.rank()).all().item<bool>());
});

TEST(DdpAgreement, WithoutInitSyncOnlyValuesMayDiffer) {
  testing::expect_all_passed(testing::run_ranks(without_init_sync, {.timeout = std::chrono::seconds(30)}));
}

const testing::Scenario complex_half("ddp of complex numbers in half precision", [] {
  const auto context = init();
  torch::nn::Linear net(2, 2);
  const auto weight = net->register_parameter("phase", torch::ones({2}, at::kComplexHalf));
  DistributedDataParallel ddp(net);
  for (int step = 0; step < 2; ++step) {
    const auto output = ddp->forward(torch::ones({1, 2})).sum();
    (output + torch::view_as_real(weight).to(at::kFloat).sum() * (context.rank() + 1)).backward();
    EXPECT_TRUE(torch::view_as_real(weight.grad()).eq(1.5 * (step + 1)).all().item<bool>()) << weight.grad();
  }
});

TEST(DdpAgreement, ComplexNumbersInHalfPrecisionAreAveraged) {
  testing::expect_all_passed(testing::run_ranks(complex_half));
}

const testing::Scenario averages("ddp averages", [] {
  const auto context = init();
  torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
  DistributedDataParallel ddp(net);
  for (int step = 0; step < 4; ++step) {
    ddp->zero_grad();
    ddp->forward(torch::full({1, 2}, context.rank() + 1.0F)).sum().backward();
    EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({1, 2}, 1.5F))) << net->weight.grad();
  }
});

TEST(DdpAgreement, GradientsAreTheMeanOverRanks) { testing::expect_all_passed(testing::run_ranks(averages)); }

const testing::Scenario of_a_subgroup("ddp of a subgroup", [] {
  const auto context = init();
  const auto group = context.new_group({1, 2});
  if (!group) return;
  torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
  DistributedDataParallel ddp(net, {.process_group = group});
  ddp->forward(torch::full({1, 2}, static_cast<float>(context.rank()))).sum().backward();
  EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({1, 2}, 1.5F)));
});

TEST(DdpAgreement, AcceptsASubgroup) {
  testing::expect_all_passed(testing::run_ranks(of_a_subgroup, {.world_size = 3}));
}

const testing::Scenario hook_on_one("ddp with a hook on one rank", [] {
  const auto context = init({.timeout = std::chrono::seconds(30)});
  // A group each, since no call works in a group whose ranks differed.
  const std::array groups{context.new_group({0, 1}), context.new_group({0, 1})};
  const std::array hooks{CommHook(bf16_compress_hook), CommHook(PowerSGD({.start_powerSGD_iter = 2}))};
  for (std::size_t i = 0; i < hooks.size(); ++i) {
    torch::nn::Linear net(torch::nn::LinearOptions(64, 64).bias(false));
    DistributedDataParallel ddp(net, {.process_group = groups[i]});
    if (context.rank() == 1) ddp->register_comm_hook(hooks[i]);
    EXPECT_THROW(
        {
          for (int step = 0; step < 4; ++step) ddp->forward(torch::ones({1, 64})).sum().backward();
        },
        DesyncError);
  }
});

TEST(DdpAgreement, ACommunicationHookOnOneRankIsAnErrorOnAll) {
  testing::expect_all_passed(testing::run_ranks(hook_on_one));
}

// One rank leaves a parameter out; it says so, and the other learns that it is gone instead of hanging.
const testing::Scenario one_leaves_out("ddp one leaves out", [] {
  const auto context = init({.timeout = std::chrono::seconds(20)});
  struct Net : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x, bool both) {
      auto y = a->forward(x);
      return both ? b->forward(y) : y;
    }
    torch::nn::Linear a{register_module("a", torch::nn::Linear(2, 2))};
    torch::nn::Linear b{register_module("b", torch::nn::Linear(2, 2))};
  };
  DistributedDataParallel ddp(std::make_shared<Net>());
  for (int step = 0; step < 3; ++step)
    ddp->forward(torch::ones({1, 2}), context.rank() == 0).sum().backward();
});

TEST(DdpAgreement, AnUnusedParameterOnOneRankStopsBoth) {
  const auto results = testing::run_ranks(one_leaves_out);
  EXPECT_EQ(results[1].exit_code, 1);
  EXPECT_THAT(results[1].err, AllOf(HasSubstr("b.weight"), HasSubstr("rank 1 of 2")));
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_THAT(results[0].err, AllOf(HasSubstr("other ranks aborted"), HasSubstr("b.weight")));
}

}  // namespace
}  // namespace lockstep
