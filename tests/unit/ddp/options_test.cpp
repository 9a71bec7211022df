// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "unit/ddp/fake_group.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void wrap(DistributedDataParallelOptions options) {
  const testing::FakeGroup fake;
  options.process_group = fake.group;
  torch::nn::Linear net(2, 2);
  const DistributedDataParallel ddp(net, options);
}

TEST(DdpOptions, DependentOptionsMustBeSetTogether) {
  EXPECT_THAT([] { wrap({.delay_all_reduce_named_params = {"weight"}}); },
              ThrowsMessage<ArgumentError>(HasSubstr("param_to_hook_all_reduce")));
  EXPECT_THAT([] { wrap({.param_to_hook_all_reduce = "weight"}); },
              ThrowsMessage<ArgumentError>(HasSubstr("delay_all_reduce_named_params")));
  EXPECT_THAT([] { wrap({.skip_all_reduce_unused_params = true}); },
              ThrowsMessage<ArgumentError>(HasSubstr("find_unused_parameters")));
}

TEST(DdpOptions, UnknownNamesAreRejected) {
  EXPECT_THAT(
      [] { wrap({.params_and_buffers_to_ignore = {"wieght"}}); },
      ThrowsMessage<ArgumentError>(AllOf(HasSubstr("params_and_buffers_to_ignore"), HasSubstr("wieght"))));
  EXPECT_THAT(
      ([] { wrap({.delay_all_reduce_named_params = {"wieght"}, .param_to_hook_all_reduce = "bias"}); }),
      ThrowsMessage<ArgumentError>(HasSubstr("wieght")));
}

TEST(DdpOptions, BucketSizesMustBePositiveAndGivenOnce) {
  for (const double size : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT([size] { wrap({.bucket_cap_mb = size}); },
                ThrowsMessage<ArgumentError>(HasSubstr("bucket_cap_mb")));
  }
  EXPECT_THAT(([] {
                wrap({.bucket_cap_mb = 1, .bucket_cap_mb_list = {1, 2}});
              }),
              ThrowsMessage<ArgumentError>(HasSubstr("not both")));
}

TEST(DdpOptions, AModuleWithoutTrainedParametersIsRejected) {
  const testing::FakeGroup fake;
  torch::nn::Linear frozen(2, 2);
  for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  EXPECT_THAT([&] { DistributedDataParallel ddp(frozen, {.process_group = fake.group}); },
              ThrowsMessage<ArgumentError>(HasSubstr("no parameter that requires a gradient")));
}

TEST(DdpOptions, AnEmptyHolderIsRejected) {
  const testing::FakeGroup fake;
  const torch::nn::Linear none(nullptr);
  EXPECT_THROW(DistributedDataParallel(none, {.process_group = fake.group}), ArgumentError);
}

TEST(DdpOptions, WithoutAGroupTheErrorSaysWhatToCall) {
  torch::nn::Linear net(2, 2);
  EXPECT_THAT([&] { DistributedDataParallel ddp(net); },
              ThrowsMessage<ArgumentError>(HasSubstr("lockstep::init()")));
}

// What changes a setting, the module or its gradients is not for a const one.
template <typename Ddp>
concept TakesHooks = requires(Ddp& ddp) { ddp.register_comm_hook(allreduce_hook); };
template <typename Ddp>
concept TakesHooksWithState = requires(Ddp& ddp) { ddp.register_comm_hook(nullptr, allreduce_hook); };
template <typename Ddp>
concept Accumulates = requires(Ddp& ddp) { ddp.no_sync(); };
template <typename Ddp>
concept Joins = requires(Ddp& ddp) { ddp.join(); };
template <typename Ddp>
concept Runs = requires(Ddp& ddp) { ddp(torch::Tensor()); };
template <typename Ddp>
concept Clips = requires(Ddp& ddp) { clip_grad_norm_(ddp, 1.0); };
template <typename Ddp>
concept ClipsValues = requires(Ddp& ddp) { clip_grad_value_(ddp, 1.0); };
template <typename Ddp>
constexpr bool kAllChanges = TakesHooks<Ddp> && TakesHooksWithState<Ddp> && Accumulates<Ddp> && Joins<Ddp> &&
                             Runs<Ddp> && Clips<Ddp> && ClipsValues<Ddp>;
template <typename Ddp>
constexpr bool kSomeChange = TakesHooks<Ddp> || TakesHooksWithState<Ddp> || Accumulates<Ddp> || Joins<Ddp> ||
                             Runs<Ddp> || Clips<Ddp> || ClipsValues<Ddp>;
using LinearDdp = DistributedDataParallel<torch::nn::Linear>;
static_assert(kAllChanges<LinearDdp> && !kSomeChange<const LinearDdp>);

}  // namespace
}  // namespace lockstep
