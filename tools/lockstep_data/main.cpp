// SPDX-License-Identifier: BSD-3-Clause
// `lockstep data`: a separate program, because it links LibTorch and `lockstep` does not.
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/data/image_folder.h>
#include <lockstep/data/images.h>
#include <lockstep/data/loader.h>

#include "program_main.h"
#include "transform_text.h"

namespace lockstep::data_tool {
namespace {

struct ShowOptions {
  std::string folder{};
  std::string transform = "Resize(224), CenterCrop(224)";
  std::string out = "grid.png";
  std::int64_t count = 32;
  std::int64_t nrow = 8;
  std::uint64_t seed = 0;
  bool in_order = false;
};

CLI::App* add_show(CLI::App& app, ShowOptions& options) {
  auto* show = app.add_subcommand(
      "show", "Draw samples of a folder of images, one subfolder per class, as training sees them");
  show->add_option("FOLDER", options.folder, "The folder")->required();
  show->add_option("--transform", options.transform,
                   "Transforms with torchvision's names and arguments, separated by commas: "
                   "'RandomResizedCrop(224), RandomHorizontalFlip()'; a Normalize is not drawn")
      ->capture_default_str();
  show->add_option("--out", options.out, "The picture to write: .png, .jpg or .jpeg")->capture_default_str();
  show->add_option("--count", options.count, "Number of samples")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  show->add_option("--nrow", options.nrow, "Samples per row")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  show->add_option("--seed", options.seed, "Seed of the order and of the transforms")->capture_default_str();
  show->add_flag("--in-order", options.in_order, "The first samples of the folder instead of random ones");
  return show;
}

// For each row of the picture, the classes of its samples.
void print_classes(const at::Tensor& targets, const std::vector<std::string>& classes, std::int64_t nrow) {
  for (std::int64_t first = 0; first < targets.size(0); first += nrow) {
    std::vector<std::string_view> names;
    for (std::int64_t i = first; i < std::min(first + nrow, targets.size(0)); ++i) {
      names.push_back(classes[static_cast<std::size_t>(targets[i].item<std::int64_t>())]);
    }
    std::cout << fmt::format("row {}: {}\n", first / nrow + 1, fmt::join(names, ", "));
  }
}

int show(const ShowOptions& options) {
  auto steps = transforms_of(options.transform);
  const bool normalized = std::erase_if(steps, [](const transforms::Transform& step) {
                            return step.target<transforms::Normalize>() != nullptr;
                          }) > 0;
  if (steps.empty()) throw ArgumentError("--transform: names no transform that changes the picture");
  const transforms::Compose<> transform(steps);
  const data::ImageFolder folder(options.folder, {.transform = transform});
  std::cout << fmt::format("{}: {} files of {} classes\n{}\n", options.folder, folder.size(),
                           folder.classes().size(), transform.to_string());
  auto loader = data::make_loader(folder, {.batch_size = std::min(options.count, folder.size()),
                                           .shuffle = !options.in_order,
                                           .seed = static_cast<std::int64_t>(options.seed),
                                           .augmentation_seed = options.seed,
                                           .distributed = false});
  const auto [images, targets] = *loader.begin();
  data::save_image(images, options.out, {.nrow = options.nrow});
  print_classes(targets, folder.classes(), options.nrow);
  std::cout << fmt::format("wrote {}{}\n", options.out, normalized ? ", without the normalization" : "")
            << std::flush;
  return 0;
}

}  // namespace
}  // namespace lockstep::data_tool

int main(int argc, char** argv) {
  using namespace lockstep::data_tool;
  CLI::App app("Look at data sets, without Python", "lockstep data");
  return lockstep::run_program(app, [&] {
    ShowOptions options;
    app.require_subcommand(1);
    add_show(app, options);
    app.parse(argc, argv);
    return show(options);
  });
}
