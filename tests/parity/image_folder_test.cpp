// SPDX-License-Identifier: BSD-3-Clause
// Folders that Python draws: ImageFolder and DatasetFolder list the same samples as torchvision's.
#include <string>

#include <gtest/gtest.h>

#include <lockstep/data/loader.h>
#include <lockstep/data/vision.h>
#include <lockstep/serialize/torch_file.h>
#include <lockstep/transforms/transforms.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

constexpr int kCases = 500;

std::vector<std::string> strings_of(const Value& list) {
  std::vector<std::string> strings;
  for (const auto& item : list.as_items()) strings.push_back(item.as_string());
  return strings;
}

data::DatasetFolder open(const Dict& drawn) {
  const std::string root = drawn.at("root").as_string();
  data::DatasetFolderOptions options{.allow_empty = drawn.at("allow_empty").as_bool()};
  if (!drawn.contains("extensions")) return data::ImageFolder(root, options);
  options.extensions = strings_of(drawn.at("extensions"));
  return {root, [](const std::filesystem::path&) { return at::Tensor(); }, options};
}

void expect_equal(const data::DatasetFolder& dataset, const Dict& expected) {
  EXPECT_EQ(dataset.classes(), strings_of(expected.at("classes")));
  std::map<std::string, std::int64_t> class_to_idx;
  for (const auto& [name, index] : expected.at("class_to_idx").as_dict()) {
    class_to_idx[name.as_string()] = index.as_int();
  }
  EXPECT_EQ(dataset.class_to_idx(), class_to_idx);
  std::vector<std::string> paths;
  for (std::int64_t i = 0; i < dataset.size(); ++i) paths.push_back(dataset.path(i).string());
  EXPECT_EQ(paths, strings_of(expected.at("paths")));
  std::vector<std::int64_t> targets;
  for (const auto& target : expected.at("targets").as_items()) targets.push_back(target.as_int());
  EXPECT_TRUE(at::equal(dataset.targets(), at::tensor(targets, at::kLong)));
}

TEST(ImageFolder, ListsTheSamplesOfTorchvision) {
  const TempFolder folder;
  run_python("parity/folder_cases.py", {.args = {folder.path().string(), std::to_string(kCases)}});
  int refused = 0;
  const auto cases = load(folder.file("cases.pt"));
  for (const auto& drawn : cases.as_items()) {
    const auto& expected = drawn.as_dict();
    SCOPED_TRACE(expected.at("root").as_string());
    if (expected.contains("error")) {
      EXPECT_THROW(open(expected), DataError);
      ++refused;
    } else {
      expect_equal(open(expected), expected);
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, kCases / 2);
}

transforms::Transform transform_of(const std::string& kind) {
  using namespace transforms;
  const ToDtype convert(at::kFloat, {.scale = true});
  const Normalize normalize({0.4, 0.5, 0.6}, {0.2, 0.3, 0.25});
  if (kind == "train") return Compose(RandomResizedCrop(24), RandomHorizontalFlip(), convert, normalize);
  if (kind == "crop") return Compose(RandomCrop(15), RandomVerticalFlip(), convert, normalize);
  if (kind == "evaluate")
    return Compose(std::vector<Transform>{Resize(30), CenterCrop(24), convert, normalize});
  return Compose(CenterCrop(40), convert, normalize);
}

// ImageFolder decodes only what the first crop takes, by the header's size.
TEST(ImageFolder, SeededBatchesEqualThoseOfTorchvision) {
  constexpr std::uint64_t kSeed = 12345678901234567890U;
  const TempFolder folder;
  run_python("parity/folder_batches.py", {.args = {folder.path().string(), std::to_string(kSeed), "2"}});
  const auto expected = load(folder.file("batches.pt"));
  for (const std::string kind : {"train", "crop", "evaluate", "center"}) {
    const data::ImageFolder dataset(folder / "pictures", {.transform = transform_of(kind)});
    data::DataLoader loader(dataset, {.batch_size = 7, .num_workers = 1, .augmentation_seed = kSeed});
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      loader.set_epoch(epoch);
      std::vector<at::Tensor> batches;
      for (auto& [images, targets] : loader) batches.push_back(images);
      const auto python = expected[kind + " " + std::to_string(epoch)].as_tensor();

      EXPECT_TRUE(at::equal(at::cat(batches), python)) << kind << " " << epoch;
    }
  }
}

// Pictures with an orientation, and PNG files with 16 bits per channel.
TEST(ImageFolder, SamplesEqualThoseOfTorchvision) {
  const TempFolder folder;
  run_python("parity/folder_samples.py", {.args = {folder.path().string()}});
  const auto expected = load(folder.file("samples.pt"));
  for (const bool turned : {false, true}) {
    for (const bool cropped : {false, true}) {
      data::DatasetFolderOptions options{.apply_exif_orientation = turned};
      if (cropped) options.transform = transforms::CenterCrop(14);
      const data::ImageFolder dataset(folder / "pictures", options);
      const auto kind = std::string(turned ? "turned" : "stored") + (cropped ? " cropped" : "");
      const auto& samples = expected[kind].as_items();
      ASSERT_EQ(dataset.size(), std::ssize(samples));
      for (std::int64_t i = 0; i < dataset.size(); ++i) {
        const auto sample = dataset.get_batch(at::full({1}, i, at::kLong)).data[0];
        EXPECT_TRUE(at::equal(sample, samples[static_cast<std::size_t>(i)].as_tensor()))
            << dataset.path(i) << ", " << kind;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
