// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace lockstep::testing {

struct ResumeNetImpl : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(8, 16))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(16))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.3))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(16, 3))};

  at::Tensor forward(const at::Tensor& x) {
    return second->forward(dropout->forward(torch::relu(norm->forward(first->forward(x)))));
  }
};
TORCH_MODULE(ResumeNet);

inline data::TensorDataset resume_data(std::int64_t count) {
  return {torch::sin(torch::arange(count * 8, torch::kDouble)).to(torch::kFloat).view({count, 8}),
          torch::arange(count).remainder(3)};
}

/// Samples that are told apart by their first feature, the others with noise if asked.
struct ResumeData {
  data::TensorDataset samples;
  bool noisy;

  std::int64_t size() const { return samples.size(); }
  data::Batch get_batch(const at::Tensor& indices) const {
    auto batch = samples.get_batch(indices);
    if (noisy) batch.data.narrow(1, 1, 7).add_(torch::randn({indices.numel(), 7}), 0.1);
    return batch;
  }
};

/// LOADER_THREADS: how many workers load, with random augmentation then.
inline int loader_threads() {
  const char* const count = std::getenv("LOADER_THREADS");
  return count == nullptr ? 0 : std::stoi(count);
}

/// Training with everything that has a state: shuffling, dropout, batch norm, momentum, accumulation over two
/// batches, a scheduler; with loader threads random augmentation too. Twin, without them: resume_training.py.
/// Under init() it is distributed.
class ResumeTraining {
 public:
  static constexpr std::int64_t kSamples = 203;

  /// With `keep_gradients` it may stop between the steps of the optimizer. With `local_gradients` ranks have
  /// gradients of their own there.
  explicit ResumeTraining(std::int64_t seed = 1, bool keep_gradients = false, bool local_gradients = false)
      : local_gradients_(local_gradients) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    net_ = ResumeNet();
    if (is_initialized()) ddp_.emplace(net_);
    optimizer_ =
        std::make_unique<torch::optim::SGD>(net_->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    scheduler_ = std::make_unique<optim::StepLR>(*optimizer_, 3, 0.7);
    loader_.emplace(ResumeData{.samples = resume_data(kSamples), .noisy = loader_threads() > 0},
                    data::DataLoaderOptions{
                        .batch_size = 4, .shuffle = true, .num_workers = loader_threads(), .seed = 3});
    if (is_initialized()) lockstep::manual_seed(static_cast<std::uint64_t>(100 + get_rank()));
    state_.add("model", net_)
        .add("optimizer", *optimizer_)
        .add("scheduler", *scheduler_)
        .add("loader", *loader_);
    state_.add("epoch", epoch_).add("step", step_).add_generator();
    if (keep_gradients) state_.add("batches", batches_).add_gradients("gradients", net_);
  }

  void train(std::int64_t until) {
    run([&] { return step_ == until; });
  }
  void train_batches(std::int64_t until) {
    run([&] { return batches_ == until; });
  }

  const TrainingState& state() const { return state_; }
  std::int64_t epoch() const { return epoch_; }
  /// The first feature of every sample trained on, in order: which sample it was.
  std::vector<float> seen;

 private:
  template <typename Done>
  void run(const Done& done) {
    for (;; ++epoch_) {
      loader_->set_epoch(epoch_);
      for (auto& [inputs, target] : *loader_) {
        for (const auto& index : inputs.select(1, 0).unbind()) seen.push_back(index.template item<float>());
        backward(inputs, target);
        if (++batches_ % 2 == 0) step();
        if (done()) return;
      }
    }
  }

  void backward(const at::Tensor& inputs, const at::Tensor& target) {
    const bool local = local_gradients_ && ddp_ && batches_ % 2 == 0;
    const auto guard = local ? std::optional((*ddp_)->no_sync()) : std::nullopt;
    auto output = ddp_ ? (*ddp_)->forward(inputs) : net_->forward(inputs);
    (torch::nn::functional::cross_entropy(output, target) / 2).backward();
  }

  void step() {
    optimizer_->step();
    optimizer_->zero_grad();
    if (++step_ % 5 == 0) scheduler_->step();
  }

  bool local_gradients_;
  ResumeNet net_{nullptr};
  std::optional<DistributedDataParallel<ResumeNet>> ddp_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  std::unique_ptr<optim::StepLR> scheduler_;
  std::optional<data::DataLoader<ResumeData>> loader_;
  std::int64_t epoch_ = 0;
  std::int64_t step_ = 0;
  std::int64_t batches_ = 0;
  TrainingState state_;
};

}  // namespace lockstep::testing
