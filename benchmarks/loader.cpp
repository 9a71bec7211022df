// SPDX-License-Identifier: BSD-3-Clause
// Passes over a loader and does nothing else. The Python twin is pytorch/loader.py.
#include <chrono>
#include <iostream>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/data/dataset.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/data/sampler.h>
#include <lockstep/data/vision.h>

namespace lockstep::bench::loader {

using Clock = std::chrono::steady_clock;
using at::indexing::Slice;

struct Flags {
  std::string dataset = "images";
  int workers = 0;
  std::int64_t batch_size = 128;
  std::int64_t samples = 0;
  int passes = 4;
};

// What training on small colour images draws for each of them: a crop of the padded image, a flip, some
// noise.
class Augmented {
 public:
  explicit Augmented(std::int64_t count)
      : images_(torch::randint(256, {count, 3, 32, 32}, torch::kByte)),
        labels_(torch::arange(count).remainder(10)) {}

  std::int64_t size() const { return images_.size(0); }
  lockstep::data::Batch get_batch(const at::Tensor& indices) const {
    std::vector<at::Tensor> images;
    for (std::int64_t i = 0; i < indices.numel(); ++i)
      images.push_back(augmented(images_[indices[i].item<std::int64_t>()]));
    return {.data = torch::stack(images), .target = labels_.index_select(0, indices)};
  }

 private:
  static at::Tensor augmented(const at::Tensor& image) {
    auto padded = torch::constant_pad_nd(image, {4, 4, 4, 4});
    const auto place = torch::randint(9, {2}, torch::kLong);
    const auto top = place[0].item<std::int64_t>();
    const auto left = place[1].item<std::int64_t>();
    auto floats =
        padded.index({Slice(), Slice(top, top + 32), Slice(left, left + 32)}).to(torch::kFloat).div_(255);
    if (torch::rand({1}).item<float>() < 0.5F) floats = floats.flip(2);
    return floats.add_(torch::randn({3, 32, 32}), 0.05);
  }

  at::Tensor images_;
  at::Tensor labels_;
};

template <typename Dataset>
nlohmann::json measure(const Dataset& dataset, const Flags& flags) {
  lockstep::data::DataLoader loader(
      dataset, {.batch_size = flags.batch_size, .shuffle = true, .num_workers = flags.workers});
  std::vector<double> rates;
  for (int pass = 0; pass < flags.passes; ++pass) {
    const auto start = Clock::now();
    std::int64_t samples = 0;
    for (auto& [data, target] : loader) samples += target.size(0);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    rates.push_back(static_cast<double>(samples) / seconds.count());
  }
  return {{"samples_per_second", rates}};
}

nlohmann::json run(const Flags& flags) {
  torch::manual_seed(0);
  if (flags.dataset == "augmented")
    return measure(Augmented(flags.samples == 0 ? 5000 : flags.samples), flags);
  const auto count = flags.samples == 0 ? 60000 : flags.samples;
  return measure(lockstep::data::ImageDataset(torch::randint(256, {count, 28, 28}, torch::kByte),
                                              torch::arange(count).remainder(10),
                                              {.normalize = lockstep::transforms::Normalize({0.5}, {0.5})}),
                 flags);
}

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Passes over a data loader");
  app.add_option("--dataset", flags.dataset)->check(CLI::IsMember({"images", "augmented"}));
  app.add_option("--workers", flags.workers);
  app.add_option("--batch-size", flags.batch_size);
  app.add_option("--samples", flags.samples, "0: 60000 images, or 5000 that are augmented");
  app.add_option("--passes", flags.passes);
  CLI11_PARSE(app, argc, argv);
  std::cout << run(flags) << std::endl;
  return 0;
}

}  // namespace lockstep::bench::loader
