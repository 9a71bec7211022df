// SPDX-License-Identifier: BSD-3-Clause
// What StepVerifier refuses, when it is made and in a step.
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "multiprocess/verified_net.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::batch_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kInputs;
using testing::Net;

const testing::Scenario refusals("verify refusals", [] {
  const auto context = init({.backend = "shm"});
  Net net;
  DistributedDataParallel ddp(net);
  EXPECT_THAT(error_of<ArgumentError>([&] { StepVerifier(ddp, {.interval = 0}); }),
              HasSubstr("StepVerifier: interval is 0; it must be 1 or more"));
  torch::nn::Linear other(2, 2);
  fully_shard(other);
  EXPECT_THAT(error_of<ArgumentError>([&] { StepVerifier{other}; }),
              HasSubstr("not a DistributedDataParallel"));
  DistributedDataParallel synced(convert_sync_batchnorm(
      std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(2, 4), torch::nn::BatchNorm1d(4))));
  EXPECT_THAT(error_of<ArgumentError>([&] { StepVerifier{synced}; }), HasSubstr("is a SyncBatchNorm"));
  DistributedDataParallel ignoring(torch::nn::Linear(2, 2), {.params_and_buffers_to_ignore = {"bias"}});
  EXPECT_THAT(error_of<ArgumentError>([&] { StepVerifier{ignoring}; }),
              HasSubstr("does not support params_and_buffers_to_ignore"));
  {
    const int threads = at::get_num_threads();
    at::set_num_threads(1 + context.rank());
    EXPECT_THAT(error_of<DesyncError>([&] { StepVerifier{ddp}; }),
                AllOf(HasSubstr("intra-op threads 1"), HasSubstr("OMP_NUM_THREADS")));
    at::set_num_threads(threads);
  }
  StepVerifier verifier(ddp, {.interval = 1, .all_ranks = true});
  auto batch = batch_of(context.rank(), 0);
  const auto train = [&](const data::Batch& each) {
    torch::nn::functional::cross_entropy(ddp->forward(each.data), each.target).backward();
  };
  EXPECT_THAT(error_of<ArgumentError>([&] {
                verifier.run(batch, [&](auto& each) {
                  train(each);
                  if (verifier.is_replaying()) all_reduce(torch::ones({1}));
                });
              }),
              HasSubstr("StepVerifier: the function calls other ranks"));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                verifier.run(batch, [&](auto& each) {
                  train(each);
                  train(each);
                });
              }),
              HasSubstr("several backward passes that are reduced"));
  ddp->zero_grad();
  EXPECT_NO_THROW(verifier.run(batch, train));
  EXPECT_NO_THROW(verifier.run(batch, train));  // with the gradients of the first
  DistributedDataParallel averaging(torch::nn::Linear(2, 2));
  averaging->register_comm_hook(PostLocalSGD({.subgroup = context.group()}));
  EXPECT_THAT(error_of<ArgumentError>([&] { StepVerifier{averaging}; }),
              HasSubstr("does not support PostLocalSGD"));
  auto shared = std::make_shared<at::Tensor>(torch::ones({2, kInputs}));
  EXPECT_THAT(error_of<ArgumentError>(
                  [&] { verifier.run(shared, [&](auto& each) { ddp->forward(*each).sum().backward(); }); }),
              HasSubstr("cannot be replaced in a copy: they are behind a shared pointer"));
});

TEST(StepVerifier, RefusesWhatItCannotVerify) { testing::expect_all_passed(testing::run_ranks(refusals)); }

}  // namespace
}  // namespace lockstep
