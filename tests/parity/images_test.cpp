// SPDX-License-Identifier: BSD-3-Clause
// Image files that Python wrote: torchvision and PIL decode them to the same bytes.
#include <string>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <lockstep/data/images.h>
#include <lockstep/serialize/torch_file.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using data::Box;
using data::DecodeOptions;
using data::ImageReadMode;

class Images : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    run_python("parity/image_files.py", {.args = {folder_->path().string()}});
    oracle_ = std::make_unique<Value>(load(folder_->file("oracle.pt")));
  }
  static void TearDownTestSuite() {
    oracle_.reset();
    folder_.reset();
  }

  static const Dict& oracle(const char* part) { return oracle_->as_dict().at(part).as_dict(); }
  static at::Tensor pixels() { return oracle_->as_dict().at("pixels").as_tensor(); }
  static const TempFolder& folder() { return *folder_; }

 private:
  inline static std::unique_ptr<TempFolder> folder_{};
  inline static std::unique_ptr<Value> oracle_{};
};

struct Case {
  std::string file;
  std::string mode;

  explicit Case(const std::string& key)
      : file(key.substr(0, key.find('|'))), mode(key.substr(key.find('|') + 1)) {}

  bool has(const std::string& text) const { return file.find(text) != std::string::npos; }
  DecodeOptions options() const {
    if (mode == "turned") return {.mode = ImageReadMode::RGB, .apply_exif_orientation = true};
    const std::map<std::string, ImageReadMode> modes = {{"unchanged", ImageReadMode::UNCHANGED},
                                                        {"gray", ImageReadMode::GRAY},
                                                        {"gray_alpha", ImageReadMode::GRAY_ALPHA},
                                                        {"rgb", ImageReadMode::RGB},
                                                        {"rgb_alpha", ImageReadMode::RGB_ALPHA}};
    return {.mode = modes.at(mode)};
  }
};

std::int64_t largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.to(at::kLong).sub(b.to(at::kLong)).abs().max().item<std::int64_t>();
}

TEST_F(Images, DecodedFilesEqualThoseOfPython) {
  int compared = 0;
  for (const auto& [key, expected] : oracle("decoded")) {
    const Case drawn(key.as_string());
    SCOPED_TRACE(key.as_string());
    if (!expected.is<at::Tensor>()) {
      if (expected.as_string() != "not asked") {
        EXPECT_THROW(data::read_image(folder() / drawn.file, drawn.options()), ArgumentError);
      }
      continue;
    }
    // torchvision returns the colors of a WebP file when asked for gray.
    if (drawn.has(".webp") && drawn.mode.starts_with("gray")) continue;
    const auto image = data::read_image(folder() / drawn.file, drawn.options());
    ASSERT_EQ(image.sizes(), expected.as_tensor().sizes());
    ASSERT_EQ(image.scalar_type(), expected.as_tensor().scalar_type());
    // PIL converts colors to gray with 16 bits of precision, libpng with 15.
    const bool rounded = drawn.has("pil_") && drawn.has(".png") && drawn.mode == "gray";
    EXPECT_LE(largest_difference(image, expected.as_tensor()), rounded ? 1 : 0);
    ++compared;
  }
  EXPECT_GT(compared, 400);
}

void expect_boxes_equal(const at::Tensor& bytes, int scale, const char* name) {
  data::DecodeOptions options{.mode = ImageReadMode::RGB, .scale_denominator = scale};
  const auto whole = data::decode_image(bytes, options);
  for (int i = 0; i < 30; ++i) {
    const auto below = [](std::int64_t end) { return at::randint(end, {1}).item<std::int64_t>(); };
    Box box{.top = below(whole.size(1)), .left = below(whole.size(2))};
    box.height = 1 + below(whole.size(1) - box.top);
    box.width = 1 + below(whole.size(2) - box.left);
    options.box = box;
    const auto expected = whole.narrow(1, box.top, box.height).narrow(2, box.left, box.width);
    ASSERT_TRUE(at::equal(data::decode_image(bytes, options), expected))
        << name << ", 1/" << scale << ", at " << box.top << ", " << box.left << " of " << box.height << " x "
        << box.width;
  }
}

TEST_F(Images, ABoxOfAJpegEqualsThatPartOfTheImage) {
  at::manual_seed(3);
  for (const auto* name : {"large.jpg", "64x50_q90_s0.jpg", "64x50_q75_s1.jpg", "64x50_q60_s2.jpg",
                           "64x50_progressive.jpg", "64x50_gray.jpg", "64x50_cmyk.jpg", "64x50_rgb.png"}) {
    const auto bytes = data::read_file(folder() / name);
    const bool jpeg = std::string(name).ends_with(".jpg");
    for (const int scale : {1, 2, 4, 8}) {
      if (scale > 1 && !jpeg) continue;
      expect_boxes_equal(bytes, scale, name);
    }
  }
}

TEST_F(Images, EncodedImagesEqualThoseOfTorchvision) {
  EXPECT_TRUE(at::equal(data::encode_jpeg(pixels(), 80), oracle("encoded").at("jpeg").as_tensor()));
  // zlib's releases compress differently, so the pixels are compared.
  const auto png = data::encode_png(pixels());
  EXPECT_TRUE(at::equal(data::decode_image(png), pixels()));
  EXPECT_TRUE(at::equal(data::decode_image(oracle("encoded").at("png").as_tensor()), pixels()));
}

TEST_F(Images, GridsEqualThoseOfTorchvision) {
  const auto batch = oracle("grids").at("batch").as_tensor();
  const auto expect = [&](const char* name, const at::Tensor& grid) {
    EXPECT_TRUE(at::equal(grid, oracle("grids").at(name).as_tensor())) << name;
  };
  expect("default", data::make_grid(batch));
  expect("columns", data::make_grid(batch, {.nrow = 3, .padding = 1, .pad_value = 0.5}));
  expect("normalized", data::make_grid(batch, {.normalize = true, .scale_each = true}));
  expect("range", data::make_grid(batch, {.normalize = true, .value_range = std::pair{0.2, 0.7}}));
  expect("gray", data::make_grid(batch.narrow(1, 0, 1)));
  expect("single", data::make_grid(batch[0][0]));
  data::save_image(batch, folder() / "saved.png");
  EXPECT_TRUE(at::equal(data::read_image(folder() / "saved.png"),
                        data::read_image(folder() / "saved_by_python.png")));
}

TEST_F(Images, SavedSamplesEqualThePicturesOfTorchvision) {
  const auto batch = oracle("grids").at("batch").as_tensor();
  const auto expect = [](const std::string& name, const at::Tensor& images,
                         const data::GridOptions& options) {
    data::save_samples(images, folder() / (name + ".png"), options);
    EXPECT_TRUE(at::equal(data::read_image(folder() / (name + ".png")),
                          data::read_image(folder() / (name + "_by_python.png"))))
        << name;
  };
  expect("saved", batch, {});
  expect("bytes", batch.mul(255).to(at::kByte), {.nrow = 2});
  const auto shifted = batch.mul(4).sub(2);
  expect("normalized", shifted, {.nrow = 3, .padding = 1, .normalize = true, .pad_value = 1});
  expect("range", shifted, {.normalize = true, .value_range = std::pair{0.0, 1.0}});
}

TEST_F(Images, AWebpFileThatEndsWithinItsExifHasNoOrientation) {
  const auto bytes = data::read_file(folder() / "turned6.webp");
  EXPECT_EQ(data::image_info(bytes).orientation, 6);
  constexpr std::int64_t kExifChunk = 34;
  for (std::int64_t cut = 1; cut < kExifChunk; ++cut) {
    EXPECT_EQ(data::image_info(bytes.narrow(0, 0, bytes.numel() - cut)).orientation, 1) << cut;
  }
}

TEST_F(Images, TruncatedFilesAreRefusedWithTheirName) {
  for (const auto* name : {"64x50_q90_s0.jpg", "64x50_progressive.jpg", "64x50_rgb.png", "64x50_lossy.webp",
                           "pil_64x50_rgb.bmp"}) {
    const auto bytes = data::read_file(folder() / name);
    for (const double part : {0.0, 0.01, 0.1, 0.5, 0.9}) {
      const auto count = static_cast<std::int64_t>(part * static_cast<double>(bytes.numel()));
      EXPECT_THROW(data::decode_image(bytes.narrow(0, 0, count).clone()), DataError) << name << " " << part;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
