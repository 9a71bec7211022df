// SPDX-License-Identifier: BSD-3-Clause
#include "parity/ddp_training.h"

#include <utility>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "parity/models/mnist_nets.h"

namespace lockstep::testing {
namespace {

constexpr std::uint64_t kSeed = 17;

at::Generator generator(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

std::pair<at::Tensor, at::Tensor> draw_batch(const at::Generator& source, int size) {
  auto images = at::randn({size, 1, 28, 28}, source);
  return {std::move(images), at::randint(10, {size}, source, at::kLong)};
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const auto flat = tensor.detach().to(at::kFloat).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

template <typename Ddp>
class Training {
 public:
  Training(const DdpCase& each, Ddp& ddp)
      : case_(each), ddp_(ddp), optimizer_(ddp->parameters(), torch::optim::SGDOptions(1e-2)) {}

  std::vector<Record> run() {
    case_.loader ? two_epochs() : drawn_batches();
    std::vector<Record> records{losses_};
    for (const auto& item : ddp_->named_parameters())
      records.push_back({item.key(), values_of(item.value())});
    for (const auto& item : ddp_->named_buffers()) records.push_back({item.key(), values_of(item.value())});
    if (get_world_size() > 1) records.push_back(bucket_sizes());
    return records;
  }

 private:
  void drawn_batches() {
    const auto source = generator(1000 + static_cast<std::uint64_t>(get_rank()));
    for (int step = 0; step < case_.steps; ++step) {
      optimizer_.zero_grad(case_.set_to_none);
      for (int micro = 1; micro < case_.micro_steps; ++micro) {
        const auto guard = ddp_->no_sync();
        backward(source);
      }
      backward(source);
      optimizer_.step();
      if (case_.probe_every > 0 && step % case_.probe_every == 0) probe(source);
    }
  }

  void two_epochs() {
    const auto source = generator(1);
    const auto images = at::randint(256, {403, 28, 28}, source, at::kByte);
    const auto labels = at::randint(10, {403}, source, at::kLong);
    const data::ImageDataset dataset(images, labels, {.normalize = transforms::Normalize({0.5}, {0.5})});
    data::DataLoader loader(dataset, {.batch_size = case_.batch_size, .shuffle = true, .seed = 3});
    for (int epoch = 0; epoch < 2; ++epoch) {
      loader.set_epoch(epoch);
      for (auto& [batch, targets] : loader) {
        optimizer_.zero_grad(case_.set_to_none);
        backward(batch, targets);
        optimizer_.step();
      }
    }
  }

  void backward(const at::Generator& source) {
    const auto [images, labels] = draw_batch(source, case_.batch_size);
    backward(images, labels);
  }

  void backward(const at::Tensor& images, const at::Tensor& labels) {
    auto loss = at::cross_entropy_loss(ddp_->forward(images), labels);
    loss.backward();
    losses_.values.push_back(loss.template item<float>());
  }

  // BatchNorm's statistics change differently on each rank.
  void probe(const at::Generator& source) {
    const torch::NoGradGuard no_grad;
    const auto [images, labels] = draw_batch(source, case_.batch_size);
    losses_.values.push_back(at::cross_entropy_loss(ddp_->forward(images), labels).template item<float>());
  }

  Record bucket_sizes() const {
    Record record{.name = "rebuilt_bucket_sizes"};
    for (const auto& bucket : ddp_->buckets()) record.values.push_back(static_cast<float>(bucket.bytes));
    return record;
  }

  const DdpCase& case_;
  Ddp& ddp_;
  torch::optim::SGD optimizer_;
  Record losses_{.name = "losses"};
};

template <typename Net>
std::vector<Record> train(const DdpCase& each) {
  manual_seed(kSeed + (each.seed_by_rank ? static_cast<std::uint64_t>(get_rank()) : 0));
  Net net;
  if (each.gradients_first) net->forward(at::ones({2, 1, 28, 28})).square().mean().backward();
  DistributedDataParallelOptions options{.gradient_as_bucket_view = each.gradient_as_bucket_view};
  if (each.bucket_cap_mb > 0) options.bucket_cap_mb = each.bucket_cap_mb;
  DistributedDataParallel ddp(net, options);
  return Training<DistributedDataParallel<Net>>(each, ddp).run();
}

}  // namespace

std::vector<Record> train_with_ddp(const DdpCase& each) {
  return each.net == "mnist" ? train<MnistNet>(each) : train<TiedNet>(each);
}

}  // namespace lockstep::testing
