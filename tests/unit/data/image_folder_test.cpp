// SPDX-License-Identifier: BSD-3-Clause
#include <filesystem>
#include <fstream>
#include <string>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/data/images.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/data/vision.h>
#include <lockstep/transforms/transforms.h>

#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void touch(const fs::path& file) {
  fs::create_directories(file.parent_path());
  std::ofstream(file).put('x');
}

// Every file holds the picture of one color: the number of the sample.
void write_pictures(const fs::path& root, int per_class) {
  int color = 0;
  for (const auto* name : {"cat", "dog"}) {
    fs::create_directories(root / name);
    for (int i = 0; i < per_class; ++i, ++color) {
      data::save_image(at::full({3, 4, 5}, color, at::kByte), root / name / (std::to_string(i) + ".png"));
    }
  }
}

at::Tensor first_values(const at::Tensor& images) { return images.flatten(1).select(1, 0).to(at::kLong); }

class ImageFolderTest : public ::testing::Test {
 protected:
  fs::path root() const { return folder_ / "pictures"; }

  TempFolder folder_{};
};

TEST_F(ImageFolderTest, GuessesOfPositions) {
  write_pictures(root(), 2);
  const datasets::ImageFolder dataset(root(),
                                      transforms::Compose({transforms::Resize(2), transforms::ToTensor()}),
                                      [](std::int64_t target) { return target + 10; });
  const auto batch = dataset.get_batch(at::tensor({3}, at::kLong));
  EXPECT_EQ(batch.data.sizes(), at::IntArrayRef({1, 3, 2, 2}));
  EXPECT_EQ(batch.target.item<std::int64_t>(), 11);
  EXPECT_THROW(datasets::CIFAR10(root(), true, transforms::ToTensor()), DataError);
  EXPECT_THROW(datasets::MNIST(root(), false, transforms::ToTensor(), {}, false), DataError);
}

TEST_F(ImageFolderTest, BatchesHoldTransformedPicturesAndTargets) {
  write_pictures(root(), 3);
  const data::ImageFolder dataset(
      root(), {.transform = [](const at::Tensor& image) { return image.to(at::kFloat).mul(2); },
               .target_transform = [](std::int64_t target) { return target + 10; }});
  EXPECT_THAT(dataset.classes(), ElementsAre("cat", "dog"));
  const auto batch = dataset.get_batch(at::tensor({5, 0}, at::kLong));
  EXPECT_EQ(batch.data.sizes(), at::IntArrayRef({2, 3, 4, 5}));
  EXPECT_EQ(batch.data.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(first_values(batch.data), at::tensor({10, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({11, 10}, at::kLong)));
}

TEST_F(ImageFolderTest, ALinkThatLeadsBackIsNamed) {
  touch(root() / "a/x/1.png");
  fs::create_directory_symlink(root() / "a", root() / "a/x/back");
  EXPECT_THAT(error_of<DataError>([&] { data::ImageFolder{root()}; }),
              HasSubstr("a/x/back: the link leads back"));
}

TEST_F(ImageFolderTest, ALinkToAnotherFolderIsFollowed) {
  touch(root() / "a/1.png");
  touch(folder_ / "elsewhere/2.png");
  fs::create_directory_symlink(folder_ / "elsewhere", root() / "a/link");
  EXPECT_EQ(data::ImageFolder(root()).size(), 2);
}

TEST_F(ImageFolderTest, ProblemsNameTheFolderOrTheClass) {
  EXPECT_THAT(error_of<DataError>([&] { data::ImageFolder{root()}; }),
              HasSubstr("pictures: the folder cannot be read"));
  touch(folder_ / "file");
  EXPECT_THAT(error_of<DataError>([&] { data::ImageFolder{folder_ / "file"}; }),
              HasSubstr("file: the folder cannot be read"));
  fs::create_directories(root());
  EXPECT_THAT(error_of<DataError>([&] { data::ImageFolder{root()}; }),
              HasSubstr("pictures: no class folder"));
  touch(root() / "a/1.png");
  touch(root() / "b/1.txt");
  EXPECT_THAT(error_of<DataError>([&] { data::ImageFolder{root()}; }),
              HasSubstr("no valid file for the class b"));
  EXPECT_EQ(data::ImageFolder(root(), {.allow_empty = true}).size(), 1);
}

TEST_F(ImageFolderTest, APredicateAndOtherClassesReplaceTheDefaults) {
  touch(root() / "a/1.raw");
  touch(root() / "b/2.raw");
  const data::ImageFolder dataset(
      root(), {.is_valid_file = [](const fs::path& file) { return file.extension() == ".raw"; },
               .find_classes =
                   [](const fs::path&) {
                     return data::FolderClasses{.classes = {"b"}, .class_to_idx = {{"b", 7}}};
                   }});
  EXPECT_EQ(dataset.path(0), root() / "b/2.raw");
  EXPECT_TRUE(at::equal(dataset.targets(), at::tensor({7}, at::kLong)));
}

TEST_F(ImageFolderTest, OptionsThatExcludeEachOtherAreRefused) {
  const auto any = [](const fs::path&) { return true; };
  const std::vector<std::string> png = {".png"};
  EXPECT_THROW(data::ImageFolder(root(), {.extensions = png, .is_valid_file = any}), ArgumentError);
  EXPECT_THROW(data::ImageFolder(root(), {.is_valid_file = any, .index_cache = folder_ / "index"}),
               ArgumentError);
  EXPECT_THROW(
      data::ImageFolder(root(), {.find_classes = data::find_classes, .index_cache = folder_ / "index"}),
      ArgumentError);
}

TEST_F(ImageFolderTest, OptionsOfPicturesAreRefusedForOtherSamples) {
  const auto loader = [](const fs::path&) { return at::zeros({1}); };
  touch(root() / "a/1.png");
  for (const data::DatasetFolderOptions& options : {data::DatasetFolderOptions{.scaled_decoding = true},
                                                    {.apply_exif_orientation = true},
                                                    {.max_pixels = 5}}) {
    EXPECT_THAT(error_of<ArgumentError>([&] { data::DatasetFolder(root(), loader, options); }),
                HasSubstr("options of ImageFolder"));
  }
}

TEST_F(ImageFolderTest, PicturesOfMoreThanMaxPixelsAreRefused) {
  write_pictures(root(), 1);
  const auto first = at::zeros({1}, at::kLong);
  for (const auto& transform : std::vector<std::optional<transforms::Transform>>{
           std::nullopt, transforms::Transform(transforms::CenterCrop(2))}) {
    const data::ImageFolder refusing(root(), {.transform = transform, .max_pixels = 19});
    EXPECT_THAT(error_of<DataError>([&] { refusing.get_batch(first); }),
                HasSubstr("cat/0.png: the header gives 5 x 4 pixels, more than the limit of 19"));
    const data::ImageFolder reading(root(), {.transform = transform, .max_pixels = 20});
    EXPECT_NO_THROW(reading.get_batch(first));
  }
}

TEST_F(ImageFolderTest, UnreadableFilesAreRaisedSkippedOrReplaced) {
  write_pictures(root(), 3);
  fs::resize_file(root() / "cat/1.png", 20);
  const auto all = at::arange(3, at::kLong);
  const data::ImageFolder raising(root());
  EXPECT_THAT(error_of<DataError>([&] { raising.get_batch(all); }), HasSubstr("cat/1.png: libpng:"));
  const data::ImageFolder skipping(root(), {.on_unreadable = data::OnUnreadable::skip});
  EXPECT_TRUE(at::equal(first_values(skipping.get_batch(all).data), at::tensor({0, 2}, at::kLong)));
  EXPECT_EQ(skipping.unreadable(), 1);
  const data::ImageFolder replacing(root(), {.on_unreadable = data::OnUnreadable::replace});
  EXPECT_TRUE(at::equal(first_values(replacing.get_batch(all).data), at::tensor({0, 2, 2}, at::kLong)));
}

TEST_F(ImageFolderTest, TheNextReadableSampleReplacesWithItsOwnTarget) {
  write_pictures(root(), 3);
  for (const auto* name : {"cat/1.png", "cat/2.png", "dog/2.png"}) fs::resize_file(root() / name, 20);
  const data::ImageFolder replacing(root(), {.on_unreadable = data::OnUnreadable::replace});
  const auto batch = replacing.get_batch(at::tensor({1, 2, 5}, at::kLong));
  EXPECT_TRUE(at::equal(first_values(batch.data), at::tensor({3, 3, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({1, 1, 0}, at::kLong)));
}

TEST_F(ImageFolderTest, AFolderWithoutAReadablePictureHasEmptyBatchesOrIsAnError) {
  write_pictures(root(), 1);
  for (const auto* name : {"cat/0.png", "dog/0.png"}) fs::resize_file(root() / name, 20);
  const auto all = at::arange(2, at::kLong);
  const auto batch = data::ImageFolder(root(), {.on_unreadable = data::OnUnreadable::skip}).get_batch(all);
  EXPECT_EQ(batch.data.sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(batch.target.sizes(), at::IntArrayRef({0}));
  const data::ImageFolder replacing(root(), {.on_unreadable = data::OnUnreadable::replace});
  EXPECT_THAT(error_of<DataError>([&] { replacing.get_batch(all); }),
              HasSubstr("pictures: no sample of the dataset can be decoded"));
}

TEST_F(ImageFolderTest, WrongIndicesAndTransformsAreArgumentErrors) {
  write_pictures(root(), 1);
  const data::ImageFolder dataset(root(), {.transform = transforms::RandomCrop(50)});
  const auto refusal = [&](std::int64_t index) {
    return error_of<ArgumentError>([&] { dataset.get_batch(at::full({1}, index, at::kLong)); });
  };
  EXPECT_THAT(refusal(0), HasSubstr("cat/0.png: "));
  for (const std::int64_t index : {-1, 2}) {
    EXPECT_THAT(refusal(index), HasSubstr(std::to_string(index)));
    EXPECT_THAT(error_of<ArgumentError>([&] { dataset.path(index); }),
                HasSubstr("out of range for 2 samples"));
  }
}

TEST_F(ImageFolderTest, ADatasetFolderTransformsWhatItsLoaderReads) {
  touch(root() / "a/1.png");
  const data::DatasetFolder dataset(root(), [](const fs::path&) { return at::full({1}, 3, at::kLong); },
                                    {.transform = [](const at::Tensor& sample) { return sample.add(4); }});
  EXPECT_EQ(dataset.get_batch(at::zeros({1}, at::kLong)).data.item<std::int64_t>(), 7);
}

TEST_F(ImageFolderTest, AFileThatCannotBeReadIsAnErrorUnderEveryPolicy) {
  write_pictures(root(), 2);
  const data::ImageFolder dataset(root(), {.on_unreadable = data::OnUnreadable::skip});
  fs::remove(root() / "cat/0.png");
  EXPECT_THAT(error_of<Error>([&] { dataset.get_batch(at::arange(2, at::kLong)); }), HasSubstr("cat/0.png"));
  EXPECT_EQ(dataset.unreadable(), 0);
}

// A smooth picture, of which every place has another color.
at::Tensor slopes(std::int64_t height, std::int64_t width) {
  const auto down = at::linspace(0, 255, height).view({height, 1}).expand({height, width});
  const auto right = at::linspace(0, 255, width).view({1, width}).expand({height, width});
  return at::stack({down, right, down.neg().add(255)}).to(at::kByte);
}

TEST_F(ImageFolderTest, ScaledDecodingReadsNoMoreThanTheResultNeeds) {
  fs::create_directories(root() / "a");
  data::save_image(slopes(400, 800), root() / "a/1.jpg");
  const auto bytes = data::read_file(root() / "a/1.jpg");
  for (const auto& [size, denominator] :
       {std::pair{90, 4}, std::pair{100, 4}, std::pair{101, 2}, std::pair{10, 8}}) {
    const transforms::Resize resize(size);
    const data::ImageFolder dataset(root(), {.transform = resize, .scaled_decoding = true});
    const auto smaller = data::decode_image(bytes, {.scale_denominator = denominator});
    EXPECT_TRUE(at::equal(dataset.get_batch(at::zeros({1}, at::kLong)).data[0], resize(smaller))) << size;
  }
}

TEST_F(ImageFolderTest, ScaledDecodingTakesTheSamePartOfThePicture) {
  fs::create_directories(root() / "a");
  data::save_image(slopes(400, 800), root() / "a/1.jpg");
  data::save_image(slopes(400, 800), root() / "a/2.png");  // always decoded whole
  const transforms::RandomResizedCrop crop(16);
  const data::ImageFolder exact(root(), {.transform = crop});
  const data::ImageFolder scaled(root(), {.transform = crop, .scaled_decoding = true});
  const auto samples = [](const data::ImageFolder& dataset, std::uint64_t seed) {
    at::manual_seed(seed);
    return dataset.get_batch(at::arange(2, at::kLong)).data.to(at::kLong);
  };
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto difference = samples(exact, seed).sub(samples(scaled, seed)).abs();
    EXPECT_LE(difference.max().item<std::int64_t>(), 8) << seed;  // a pixel of an eighth
    EXPECT_EQ(difference[1].max().item<std::int64_t>(), 0) << seed;
  }
}

TEST_F(ImageFolderTest, ClassesWithoutAFolderAreEmpty) {
  touch(root() / "a/1.png");
  const auto classes = [](const fs::path&) {
    return data::FolderClasses{.classes = {"a", "gone"}, .class_to_idx = {{"a", 0}, {"gone", 1}}};
  };
  EXPECT_THAT(error_of<DataError>([&] { data::ImageFolder(root(), {.find_classes = classes}); }),
              HasSubstr("class gone"));
  EXPECT_EQ(data::ImageFolder(root(), {.allow_empty = true, .find_classes = classes}).size(), 1);
}

TEST_F(ImageFolderTest, SamplesOfDifferentSizesAreRefused) {
  write_pictures(root(), 1);
  data::save_image(at::zeros({3, 9, 9}, at::kByte), root() / "cat/9.png");
  const data::ImageFolder dataset(root());
  EXPECT_THAT(error_of<ArgumentError>([&] { dataset.get_batch(at::arange(3, at::kLong)); }),
              HasSubstr("samples of the shapes [3, 4, 5] and [3, 9, 9]"));
}

// Adds noise from the generator that the transform is given.
at::Tensor add_noise(const at::Tensor& image, const std::optional<at::Generator>& generator) {
  return image.to(at::kFloat).add(at::rand({1}, generator));
}

std::vector<at::Tensor> batches_of(const fs::path& root, int workers, std::int64_t epoch,
                                   std::optional<data::LoaderPosition> from = {}) {
  data::DataLoader loader(
      data::ImageFolder(root, {.transform = add_noise}),
      {.batch_size = 2, .shuffle = true, .num_workers = workers, .seed = 3, .augmentation_seed = 5});
  loader.set_epoch(epoch);
  if (from) loader.seek(*from);
  std::vector<at::Tensor> batches;
  for (auto& batch : loader) batches.push_back(batch.data);
  return batches;
}

bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return at::equal(x, y); });
}

TEST_F(ImageFolderTest, AnAugmentationSeedMakesBatchesIndependentOfTheWorkers) {
  write_pictures(root(), 4);
  const auto expected = batches_of(root(), 0, 1);
  EXPECT_TRUE(all_equal(batches_of(root(), 1, 1), expected));
  EXPECT_TRUE(all_equal(batches_of(root(), 4, 1), expected));
  EXPECT_FALSE(all_equal(batches_of(root(), 0, 2), expected));
  const std::vector<at::Tensor> rest(expected.begin() + 2, expected.end());
  EXPECT_TRUE(all_equal(
      batches_of(root(), 1, 1, data::LoaderPosition{.epoch = 1, .batches = 2, .samples = 4}), rest));
}

TEST_F(ImageFolderTest, ASecondPassOfAnEpochDrawsOtherNumbers) {
  write_pictures(root(), 1);
  const data::ImageFolder dataset(root(), {.transform = add_noise});
  data::DataLoader loader(dataset, {.batch_size = 2, .augmentation_seed = 5});
  for (const std::int64_t passes : {0, 1}) {
    const data::SampleSeedsScope scope(data::SampleSeeds{.base = 5, .epoch = 0, .passes = passes});
    const auto expected = dataset.get_batch(at::arange(2, at::kLong)).data;
    for (auto& batch : loader) EXPECT_TRUE(at::equal(batch.data, expected)) << passes;
  }
  EXPECT_NE((data::SampleSeeds{.base = 5, .epoch = 0, .passes = 0}.seed_of(0)),
            (data::SampleSeeds{.base = 5, .epoch = 0, .passes = 1}.seed_of(0)));
}

TEST_F(ImageFolderTest, AReplacedSampleKeepsItsGenerator) {
  write_pictures(root(), 2);
  const auto second = at::ones({1}, at::kLong);
  const data::SampleSeedsScope scope(data::SampleSeeds{.base = 1});
  const auto expected = add_noise(at::full({3, 4, 5}, 2, at::kByte), data::sample_generator(1));
  fs::resize_file(root() / "cat/1.png", 20);
  const data::ImageFolder dataset(root(),
                                  {.transform = add_noise, .on_unreadable = data::OnUnreadable::replace});
  EXPECT_TRUE(at::equal(dataset.get_batch(second).data[0], expected));
}

TEST_F(ImageFolderTest, ASampleHasAGeneratorOnlyWithAnAugmentationSeed) {
  EXPECT_FALSE(data::sample_generator(0));
  const data::SampleSeedsScope scope(data::SampleSeeds{.base = 1});
  EXPECT_TRUE(data::sample_generator(0));
  const data::SampleSeedsScope none(std::nullopt);
  EXPECT_FALSE(data::sample_generator(0));
}

}  // namespace
}  // namespace lockstep::testing
