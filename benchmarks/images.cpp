// SPDX-License-Identifier: BSD-3-Clause
// Passes over a folder of pictures and does nothing else. The Python twin is pytorch/images.py.
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/data/loader.h>
#include <lockstep/data/vision.h>
#include <lockstep/transforms/transforms.h>

using namespace lockstep::transforms;
using Clock = std::chrono::steady_clock;

struct Flags {
  std::string folder;
  int workers = 1;
  std::int64_t batch_size = 64;
  int passes = 2;
  bool scaled = false;
  std::string index{};
};

double resident_mib() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t all = 0;
  std::int64_t resident = 0;
  statm >> all >> resident;
  return static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

nlohmann::json run(const Flags& flags) {
  torch::manual_seed(0);
  torch::set_num_threads(1);
  const auto opening = Clock::now();
  const lockstep::data::ImageFolder dataset(
      flags.folder, {.transform = Compose(RandomResizedCrop(224), RandomHorizontalFlip(), ToTensor(),
                                          Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225})),
                     .scaled_decoding = flags.scaled,
                     .index_cache = flags.index});
  const std::chrono::duration<double> opened = Clock::now() - opening;
  lockstep::data::DataLoader loader(dataset, {.batch_size = flags.batch_size,
                                              .shuffle = true,
                                              .num_workers = flags.workers,
                                              .persistent_workers = flags.workers > 0});
  std::vector<double> rates;
  std::vector<double> resident;
  for (int pass = 0; pass < flags.passes; ++pass) {
    const auto start = Clock::now();
    std::int64_t samples = 0;
    for (auto& [images, targets] : loader) samples += targets.size(0);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    rates.push_back(static_cast<double>(samples) / seconds.count());
    resident.push_back(resident_mib());
  }
  return {{"images_per_second", rates},
          {"resident_mib", resident},
          {"files", dataset.size()},
          {"opening_seconds", opened.count()}};
}

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Passes over a folder of pictures");
  app.add_option("--folder", flags.folder)->required();
  app.add_option("--workers", flags.workers);
  app.add_option("--batch-size", flags.batch_size);
  app.add_option("--passes", flags.passes);
  app.add_flag("--scaled", flags.scaled, "Decode at a fraction of the size where the crop needs no more");
  app.add_option("--index", flags.index, "The folder's index cache");
  CLI11_PARSE(app, argc, argv);
  std::cout << run(flags) << std::endl;
}
