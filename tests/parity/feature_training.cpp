// SPDX-License-Identifier: BSD-3-Clause
#include "parity/feature_training.h"

#include <sstream>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "parity/models/gpt.h"
#include "parity/models/mnist_nets.h"
#include "parity/models/resnet.h"
#include "parity/models/special_nets.h"

namespace lockstep::testing {
namespace {

constexpr std::uint64_t kFeatureSeed = 23;
constexpr int kBatch = 8;
constexpr double kRate = 0.05;
constexpr double kMomentum = 0.9;

template <typename T>
std::vector<T> numbers_in(const std::string& text) {
  std::vector<T> numbers;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) numbers.push_back(static_cast<T>(std::stod(word)));
  return numbers;
}

std::vector<float> dense_values_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  auto plain = tensor.detach();
  if (plain.is_sparse()) plain = plain.to_dense();
  if (plain.is_complex()) plain = at::view_as_real(plain);
  plain = plain.to(at::kFloat).contiguous();
  return {plain.const_data_ptr<float>(), plain.const_data_ptr<float>() + plain.numel()};
}

// The logits of each net for images [batch, 1, 28, 28].
template <typename Ddp>
at::Tensor logits(Ddp& ddp, TiedNet&, const at::Tensor& images, int) {
  return ddp->forward(images);
}
template <typename Ddp>
at::Tensor logits(Ddp& ddp, ResNet18&, const at::Tensor& images, int) {
  return ddp->forward(images);
}
template <typename Ddp>
at::Tensor logits(Ddp& ddp, Gpt&, const at::Tensor& images, int) {
  const auto ids = (images.flatten(1).narrow(1, 0, 16).abs() * 20).to(at::kLong).clamp(0, 63);
  return ddp->forward(ids).select(1, -1).narrow(1, 0, 10);
}
template <typename Ddp>
at::Tensor logits(Ddp& ddp, Experts&, const at::Tensor& images, int which) {
  return ddp->forward(images, which).first;
}
template <typename Ddp, typename Net>
at::Tensor logits(Ddp& ddp, Net&, const at::Tensor& images, int which) {
  return ddp->forward(images, which);
}

CommHook hook_of(const FeatureCase& each) {
  PowerSGDOptions power{.start_powerSGD_iter = 3, .orthogonalization_epsilon = 1e-8};
  const auto& name = each.hook;
  if (name == "allreduce") return allreduce_hook;
  if (name == "fp16") return fp16_compress_hook;
  if (name == "bf16") return bf16_compress_hook;
  if (name == "fp16_wrapper") return fp16_compress_wrapper(allreduce_hook);
  if (name == "bf16_wrapper") return bf16_compress_wrapper(allreduce_hook);
  if (name == "local_sgd" || name == "local_sgd_off") {
    return PostLocalSGD({.subgroup = new_group({get_rank()}),
                         .start_localSGD_iter = 3,
                         .post_local_gradient_allreduce = name == "local_sgd"});
  }
  if (name == "powersgd_rank3") power.matrix_approximation_rank = 3;
  if (name == "powersgd_no_feedback") power.use_error_feedback = false;
  if (name == "powersgd_cold") power.warm_start = false;
  if (name == "powersgd_batched") power.batch_tensors_with_same_shape = true;
  if (name == "powersgd_fp16") return fp16_compress_wrapper(PowerSGD(power));
  return PowerSGD(power);
}

DistributedDataParallelOptions options_of(const FeatureCase& each) {
  DistributedDataParallelOptions options{.find_unused_parameters = each.find_unused,
                                         .gradient_as_bucket_view = each.view,
                                         .static_graph = each.static_graph,
                                         .skip_all_reduce_unused_params = each.skip_unused,
                                         .bucket_cap_mb_list = numbers_in<double>(each.bucket_caps),
                                         .batched_grad_copy = each.batched,
                                         .lazy_bucket_allocation = each.lazy};
  if (each.bucket_cap_mb > 0) options.bucket_cap_mb = each.bucket_cap_mb;
  if (each.buffers == "off") options.broadcast_buffers = false;
  if (each.buffers == "forward_on") options.forward_sync_buffers = true;
  if (each.buffers == "forward_off") options.forward_sync_buffers = false;
  if (!each.delay.empty()) {
    options.delay_all_reduce_named_params = {each.delay};
    options.param_to_hook_all_reduce = each.trigger;
  }
  if (!each.ignore.empty()) options.params_and_buffers_to_ignore = {each.ignore};
  if (each.in_backward) {
    options.optimizer_in_backward = [](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(kRate));
    };
  }
  return options;
}

template <typename Net>
class FeatureTraining {
 public:
  FeatureTraining(const FeatureCase& each, Net& net)
      : case_(each),
        net_(net),
        ddp_(net, options_of(each)),
        optimizer_(ddp_->parameters(), torch::optim::SGDOptions(kRate).momentum(momentum(each))),
        source_(at::make_generator<at::CPUGeneratorImpl>(3000 + static_cast<std::uint64_t>(get_rank()))) {
    if (!each.hook.empty()) ddp_->register_comm_hook(hook_of(each));
    if (each.average_every > 0)
      averager_.emplace(PeriodicModelAveragerOptions{.period = each.average_every, .warmup_steps = 2});
  }

  std::vector<Record> run() {
    if (case_.batches.empty()) {
      for (int step = 0; step < case_.steps; ++step) train(step);
    } else {
      train_joined();
    }
    std::vector<Record> records{losses_};
    for (const auto& item : ddp_->named_parameters()) {
      records.push_back({item.key(), dense_values_of(item.value())});
      records.push_back({"grad:" + item.key(), dense_values_of(item.value().grad())});
    }
    for (const auto& item : ddp_->named_buffers())
      records.push_back({item.key(), dense_values_of(item.value())});
    records.push_back({.name = "bucket_sizes"});
    if (get_world_size() == 1 || !case_.batches.empty()) return records;
    for (const auto& bucket : ddp_->buckets()) {
      records.back().values.push_back(static_cast<float>(bucket.bytes));
    }
    return records;
  }

 private:
  // Sparse gradients have no momentum; nor do the twins of optimizers in backward.
  static double momentum(const FeatureCase& each) {
    return each.net == "sparse" || each.in_backward ? 0 : kMomentum;
  }

  void train_joined() {
    const auto counts = numbers_in<int>(case_.batches);
    const int count = counts.at(static_cast<std::size_t>(get_rank()) % counts.size());
    try {
      const auto join = ddp_->join({.divide_by_initial_world_size = case_.by_initial_size,
                                    .throw_on_early_termination = case_.stop_early});
      for (int step = 0; step < count; ++step) train(step);
    } catch (const Error&) {
      if (!case_.stop_early) throw;
      losses_.values.push_back(-1);
    }
  }

  void train(int step) {
    optimizer_.zero_grad(case_.set_to_none);
    for (int micro = 1; micro < case_.micro_steps; ++micro) {
      const auto guard = ddp_->no_sync();
      backward(step);
    }
    backward(step);
    if (case_.clip > 0) losses_.values.push_back(static_cast<float>(clip_grad_norm_(ddp_, case_.clip)));
    if (!case_.in_backward) optimizer_.step();
    if (averager_) averager_->average_parameters(ddp_->parameters());
  }

  void backward(int step) {
    at::Tensor loss;
    for (int i = 0; i < case_.forwards; ++i) {
      const auto one = forward(step);
      loss = loss.defined() ? loss + one : one;
    }
    loss.backward();
    losses_.values.push_back(loss.template item<float>());
  }

  at::Tensor forward(int step) {
    const auto images = at::randn({kBatch, 1, 28, 28}, source_);
    const auto labels = at::randint(10, {kBatch}, source_, at::kLong);
    int which = step % 3;
    if (case_.own_experts) which = (step + get_rank()) % 3;
    if (case_.net == "one_expert") which = 1;
    return at::cross_entropy_loss(logits(ddp_, net_, images, which), labels);
  }

  const FeatureCase& case_;
  Net& net_;
  DistributedDataParallel<Net> ddp_;
  torch::optim::SGD optimizer_;
  std::optional<PeriodicModelAverager> averager_;
  at::Generator source_;
  Record losses_{.name = "losses"};
};

template <typename Net>
std::vector<Record> train(const FeatureCase& each, Net net) {
  return FeatureTraining<Net>(each, net).run();
}

}  // namespace

std::vector<Record> train_with_features(const FeatureCase& each) {
  manual_seed(kFeatureSeed);
  if (each.net == "experts" || each.net == "one_expert") return train(each, Experts(each.net == "experts"));
  if (each.net == "sparse") return train(each, SparseNet());
  if (each.net == "kinds") return train(each, Kinds());
  if (each.net == "reuse") return train(each, Reuse(each.checkpoint));
  if (each.net == "gpt") return train(each, Gpt(GptOptions{.checkpoint = each.checkpoint}));
  if (each.net == "resnet18") return train(each, ResNet18(8, 1));
  return train(each, TiedNet());
}

}  // namespace lockstep::testing
