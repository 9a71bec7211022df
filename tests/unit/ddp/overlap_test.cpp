// SPDX-License-Identifier: BSD-3-Clause
// Reductions are issued from inside backward, as soon as a bucket is full.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "unit/ddp/fake_group.h"

namespace lockstep {
namespace {

// The identity; in backward it notes how many all-reduces have been issued by then.
struct Probe : torch::autograd::Function<Probe> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            testing::FakeGroup* group, int* seen) {
    context->saved_data["group"] = reinterpret_cast<std::int64_t>(group);
    context->saved_data["seen"] = reinterpret_cast<std::int64_t>(seen);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto* group = reinterpret_cast<testing::FakeGroup*>(context->saved_data["group"].toInt());
    *reinterpret_cast<int*>(context->saved_data["seen"].toInt()) = group->all_reduces();
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

struct ProbedNetImpl : torch::nn::Module {
  ProbedNetImpl(testing::FakeGroup* fake, int* seen) : group(fake), issued_before_first_layer(seen) {}
  at::Tensor forward(const at::Tensor& x) {
    auto hidden = Probe::apply(first->forward(x), group, issued_before_first_layer);
    return last->forward(torch::relu(hidden));
  }
  testing::FakeGroup* group;
  int* issued_before_first_layer;
  torch::nn::Linear first{register_module("first", torch::nn::Linear(16, 16))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(16, 16))};
};
TORCH_MODULE(ProbedNet);

TEST(Overlap, FirstBucketIsReducedBeforeTheLastGradientIsComputed) {
  testing::FakeGroup fake;
  int seen = -1;
  ProbedNet net(&fake, &seen);
  // Buckets smaller than a layer, so that the last layer has its own.
  DistributedDataParallel ddp(net, {.process_group = fake.group, .bucket_cap_mb = 0.0005});
  const auto x = torch::randn({4, 16});

  ddp->forward(x)
      .sum()
      .backward();  // the order of gradients is not known yet: one bucket, reduced at the end
  EXPECT_EQ(seen, 0);
  EXPECT_EQ(ddp->buckets().size(), 1U);

  ddp->zero_grad();
  fake.backend->clear_calls();
  ddp->forward(x).sum().backward();
  EXPECT_GE(ddp->buckets().size(), 2U);
  EXPECT_GE(seen, 1) << "no all-reduce was issued while the first layer's gradient was still missing";
  EXPECT_LT(seen, fake.all_reduces()) << "all were issued before the first layer's gradient was there";
  EXPECT_EQ(fake.all_reduces(), static_cast<int>(ddp->buckets().size()));
}

TEST(Overlap, BucketsFollowTheOrderOfGradients) {
  testing::FakeGroup fake;
  int seen = 0;
  ProbedNet net(&fake, &seen);
  DistributedDataParallel ddp(net, {.process_group = fake.group, .bucket_cap_mb = 0.0005});
  ddp->forward(torch::randn({4, 16})).sum().backward();
  ddp->forward(torch::randn({4, 16})).sum().backward();
  const auto buckets = ddp->buckets();
  EXPECT_TRUE(buckets.front().parameters.front().starts_with("last.")) << buckets.front().parameters.front();
  EXPECT_TRUE(buckets.back().parameters.back().starts_with("first.")) << buckets.back().parameters.back();
}

}  // namespace
}  // namespace lockstep
