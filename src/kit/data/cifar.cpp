// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/data/vision.h>

#include "data/cifar_files.h"

namespace lockstep::data {
namespace {

ImageDataset cifar_images(const CifarFiles& files, const std::filesystem::path& root,
                          const CIFAROptions& options) {
  const auto batch = load_cifar(files, root, options.train, options.sources,
                                {.download = options.download, .timeout = options.timeout});
  return {batch.data,
          batch.target,
          {.normalize = options.normalize,
           .transform = options.transform,
           .target_transform = options.target_transform}};
}

std::map<std::string, std::int64_t> number_names(const std::vector<std::string>& names) {
  std::map<std::string, std::int64_t> numbers;
  for (const auto& name : names) numbers.emplace(name, numbers.size());
  return numbers;
}

}  // namespace

CIFAR10::CIFAR10(const std::filesystem::path& root, const CIFAROptions& options)
    : ImageDataset(cifar_images(cifar10_files(), root, options)) {}

const std::vector<std::string>& CIFAR10::classes() {
  static const std::vector<std::string> names{"airplane", "automobile", "bird",  "cat",  "deer",
                                              "dog",      "frog",       "horse", "ship", "truck"};
  return names;
}

std::map<std::string, std::int64_t> CIFAR10::class_to_idx() { return number_names(classes()); }

CIFAR100::CIFAR100(const std::filesystem::path& root, const CIFAROptions& options)
    : ImageDataset(cifar_images(cifar100_files(), root, options)) {}

const std::vector<std::string>& CIFAR100::classes() {
  static const std::vector<std::string> names{
      "apple",       "aquarium_fish", "baby",      "bear",       "beaver",       "bed",
      "bee",         "beetle",        "bicycle",   "bottle",     "bowl",         "boy",
      "bridge",      "bus",           "butterfly", "camel",      "can",          "castle",
      "caterpillar", "cattle",        "chair",     "chimpanzee", "clock",        "cloud",
      "cockroach",   "couch",         "crab",      "crocodile",  "cup",          "dinosaur",
      "dolphin",     "elephant",      "flatfish",  "forest",     "fox",          "girl",
      "hamster",     "house",         "kangaroo",  "keyboard",   "lamp",         "lawn_mower",
      "leopard",     "lion",          "lizard",    "lobster",    "man",          "maple_tree",
      "motorcycle",  "mountain",      "mouse",     "mushroom",   "oak_tree",     "orange",
      "orchid",      "otter",         "palm_tree", "pear",       "pickup_truck", "pine_tree",
      "plain",       "plate",         "poppy",     "porcupine",  "possum",       "rabbit",
      "raccoon",     "ray",           "road",      "rocket",     "rose",         "sea",
      "seal",        "shark",         "shrew",     "skunk",      "skyscraper",   "snail",
      "snake",       "spider",        "squirrel",  "streetcar",  "sunflower",    "sweet_pepper",
      "table",       "tank",          "telephone", "television", "tiger",        "tractor",
      "train",       "trout",         "tulip",     "turtle",     "wardrobe",     "whale",
      "willow_tree", "wolf",          "woman",     "worm"};
  return names;
}

std::map<std::string, std::int64_t> CIFAR100::class_to_idx() { return number_names(classes()); }

}  // namespace lockstep::data
