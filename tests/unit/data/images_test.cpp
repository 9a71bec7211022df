// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <lockstep/data/images.h>
#include <lockstep/data/loader.h>

#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using data::decode_image;
using ::testing::HasSubstr;

at::Tensor picture() {
  return at::arange(3 * 30 * 40, at::kLong).remainder(251).to(at::kByte).view({3, 30, 40});
}

TEST(DecodeImage, AHugeHeaderIsRefusedBeforeMemoryIsTaken) {
  auto png = data::encode_png(picture());
  png.narrow(0, 16, 8).fill_(0x7f);  // width and height, whose checksum is then wrong
  EXPECT_THROW(decode_image(png), DataError);
  EXPECT_THAT(error_of<DataError>([] { decode_image(data::encode_jpeg(picture()), {.max_pixels = 1199}); }),
              HasSubstr("40 x 30 pixels, more than the limit of 1199"));
  EXPECT_NO_THROW(decode_image(data::encode_jpeg(picture()), {.max_pixels = 1200}));
}

TEST(DecodeImage, ScaledJpegFilesHaveTheFractionOfTheSize) {
  const auto jpeg = data::encode_jpeg(picture());
  EXPECT_EQ(decode_image(jpeg, {.scale_denominator = 2}).sizes(), at::IntArrayRef({3, 15, 20}));
  EXPECT_EQ(decode_image(jpeg, {.scale_denominator = 8}).sizes(), at::IntArrayRef({3, 4, 5}));
}

TEST(DecodeImage, OptionsThatCannotBeAreRefused) {
  const auto jpeg = data::encode_jpeg(picture());
  const auto refusal = [](const at::Tensor& file, const data::DecodeOptions& options) {
    return error_of<ArgumentError>([&] { decode_image(file, options); });
  };
  EXPECT_THAT(refusal(jpeg, {.mode = data::ImageReadMode::RGB_ALPHA}), HasSubstr("JPEG file has no alpha"));
  EXPECT_THAT(refusal(jpeg, {.scale_denominator = 3}), HasSubstr("1, 2, 4 or 8, not 3"));
  EXPECT_THAT(refusal(data::encode_png(picture()), {.scale_denominator = 2}),
              HasSubstr("this is a PNG file"));
  const data::DecodeOptions beyond{.box = data::Box{.top = 20, .left = 0, .height = 11, .width = 5}};
  EXPECT_THAT(refusal(jpeg, beyond), HasSubstr("is not inside the image of 30 x 40"));
  EXPECT_THAT(refusal(data::encode_png(picture()), beyond), HasSubstr("is not inside the image of 30 x 40"));
  EXPECT_THAT(refusal(jpeg, {.apply_exif_orientation = true, .box = data::Box{.height = 1, .width = 1}}),
              HasSubstr("cannot be combined with apply_exif_orientation"));
  EXPECT_THAT(refusal(picture(), {}), HasSubstr("uint8 tensor of one dimension"));
}

TEST(DecodeImage, OtherFilesAreRefused) {
  const auto bytes = at::zeros({20}, at::kByte);
  EXPECT_THAT(error_of<DataError>([&] { decode_image(bytes); }),
              HasSubstr("no JPEG, PNG, WebP or BMP image"));
  EXPECT_THAT(error_of<DataError>([&] { decode_image(bytes.narrow(0, 0, 0)); }),
              HasSubstr("the file is empty"));
  EXPECT_THAT(error_of<DataError>([] { data::read_image("/nowhere/1.png"); }),
              HasSubstr("/nowhere/1.png: cannot be opened"));
}

TEST(DecodeImage, AChunkThatIsLongerThanTheFileTakesNoMemory) {
  auto png = data::encode_png(picture());
  png.narrow(0, 33, 8).copy_(at::tensor({0x60, 0, 0, 0, 'e', 'X', 'I', 'f'}, at::kLong));  // after the header
  EXPECT_THAT(error_of<DataError>([&] { decode_image(png); }), HasSubstr("ends within a chunk"));
}

// A PNG file with chunks between its header and its pixels.
at::Tensor png_with(const at::Tensor& chunks) {
  const auto png = data::encode_png(picture());
  constexpr std::int64_t kHeader = 33;
  return at::cat({png.narrow(0, 0, kHeader), chunks, png.narrow(0, kHeader, png.numel() - kHeader)});
}

at::Tensor as_tensor(const std::string& bytes) {
  return at::tensor(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), at::kByte);
}

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

// A zTXt chunk whose text has `size` bytes.
std::string text_chunk(std::size_t size) {
  const std::string text(size, 'x');
  std::string packed(::compressBound(size), '\0');
  uLongf packed_size = packed.size();
  ::compress(reinterpret_cast<Bytef*>(packed.data()), &packed_size,
             reinterpret_cast<const Bytef*>(text.data()), size);
  const auto named = "zTXta" + std::string(2, '\0') + packed.substr(0, packed_size);
  const auto sum = ::crc32(0, reinterpret_cast<const Bytef*>(named.data()), static_cast<uInt>(named.size()));
  return big_endian(static_cast<std::uint32_t>(named.size() - 4)) + named +
         big_endian(static_cast<std::uint32_t>(sum));
}

// The largest resident memory of this process since clear_peak(), in MiB.
std::int64_t peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) / 1024;
  }
  throw std::runtime_error("no VmHWM");
}
void clear_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

TEST(DecodeImage, TextsInAPngTakeNoMemory) {
  constexpr std::size_t kText = 7'000'000;
  std::string chunks;
  for (const auto chunk = text_chunk(kText); chunks.size() < 40 * chunk.size();) chunks += chunk;
  const auto png = png_with(as_tensor(chunks));
  clear_peak();
  const auto before = peak_mib();
  EXPECT_TRUE(at::equal(decode_image(png), picture()));
  EXPECT_LT(peak_mib() - before, 100);  // of 280 MB of text
}

TEST(DecodeImage, BytesAfterTheEndOfAPngAreIgnored) {
  const auto png = at::cat({data::encode_png(picture()), at::full({40}, 255, at::kByte)});
  EXPECT_TRUE(at::equal(decode_image(png), picture()));
}

TEST(DecodeImage, FoldersAreRefused) {
  const TempFolder folder;
  EXPECT_THAT(error_of<DataError>([&] { data::read_file(folder.path()); }), HasSubstr("is a folder"));
}

// Changes bytes at random places; the fuzzer does more of it.
TEST(DecodeImage, DamagedFilesGiveAnImageOrAnError) {
  at::manual_seed(1);
  for (const auto& file : {data::encode_jpeg(picture()), data::encode_png(picture())}) {
    int refused = 0;
    for (int i = 0; i < 400; ++i) {
      auto damaged = file.clone();
      const auto places = at::randint(file.numel(), {4});
      damaged.index_put_({places}, at::randint(256, {4}, at::kLong).to(at::kByte));
      try {
        decode_image(damaged, {.max_pixels = 100'000});
      } catch (const DataError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 20);
  }
}

TEST(EncodeImage, WrongImagesAndQualitiesAreRefused) {
  EXPECT_THAT(error_of<ArgumentError>([] { data::encode_jpeg(picture(), 0); }), HasSubstr("1 to 100, not 0"));
  EXPECT_THAT(error_of<ArgumentError>([] { data::encode_png(picture(), 10); }), HasSubstr("0 to 9, not 10"));
  EXPECT_THAT(error_of<ArgumentError>([] {
                data::encode_jpeg(at::zeros({2, 3, 3}, at::kByte));
              }),
              HasSubstr("[1, 3 channels, height, width] on the CPU, not Byte [2, 3, 3]"));
  EXPECT_THAT(error_of<ArgumentError>([] { data::save_image(picture(), "x.gif"); }), HasSubstr("x.gif"));
}

// 40 images of 2 x 3 pixels, of one brightness each, which is the target.
data::ImageDataset shades() {
  const auto brightness = at::arange(40, at::kLong);
  return {brightness.mul(6).to(at::kByte).view({40, 1, 1}).expand({40, 2, 3}), brightness};
}

// The brightness of each image of a grid, whose first pixels are 4 rows and 5 columns apart.
at::Tensor drawn_shades(const std::string& file) {
  const auto grid = data::read_image(file)[0].to(at::kLong);
  return grid.slice(0, 2, std::nullopt, 4).slice(1, 2, std::nullopt, 5).flatten().div(6, "trunc");
}

TEST(SaveSamples, ADatasetGivesRandomSamples) {
  const TempFolder folder;
  const auto file = folder.file("grid.png");
  at::manual_seed(1);
  const auto batch = data::save_samples(shades(), file);
  EXPECT_EQ(batch.data.sizes(), at::IntArrayRef({32, 1, 2, 3}));
  EXPECT_EQ(std::get<0>(at::_unique(batch.target)).numel(), 32);
  EXPECT_TRUE(at::equal(drawn_shades(file), batch.target));
  EXPECT_FALSE(at::equal(data::save_samples(shades(), file).target, batch.target));
  at::manual_seed(1);
  EXPECT_TRUE(at::equal(data::save_samples(shades(), file).target, batch.target));
}

TEST(SaveSamples, ASmallDatasetIsDrawnWhole) {
  const TempFolder folder;
  const data::TensorDataset two(at::zeros({2, 3, 4, 4}), at::arange(2));
  EXPECT_EQ(data::save_samples(two, folder.file("grid.png")).target.numel(), 2);
  const data::TensorDataset none(at::zeros({0, 3, 4, 4}), at::zeros({0}));
  EXPECT_THAT(error_of<ArgumentError>([&] { data::save_samples(none, folder.file("grid.png")); }),
              HasSubstr("the dataset is empty"));
}

TEST(SaveSamples, ALoaderGivesItsNextBatchAndKeepsItsPosition) {
  const TempFolder folder;
  const auto file = folder.file("grid.png");
  data::DataLoader loader(shades(), {.batch_size = 4, .num_workers = 1});
  EXPECT_TRUE(at::equal(data::save_samples(loader, file).target, at::arange(4)));
  EXPECT_TRUE(at::equal(drawn_shades(file), at::arange(4)));
  EXPECT_EQ(loader.position().passes, 0);
  loader.seek({.batches = 3,
               .samples = 12,
               .pass_generator = at::make_generator<at::CPUGeneratorImpl>().get_state()});
  EXPECT_TRUE(at::equal(data::save_samples(loader, file).target, at::arange(12, 16)));
  EXPECT_EQ(loader.position().batches, 3);
  EXPECT_TRUE(at::equal(loader.begin()->target, at::arange(12, 16)));
}

struct NoSamples {
  struct Stream {
    static std::optional<at::Tensor> next() { return std::nullopt; }
  };
  static std::unique_ptr<Stream> iter(const data::StreamShare& /*share*/) {
    return std::make_unique<Stream>();
  }
};

TEST(SaveSamples, WhatCannotBeDrawnIsRefused) {
  const TempFolder folder;
  const auto refusal = [&](auto samples) {
    return error_of<ArgumentError>([&] { data::save_samples(samples, folder.file("grid.png")); });
  };
  EXPECT_THAT(refusal(data::DataLoader(NoSamples())), HasSubstr("the loader yields no batch"));
  EXPECT_THAT(refusal(at::zeros({8, 3})), HasSubstr("[n, channels, height, width], not Float [8, 3]"));
  EXPECT_THAT(refusal(at::zeros({1, 3, 4, 4}, at::kLong)), HasSubstr("not Long [1, 3, 4, 4]"));
  EXPECT_THAT(refusal(std::vector<at::Tensor>()), HasSubstr("not undefined"));
  const std::pair normalized(at::tensor({-1.5, 2.0}).view({2, 1, 1, 1}), at::arange(2));
  EXPECT_THAT(refusal(normalized),
              HasSubstr("values from -1.5 to 2, which are not within [0, 1]; set .normalize"));
  EXPECT_NO_THROW(data::save_samples(normalized, folder.file("grid.png"), {.normalize = true}));
}

// Without root's right to write everywhere.
class PlainUser {
 public:
  PlainUser() : user_(::geteuid()) {
    if (user_ == 0 && ::seteuid(kNobody) != 0) throw std::runtime_error("no other user");
  }
  ~PlainUser() {
    if (user_ == 0 && ::seteuid(0) != 0) std::abort();
  }
  PlainUser(const PlainUser&) = delete;
  PlainUser& operator=(const PlainUser&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  uid_t user_;
};

TEST(EncodeImage, FilesThatCannotBeWrittenAreErrorsWithTheRemedy) {
  const auto error_at = [](const std::filesystem::path& file) {
    return error_of<DataError>([&] { data::save_image(picture(), file); });
  };
  const TempFolder folder;
  EXPECT_THAT(error_at(folder.path() / "none" / "x.png"), HasSubstr("check that its folder exists"));
  constexpr auto kReadOnly = std::filesystem::perms(0555);
  std::filesystem::permissions(folder.path(), kReadOnly);
  const PlainUser user;
  EXPECT_THAT(error_at(folder.path() / "x.png"), HasSubstr("its folder must be writable"));
}

TEST(EncodeImage, PngFilesKeepTwoAndFourChannels) {
  for (const auto channels : {1, 2, 4}) {
    const auto image = at::randint(256, {channels, 7, 9}).to(at::kByte);
    EXPECT_TRUE(at::equal(decode_image(data::encode_png(image)), image)) << channels;
  }
}

}  // namespace
}  // namespace lockstep::testing
