// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/cuda/Sleep.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "gpu/check.h"

namespace lockstep::gpu {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);

data::ImageDataset make_images(const c10::Device& device) {
  torch::manual_seed(1);
  return {torch::randint(256, {5000, 28, 28}, at::kByte).to(device),
          torch::randint(10, {5000}, at::kLong).to(device),
          {.normalize = transforms::Normalize({0.1307}, {0.3081})}};
}

std::vector<data::Batch> batches_of(const data::ImageDataset& images,
                                    const data::DataLoaderOptions& options) {
  data::DataLoader loader(images, options);
  std::vector<data::Batch> batches;
  for (auto& batch : loader) batches.push_back({batch.data.cpu(), batch.target.cpu()});
  return batches;
}

void require_same(const std::vector<data::Batch>& actual, const std::vector<data::Batch>& expected,
                  const std::string& what) {
  require(actual.size() == expected.size(), what + ": as many batches");
  for (std::size_t i = 0; i < actual.size(); ++i) {
    require(
        torch::equal(actual[i].data, expected[i].data) && torch::equal(actual[i].target, expected[i].target),
        what);
  }
}

void ways_to_the_gpu() {
  const auto images = make_images(c10::kCPU);
  const data::DataLoaderOptions plain{.batch_size = 64, .shuffle = true, .seed = 3};
  const auto expected = batches_of(images, plain);
  auto moved = plain;
  moved.device = kGpu;
  require_same(batches_of(images, moved), expected, "device");
  moved.pin_memory = true;
  require_same(batches_of(images, moved), expected, "device and pin_memory");
  moved.num_workers = 3;
  require_same(batches_of(images, moved), expected, "device, pin_memory and workers");
  require_same(batches_of(make_images(kGpu), plain), expected, "a data set on the GPU");
  auto pinned = plain;
  pinned.pin_memory = true;
  for (auto& batch : data::DataLoader(images, pinned)) {
    require(batch.data.is_pinned() && batch.target.is_pinned(), "batches are pinned");
    break;
  }
}

// A slow step reads its batch late: the copies of later batches must not have overwritten it.
void batches_are_kept() {
  const auto images = make_images(c10::kCPU);
  const auto expected = batches_of(images, {.batch_size = 64});
  data::DataLoader loader(images, {.batch_size = 64, .num_workers = 2, .pin_memory = true, .device = kGpu});
  std::vector<at::Tensor> sums;
  for (auto& batch : loader) {
    at::cuda::sleep(4'000'000);
    sums.push_back(batch.data.to(at::kDouble).sum());
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double sum = expected[i].data.to(at::kDouble).sum().item<double>();
    require(std::abs(sums[i].item<double>() - sum) < 1e-6 * (1 + std::abs(sum)),
            "a batch is what it was when the loader gave it");
  }
}

}  // namespace

std::vector<Check> loader_checks() {
  return {
      {"loader", 1, "all ways to get batches to the GPU give the same batches", ways_to_the_gpu},
      {"loader_memory", 1, "batches are not overwritten before a slow step has read them", batches_are_kept},
  };
}

}  // namespace lockstep::gpu
