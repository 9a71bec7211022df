// SPDX-License-Identifier: BSD-3-Clause
// Mistakes in training loops.
#include <cmath>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "multiprocess/mistakes.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using torch::nn::Linear;

struct TensorSet {
  std::int64_t size() const { return rows.size(0); }
  at::Tensor get_batch(const at::Tensor& indices) const { return rows.index_select(0, indices); }
  at::Tensor rows;
};

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    first = register_module("first", Linear(2, 2));
    second = register_module("second", Linear(2, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return first(x); }
  Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoHeads);

const Mistake unused("UnusedParameters", {.on_all = {"second.weight", "find_unused_parameters"}}, [] {
  const auto context = init({.timeout = 20s});
  TwoHeads net;
  DistributedDataParallel ddp(net);
  for (int step = 0; step < 2; ++step) ddp->forward(torch::ones({1, 2})).sum().backward();
});

const Mistake other_models("ModelsDiffer", {.on_all = {"weight", "[2, 2]", "[3, 2]", "rank 1"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2 + context.rank());
  DistributedDataParallel ddp(net);
});

const Mistake nothing_to_train("NoParameterRequiresGradients",
                               {.on_all = {"no parameter that requires a gradient"}}, [] {
                                 const auto context = init({.timeout = 20s});
                                 torch::nn::ReLU net;
                                 DistributedDataParallel ddp(net);
                               });

const Mistake frozen_on_one_rank("FrozenOnOneRankAfterWrapping", {.on_all = {"weight", "requires_grad"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  DistributedDataParallel ddp(net);
  if (context.rank() == 1) net->weight.set_requires_grad(false);
  ddp->forward(torch::ones({1, 2})).sum().backward();
});

const Mistake replaced("ParameterReplacedAfterWrapping", {.on_all = {"weight", "replaced"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  DistributedDataParallel ddp(net);
  net->weight = torch::ones({2, 2}, torch::requires_grad());
  ddp->forward(torch::ones({1, 2})).sum().backward();
});

const Mistake bare_forward("ForwardOfTheWrappedModule",
                           {.on_all = {"the wrapper's forward()", "not averaged"}}, [] {
                             const auto context = init({.timeout = 20s});
                             Linear net(2, 2);
                             DistributedDataParallel ddp(net);
                             optim::FusedSGD optimizer(net->parameters(), optim::FusedSGDOptions(0.1));
                             net->forward(torch::ones({1, 2})).sum().backward();
                             optimizer.step();
                           });

const Mistake ddp_without_gpu("DdpOnAGpuWithoutOne",
                              {.on_all = {"no cuda:0", "DistributedDataParallel", "context.device()"}}, [] {
                                const auto context = init({.timeout = 20s});
                                Linear net(2, 2);
                                DistributedDataParallel ddp(net, {.device_ids = {at::Device("cuda:0")}});
                              });

const Mistake replicas_without_gpu("DataParallelOnGpusWithoutOne", {.on_all = {"cuda:0", "at::kCPU"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  DataParallel model(net, {.device_ids = {0, 3}});
});

const Mistake one_rank_throws("ExceptionOnOneRank", {.on_rank0 = {"rank 1"}, .once = {"no such sample"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  DistributedDataParallel ddp(net);
  if (context.rank() == 1) throw std::runtime_error("no such sample");
  ddp->forward(torch::ones({1, 2})).sum().backward();
});

const Mistake old_optimizer("OptimizerMadeBeforeSharding", {.on_all = {"optimizer", "fully_shard()"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto sharded = fully_shard(*net);
  net->forward(torch::ones({1, 2})).sum().backward();
  optimizer.step();
});

const Mistake sharded_twice("ShardedTwice", {.on_all = {"already sharded"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  (void)fully_shard(*net);
  (void)fully_shard(*net);
});

const Mistake nan_loss("LossIsNaN", {.on_all = {"rank 1", "nan"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  DistributedDataParallel ddp(net);
  const auto loss = ddp->forward(torch::ones({1, 2})).sum() * (context.rank() == 1 ? NAN : 1.F);
  loss.backward();
  finite_or_stop(loss, ddp, 1);
});

const Mistake scaler_twice("ScalerStepsTwice", {.on_all = {"step()", "update()"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  amp::GradScaler scaler(at::kCPU);
  scaler.scale(net->forward(torch::ones({1, 2})).sum()).backward();
  scaler.step(optimizer);
  scaler.step(optimizer);
});

const Mistake scaler_unused("ScalerWithoutScaledLoss", {.on_all = {"scale"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  amp::GradScaler scaler(at::kCPU);
  net->forward(torch::ones({1, 2})).sum().backward();
  scaler.step(optimizer);
});

const Mistake label_dtype("LabelsOfFloats", {.on_all = {"targets", "int64"}}, [] {
  const auto context = init({.timeout = 20s});
  metrics::Accuracy accuracy;
  accuracy.update(torch::ones({4, 2}), torch::ones({4}));
});

const Mistake label_shape("LabelsOfAnotherShape", {.on_all = {"targets", "[3]"}}, [] {
  const auto context = init({.timeout = 20s});
  metrics::Accuracy accuracy;
  accuracy.update(torch::ones({4, 2}), torch::ones({3}, at::kLong));
});

const Mistake libtorch_label_dtype(
    "LossOfFloatLabels", {.on_all = {"Long", "LibTorch threw it"}, .place = Place::none}, [] {
      const auto context = init({.timeout = 20s});
      Linear net(2, 2);
      DistributedDataParallel ddp(net);
      const auto scores = ddp->forward(torch::ones({4, 2}));
      torch::nn::functional::cross_entropy(scores, torch::ones({4})).backward();
    });

const Mistake libtorch_label_shape(
    "LossOfLabelsOfAnotherShape", {.on_all = {"batch_size (4)", "LibTorch threw it"}, .place = Place::none},
    [] {
      const auto context = init({.timeout = 20s});
      Linear net(2, 2);
      DistributedDataParallel ddp(net);
      const auto scores = ddp->forward(torch::ones({4, 2}));
      torch::nn::functional::cross_entropy(scores, torch::ones({3}, at::kLong)).backward();
    });

// Rank 1 has one batch fewer.
void train_on_uneven_data(const Context& context, torch::nn::Sequential net) {
  DistributedDataParallel ddp(std::move(net));
  for (int batch = 0; batch < 3 - context.rank(); ++batch) ddp->forward(torch::rand({2, 2})).sum().backward();
}

const Mistake uneven_data("UnevenData",
                          {.on_rank0 = {"rank 1 (pid ", "finished after 2 steps", "looks like uneven data",
                                        "DistributedDataParallel::join()", "(gradients of bucket 0)"}},
                          [] {
                            const auto context = init({.timeout = 20s});
                            train_on_uneven_data(context, torch::nn::Sequential(Linear(2, 2)));
                          });

const Mistake uneven_data_with_buffers(
    "UnevenDataWithBuffers", {.on_rank0 = {"finished after 2 steps", "looks like uneven data", "(buffers)"}},
    [] {
      const auto context = init({.timeout = 20s});
      train_on_uneven_data(context, torch::nn::Sequential(Linear(2, 2), torch::nn::BatchNorm1d(2)));
    });

const Mistake metric_on_one_rank("MetricComputedOnOneRank",
                                 {.on_rank0 = {"all_reduce", "(sums of a metric)", "rank 1", "finished"}},
                                 [] {
                                   const auto context = init({.timeout = 20s});
                                   metrics::Accuracy accuracy;
                                   accuracy.update(torch::eye(2), torch::arange(2));
                                   if (context.is_main_process()) accuracy.compute();
                                 });

const Mistake checkpoint_on_one_rank("CheckpointOnOneRank",
                                     {.on_rank0 = {"(checkpoint)", "rank 1", "finished"}}, [] {
                                       const auto context = init({.timeout = 20s});
                                       const TempFolder folder;
                                       Linear net(2, 2);
                                       if (context.is_main_process())
                                         CheckpointManager(folder.path()).save(1, state_dict(net));
                                     });

const Mistake no_set_epoch("NoSetEpoch",
                           {.once = {"training_mistakes_test.cpp", "without set_epoch()",
                                     "call set_epoch(epoch) on the loader"},
                            .ending = Ending::well},
                           [] {
                             const auto context = init({.timeout = 20s});
                             const TensorSet points{torch::arange(16)};
                             data::DataLoader loader(points, {.batch_size = 4, .shuffle = true});
                             for (int epoch = 0; epoch < 3; ++epoch) {
                               for (auto& batch : loader) (void)batch;
                             }
                           });

const Mistake batch_of_one("SyncBatchNormOfOneValue", {.on_all = {"SyncBatchNorm", "one value"}}, [] {
  const auto context = init({.timeout = 20s});
  const auto group = context.new_group({0}), other = context.new_group({1});
  SyncBatchNorm layer(2, context.is_main_process() ? group : other);
  layer->forward(torch::ones({1, 2}));
});

const Mistake statistics_on_one_rank("SyncBatchNormBackwardOnOneRank",
                                     {.on_rank0 = {"(gradient sums of SyncBatchNorm)", "rank 1", "finished"}},
                                     [] {
                                       const auto context = init({.timeout = 20s});
                                       SyncBatchNorm layer(2);
                                       const auto x = torch::rand({4, 2}, torch::requires_grad());
                                       const auto loss = layer->forward(x).sum();
                                       if (context.is_main_process()) loss.backward();
                                     });

const Mistake converted_on_one_rank("ConvertedBatchNormOnOneRank",
                                    {.on_rank0 = {"(statistics of SyncBatchNorm)", "rank 1", "finished"}},
                                    [] {
                                      const auto context = init({.timeout = 20s});
                                      torch::nn::BatchNorm1d layer(2);
                                      convert_sync_batchnorm(layer);
                                      if (context.is_main_process()) layer->forward(torch::rand({4, 2}));
                                    });

const Mistake no_step_size("SchedulerWithoutAStepSize", {.on_all = {"StepLR", "'step_size' is 0"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  optim::StepLR scheduler(optimizer, 0);
});

const Mistake too_many_steps("SchedulerStepsTooOften", {.on_all = {"OneCycleLR", "total_steps"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  optim::OneCycleLR scheduler(optimizer, {.max_lr = 0.1, .total_steps = 2});
  for (int epoch = 0; epoch < 3; ++epoch) scheduler.step();
});

const Mistake too_many_of_the_trainer(
    "SchedulerOfATrainerStepsTooOften", {.on_all = {"OneCycleLR", "total_steps"}}, [] {
      const auto context = init({.timeout = 20s});
      Linear net(1, 1);
      DistributedDataParallel ddp(net);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      optim::OneCycleLR scheduler(optimizer, {.max_lr = 0.1, .total_steps = 2});
      Trainer trainer(ddp, optimizer, {.epochs = 1});
      trainer.step_scheduler(scheduler);
      std::vector batches(3, torch::ones({1, 1}));
      trainer.fit(batches, [&](auto& batch) { return ddp->forward(batch).sum(); });
    });

namespace tp = tensor_parallel;

const Mistake wrong_features(
    "TensorParallelInputOfAnotherWidth", {.on_all = {"weight (ColwiseParallel)", "1x3", "2 features"}}, [] {
      const auto context = init({.timeout = 20s});
      Linear net(2, 4);
      tp::parallelize_module(*net, init_device_mesh({2}), {{"", tp::ColwiseParallel()}});
      (void)net->forward(torch::ones({1, 3}));
    });

const Mistake parallel_on_one_rank(
    "TensorParallelForwardOnOneRank",
    {.on_rank0 = {"(parts of a tensor-parallel module)", "rank 1", "finished"}}, [] {
      const auto context = init({.timeout = 20s});
      tp::RowParallelLinear net(torch::nn::LinearOptions(4, 2), init_device_mesh({2}));
      if (context.is_main_process()) net->forward(torch::ones({1, 2}));
    });

const Mistake parallel_backward_on_one_rank(
    "TensorParallelBackwardOnOneRank",
    {.on_rank0 = {"(parts of a tensor-parallel module)", "rank 1", "finished"}}, [] {
      const auto context = init({.timeout = 20s});
      tp::ColumnParallelLinear net(torch::nn::LinearOptions(2, 4), init_device_mesh({2}));
      const auto loss = net->forward(torch::ones({1, 2}, torch::requires_grad())).sum();
      if (context.is_main_process()) loss.backward();
    });

MixtureOfExpertsOptions two_experts() {
  return {.dim = 2, .num_experts = 2, .top_k = 1, .mesh = init_device_mesh({2})};
}

const Mistake wrong_token("TokensOfAnotherWidth", {.on_all = {"MixtureOfExperts", "[..., 2]"}}, [] {
  const auto context = init({.timeout = 20s});
  MixtureOfExperts experts(two_experts(), [] { return Linear(2, 2); });
  (void)experts->forward(torch::ones({1, 3}));
});

const Mistake experts_on_one_rank("ExpertsBackwardOnOneRank",
                                  {.on_rank0 = {"all_to_all_single", "rank 1", "finished"}}, [] {
                                    const auto context = init({.timeout = 20s});
                                    MixtureOfExperts experts(two_experts(), [] { return Linear(2, 2); });
                                    const auto loss = experts->forward(torch::ones({1, 2})).output.sum();
                                    if (context.is_main_process()) loss.backward();
                                  });

const Mistake wrong_input("InputOfAnotherWidth",
                          {.on_all = {"cannot be multiplied", "LibTorch threw it"}, .place = Place::none},
                          [] {
                            const auto context = init({.timeout = 20s});
                            Linear net(2, 2);
                            DistributedDataParallel ddp(net);
                            (void)ddp->forward(torch::ones({1, 3}));
                          });

const Mistake backward_twice("BackwardTwice",
                             {.on_all = {"second time", "LibTorch threw it"}, .place = Place::none}, [] {
                               const auto context = init({.timeout = 20s});
                               Linear net(2, 2);
                               DistributedDataParallel ddp(net);
                               const auto loss = ddp->forward(torch::ones({1, 2})).pow(2).sum();
                               loss.backward();
                               loss.backward();
                             });

const Mistake changed_leaf("ParameterChangedInPlace",
                           {.on_all = {"leaf Variable", "LibTorch threw it"}, .place = Place::none}, [] {
                             const auto context = init({.timeout = 20s});
                             Linear net(2, 2);
                             DistributedDataParallel ddp(net);
                             net->weight.mul_(0.9);
                           });

const Mistake other_options("OptionsDiffer", {.on_all = {"find_unused_parameters"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  DistributedDataParallel ddp(net, {.find_unused_parameters = context.is_main_process()});
});

const Mistake negative_norm("NegativeMaxNorm", {.on_all = {"max_norm", "-1"}}, [] {
  const auto context = init({.timeout = 20s});
  Linear net(2, 2);
  DistributedDataParallel ddp(net);
  ddp->forward(torch::ones({1, 2})).sum().backward();
  clip_grad_norm_(ddp, -1.0);
});

const Mistake no_test_set("ErrorOfTheProgramsOwnValidation",
                          {.on_all = {"there is no test set"}, .place = Place::none}, [] {
                            const auto context = init({.timeout = 20s});
                            Linear net(1, 1);
                            DistributedDataParallel ddp(net);
                            torch::optim::SGD optimizer(net->parameters(), 0.1);
                            Trainer trainer(ddp, optimizer, {.epochs = 1});
                            trainer.on_validate([]() -> Scalars { throw Error("there is no test set"); });
                            std::vector batches{torch::ones({1, 1})};
                            trainer.fit(batches, [&](auto& batch) { return ddp->forward(batch).sum(); });
                          });

const Mistake own_models("TrainerOfAModelThatIsNotWrapped",
                         {.on_all = {"not a DistributedDataParallel", "2 different models"}}, [] {
                           const auto context = init({.timeout = 20s});
                           Linear net(1, 1);
                           torch::optim::SGD optimizer(net->parameters(), 0.1);
                           Trainer trainer(net, optimizer, {.epochs = 1});
                           std::vector batches{torch::ones({1, 1})};
                           trainer.fit(batches, [&](auto& batch) { return net->forward(batch).sum(); });
                         });

}  // namespace
}  // namespace lockstep::testing
