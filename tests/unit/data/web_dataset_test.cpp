// SPDX-License-Identifier: BSD-3-Clause
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/data/images.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/web_dataset.h>
#include <lockstep/transforms/transforms.h>

#include "support/error_of.h"
#include "unit/data/fixtures.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::error_of;
using lockstep::testing::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ShardFiles = std::vector<std::pair<std::string, std::string>>;

std::string picture_of(int color) {
  const auto bytes = encode_png(at::full({3, 4, 5}, color, at::kByte));
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>()),
          static_cast<std::size_t>(bytes.numel())};
}

// Pictures of one color, which is the number of the sample; the target is 10 more.
std::string picture_shard(int first, int count) {
  ShardFiles files;
  for (int i = first; i < first + count; ++i) {
    files.emplace_back("p" + std::to_string(i) + ".png", picture_of(i));
    files.emplace_back("p" + std::to_string(i) + ".cls", " " + std::to_string(i + 10) + "\n");
  }
  return testing::tar_bytes(files);
}

at::Tensor first_colors(const at::Tensor& images) { return images.flatten(1).select(1, 0).to(at::kLong); }

// A modification time in the past, which an index cache trusts.
void age(const fs::path& file, int hours) {
  fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(hours));
}

class WebDatasetTest : public ::testing::Test {
 protected:
  // Shards of 7, 5 and 8 pictures.
  void write_pictures() const {
    int first = 0;
    for (const int count : {7, 5, 8}) {
      testing::write_file(folder_ / ("s" + std::to_string(first) + ".tar"), picture_shard(first, count));
      first += count;
    }
  }
  std::string all() const { return folder_.file("s{0,7,12}.tar"); }
  std::string shard(const ShardFiles& files) const {
    testing::write_file(folder_ / "x.tar", testing::tar_bytes(files));
    return folder_.file("x.tar");
  }

  TempFolder folder_{};
};

TEST_F(WebDatasetTest, BatchesHoldTransformedPicturesAndTargets) {
  write_pictures();
  const WebDataset dataset(all(),
                           {.transform = [](const at::Tensor& image) { return image.to(at::kFloat).mul(2); },
                            .target_transform = [](std::int64_t target) { return -target; }});
  EXPECT_EQ(dataset.size(), 20);
  EXPECT_THAT(dataset.shard_sizes(), ElementsAre(7, 5, 8));
  const auto batch = dataset.get_batch(at::tensor({19, 0, 7}, at::kLong));
  EXPECT_EQ(batch.data.sizes(), at::IntArrayRef({3, 3, 4, 5}));
  EXPECT_TRUE(at::equal(first_colors(batch.data), at::tensor({38, 0, 14}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({-29, -10, -17}, at::kLong)));
  EXPECT_THROW(dataset.get_batch(at::tensor({20}, at::kLong)), ArgumentError);
}

TEST_F(WebDatasetTest, OtherSamplesAreDecodedByACallable) {
  const auto path = shard({{"a.x", "12"}, {"a.txt", "hello"}, {"b.x", "3"}, {"b.txt", "you"}});
  const auto lengths = [](const WebSample& sample) {
    return Batch{.data = at::scalar_tensor(sample.fields.at("x").numel()),
                 .target = at::scalar_tensor(sample.fields.at("txt").numel(), at::kLong)};
  };
  const WebDataset dataset(
      path, {.transform = [](const at::Tensor& data) { return data.mul(100); }, .decode = lengths});
  const auto batch = dataset.get_batch(at::arange(2, at::kLong));
  EXPECT_TRUE(at::equal(batch.data, at::tensor({200., 100.}, at::kFloat)));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({5, 3}, at::kLong)));
  EXPECT_THAT(error_of<ArgumentError>([&] { WebDataset(path, {.target = "id", .decode = lengths}); }),
              HasSubstr("decode excludes"));
}

TEST_F(WebDatasetTest, ASampleGivesViewsOfTheShard) {
  const WebDataset dataset(shard({{"f/a.SEG.png", "12"}, {"f/a.cls", ""}}));
  const auto first = dataset.sample(0);
  EXPECT_EQ(first.key, "f/a");
  EXPECT_EQ(first.shard, folder_ / "x.tar");
  EXPECT_TRUE(at::equal(first.fields.at("seg.png"), at::tensor({'1', '2'}, at::kByte)));
  EXPECT_EQ(first.fields.at("cls").numel(), 0);
  EXPECT_EQ(first.fields.at("seg.png").data_ptr(), dataset.sample(0).fields.at("seg.png").data_ptr());
  EXPECT_THROW(dataset.sample(1), ArgumentError);
}

TEST_F(WebDatasetTest, ProblemsNameTheShardAndTheSample) {
  const auto opened = [&](const ShardFiles& files) {
    return error_of<DataError>([&] { WebDataset{shard(files)}; });
  };
  EXPECT_THAT(opened({{"a.cls", ""}, {"b.cls", ""}, {"b.CLS", ""}}),
              AllOf(HasSubstr("x.tar: sample b has a second field cls"), HasSubstr("b.CLS at offset 1024")));
  EXPECT_THAT(opened({{"folder/noextension", ""}}), HasSubstr("x.tar: the shards have no sample"));
  const auto loaded = [&](const ShardFiles& files) {
    return error_of<DataError>([&] { WebDataset(shard(files)).get_batch(at::arange(1, at::kLong)); });
  };
  EXPECT_THAT(loaded({{"k.gif", "x"}, {"k.cls", "1"}}),
              HasSubstr("x.tar: sample k: there is no field jpg;jpeg;png;webp;bmp, but cls, gif"));
  for (const std::string text : {"", "x", "1.5", "1 2", "+-3", "99999999999999999999"}) {
    EXPECT_THAT(loaded({{"k.png", picture_of(1)}, {"k.cls", text}}),
                HasSubstr("sample k: the target should be an integer, but it is \"" + text + "\""));
  }
  EXPECT_THAT(loaded({{"k.png", picture_of(1).substr(0, 50)}, {"k.cls", "1"}}),
              HasSubstr("x.tar: sample k:"));
  EXPECT_THAT(error_of<DataError>([&] { WebDataset{folder_.file("gone.tar")}; }), HasSubstr("gone.tar"));
  EXPECT_THAT(error_of<ArgumentError>([] { WebDataset{"https://host/{0..3}.tar"}; }),
              HasSubstr("local files"));
  EXPECT_THROW(WebDataset(std::vector<fs::path>{}), ArgumentError);
}

TEST_F(WebDatasetTest, BracesThatCannotBeExpandedAreRefused) {
  for (const std::string pattern : {"{", "}", "a{b{c}", "}{", "{0..1000001}", "{0..9999}{0..9999}"}) {
    EXPECT_THROW(WebDataset{pattern}, ArgumentError) << pattern;
  }
  EXPECT_THROW(WebDataset{"{9223372036854775806..-9223372036854775807}"}, ArgumentError);
}

TEST_F(WebDatasetTest, UnreadableSamplesAreRaisedSkippedOrReplaced) {
  const auto path = shard({{"0.png", picture_of(0)},
                           {"0.cls", "0"},
                           {"1.png", picture_of(1)},
                           {"1.cls", "?"},
                           {"2.cls", "2"},
                           {"3.png", picture_of(3)},
                           {"3.cls", "3"}});
  const auto indices = at::arange(4, at::kLong);
  EXPECT_THROW(WebDataset(path).get_batch(indices), DataError);
  const WebDataset skipping(path, {.on_unreadable = OnUnreadable::skip});
  EXPECT_TRUE(at::equal(skipping.get_batch(indices).target, at::tensor({0, 3}, at::kLong)));
  EXPECT_EQ(skipping.unreadable(), 2);
  const WebDataset replacing(path, {.on_unreadable = OnUnreadable::replace});
  EXPECT_TRUE(at::equal(replacing.get_batch(indices).target, at::tensor({0, 3, 3, 3}, at::kLong)));
}

TEST_F(WebDatasetTest, AShardThatWasDamagedAfterItWasOpenedIsAnErrorUnderEveryPolicy) {
  const auto path = shard({{"0.png", picture_of(0)}, {"0.cls", "0"}});
  const WebDataset dataset(path, {.on_unreadable = OnUnreadable::skip});
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).write("?", 1);
  EXPECT_THAT(error_of<Error>([&] { dataset.get_batch(at::arange(1, at::kLong)); }),
              HasSubstr("x.tar: the tar archive is damaged at offset 0"));
  EXPECT_EQ(dataset.unreadable(), 0);
}

class WebDatasetIndexTest : public WebDatasetTest {
 protected:
  void SetUp() override {
    testing::write_file(path_, picture_shard(0, 3));
    age(path_, 5);
    ASSERT_EQ(count(), 3);
  }
  std::int64_t count() const { return WebDataset(path_.string(), {.index_cache = cache_}).size(); }

  fs::path path_ = folder_ / "x.tar";
  fs::path cache_ = folder_ / "index";
};

TEST_F(WebDatasetIndexTest, IsUsedWhileNoShardChanges) {
  // Contents that change without a trace: only a cache does not notice them.
  const auto time = fs::last_write_time(path_);
  std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary).seekp(2048).write("?", 1);
  fs::last_write_time(path_, time);
  EXPECT_EQ(count(), 3);
  EXPECT_THROW(WebDataset{path_.string()}, DataError);
}

TEST_F(WebDatasetIndexTest, NoticesAnotherTimeSizeAndPath) {
  testing::write_file(path_, picture_shard(10, 4));
  age(path_, 5);
  EXPECT_EQ(count(), 4);
  const auto size = fs::file_size(path_);
  auto other = picture_shard(20, 3);
  other.resize(size);
  testing::write_file(path_, other);
  age(path_, 4);
  EXPECT_EQ(count(), 3);
  testing::write_file(folder_ / "y.tar", picture_shard(0, 1));
  age(folder_ / "y.tar", 4);
  EXPECT_EQ(WebDataset(folder_.file("{x,y}.tar"), {.index_cache = cache_}).size(), 4);
  EXPECT_EQ(WebDataset(folder_.file("{y,x}.tar"), {.index_cache = cache_}).shard_sizes().front(), 1);
}

TEST_F(WebDatasetIndexTest, IsWrittenAnewWhenDamaged) {
  const auto bytes = testing::bytes_of_file(cache_);
  for (std::size_t at = 0; at < bytes.size(); at += 7) {
    auto flipped = bytes;
    flipped[at] ^= 1;
    for (const auto& damaged : {bytes.substr(0, at), flipped}) {
      testing::write_file(cache_, damaged);
      EXPECT_EQ(WebDataset(path_.string(), {.index_cache = cache_}).sample(2).key, "p2");
      EXPECT_EQ(testing::bytes_of_file(cache_), bytes) << at;
    }
  }
}

TEST_F(WebDatasetIndexTest, IsNotWrittenForAShardThatChangedJustNow) {
  fs::remove(cache_);
  testing::write_file(path_, picture_shard(0, 3));
  EXPECT_EQ(count(), 3);
  EXPECT_FALSE(fs::exists(cache_));
}

// Adds noise from the generator that the transform is given.
at::Tensor with_noise(const at::Tensor& image, const std::optional<at::Generator>& generator) {
  return image.to(at::kFloat).add(at::rand({1}, generator));
}

struct RankLoader {
  int rank = 0;
  int ranks = 1;
  int workers = 0;
  LoaderPosition from{};
  std::int64_t most = 100;  // batches
};

struct Loaded {
  std::vector<at::Tensor> data{};
  std::vector<std::int64_t> targets{};
  LoaderPosition position{};
};

class WebDatasetLoading : public WebDatasetTest {
 protected:
  void SetUp() override { write_pictures(); }

  Loaded load(const RankLoader& how) const {
    const WebDataset dataset(all(), {.transform = with_noise});
    DataLoader loader(
        dataset,
        {.batch_size = 2,
         .sampler = std::make_shared<ShardSampler>(
             dataset,
             ShardSamplerOptions{
                 .num_replicas = how.ranks, .rank = how.rank, .seed = 5, .shuffle_buffer = 3, .pieces = 2}),
         .num_workers = how.workers,
         .augmentation_seed = 9});
    loader.seek(how.from);
    loader.set_epoch(3);
    Loaded loaded;
    for (auto& batch : loader) {
      loaded.data.push_back(batch.data);
      const auto* targets = batch.target.const_data_ptr<std::int64_t>();
      loaded.targets.insert(loaded.targets.end(), targets, targets + batch.target.numel());
      loaded.position = loader.position();
      if (static_cast<std::int64_t>(loaded.data.size()) == how.most) break;
    }
    return loaded;
  }

  // What all ranks read, sorted.
  std::vector<std::int64_t> targets_of(int ranks, const LoaderPosition& from = {}, std::int64_t most = 100,
                                       LoaderPosition* position = nullptr) const {
    std::vector<std::int64_t> targets;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto loaded = load({.rank = rank, .ranks = ranks, .from = from, .most = most});
      targets.insert(targets.end(), loaded.targets.begin(), loaded.targets.end());
      if (position != nullptr) *position = loaded.position;
    }
    std::ranges::sort(targets);
    return targets;
  }
};

std::vector<std::int64_t> all_targets() {
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 10; i < 30; ++i) targets.push_back(i);
  return targets;
}

TEST_F(WebDatasetLoading, IsTheSameForAnyNumberOfWorkers) {
  const auto expected = load({});
  ASSERT_EQ(expected.data.size(), 10U);
  for (const int workers : {1, 4}) {
    const auto found = load({.workers = workers});
    EXPECT_TRUE(std::ranges::equal(found.data, expected.data,
                                   [](const auto& a, const auto& b) { return at::equal(a, b); }));
  }
}

TEST_F(WebDatasetLoading, TheRanksShareTheSamples) {
  for (const int ranks : {1, 2}) EXPECT_EQ(targets_of(ranks), all_targets());
  // 21 for three ranks: one sample is repeated.
  auto three = targets_of(3);
  EXPECT_EQ(three.size(), 21U);
  const auto [first, last] = std::ranges::unique(three);
  three.erase(first, last);
  EXPECT_EQ(three, all_targets());
}

TEST_F(WebDatasetLoading, ResumesExactlyInTheMiddleOfAPass) {
  const auto whole = load({.ranks = 2});
  const auto begun = load({.ranks = 2, .most = 2});
  const auto rest = load({.ranks = 2, .workers = 1, .from = begun.position});
  ASSERT_EQ(rest.data.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(rest.data[i], whole.data[i + 2]));
}

TEST_F(WebDatasetLoading, ResumesWithAnotherNumberOfRanks) {
  LoaderPosition position;
  auto seen = targets_of(3, {}, 2, &position);
  ASSERT_EQ(seen.size(), 12U);
  const auto rest = targets_of(2, position);
  seen.insert(seen.end(), rest.begin(), rest.end());
  std::ranges::sort(seen);
  EXPECT_EQ(seen, all_targets());
}

}  // namespace
}  // namespace lockstep::data
