// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// What the fragments of pages and headers use without declaring it: names that a reader knows from the text around them.
// Fragments are compiled and not linked, so nothing here is defined.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <lockstep/lockstep.h>

namespace prelude {

namespace F = torch::nn::functional;
namespace tp = lockstep::tensor_parallel;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  void reset() override;
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask = {});
  torch::nn::ModuleList layers;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

extern Net net;
extern std::shared_ptr<NetImpl> module;
extern lockstep::DistributedDataParallel<Net> ddp;
extern lockstep::FSDPModule sharded;
extern std::vector<at::Tensor> decay, others;
extern torch::optim::AdamW optimizer;
extern lockstep::optim::StepLR schedule;
extern lockstep::Trainer trainer;
extern lockstep::TrainingState training;
extern lockstep::CheckpointManager manager;

extern const lockstep::Context context;
extern lockstep::ProcessGroup group;
extern lockstep::DeviceMesh mesh;

extern const lockstep::data::ImageDataset dataset, train_set, test_set;
extern lockstep::data::DataLoader<lockstep::data::ImageDataset> loader, test_loader, val_loader;
double accuracy_of(auto&& data);
at::Tensor loss_fn(const at::Tensor& output, const at::Tensor& target);

extern const lockstep::data::ImageFolder train_images, val_images;
extern std::vector<lockstep::data::Batch> batches_of_this_rank;
at::Tensor train(const at::Tensor& images, const at::Tensor& labels);
extern const std::filesystem::path folder;

extern Net block;
extern lockstep::MixtureOfExperts moe;
extern at::Tensor mask;
extern const double perplexity;

extern at::Tensor x, y, sum, target, loss, images, labels, inputs, targets, tokens;
extern std::int64_t epoch, epochs, step;
extern std::uint64_t seed;

}  // namespace prelude
