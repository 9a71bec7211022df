// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <fmt/ranges.h>

#include <lockstep/data/images.h>

#include "base/atomic_file.h"
#include "base/rank_progress.h"
#include "base/throw_error.h"
#include "data/bytes.h"
#include "data/images/codec.h"

namespace lockstep::data {
namespace {

using namespace std::string_view_literals;

struct Codec {
  std::string_view name;
  ImageInfo (*info)(ByteSpan);
  at::Tensor (*decode)(ByteSpan, const DecodeOptions&);
};

const Codec& codec_of(ByteSpan bytes) {
  static constexpr Codec kJpeg{"JPEG", jpeg_info, decode_jpeg};
  static constexpr Codec kPng{"PNG", png_info, decode_png};
  static constexpr Codec kWebp{"WebP", webp_info, decode_webp};
  static constexpr Codec kBmp{"BMP", bmp_info, decode_bmp};
  if (starts_with(bytes, "\xff\xd8\xff"sv)) return kJpeg;
  if (starts_with(bytes, "\x89PNG\r\n\x1a\n"sv)) return kPng;
  if (starts_with(bytes, "RIFF"sv) && starts_with(bytes, "WEBP"sv, 8)) return kWebp;
  if (starts_with(bytes, "BM"sv)) return kBmp;
  if (bytes.empty()) throw DataError("the file is empty");
  throw DataError("the file is no JPEG, PNG, WebP or BMP image");
}

ByteSpan bytes_of(const at::Tensor& bytes) {
  if (!bytes.defined() || !bytes.is_cpu() || bytes.scalar_type() != at::kByte || bytes.dim() != 1 ||
      !bytes.is_contiguous()) {
    throw ArgumentError(
        "decode_image: the bytes should be a contiguous uint8 tensor of one dimension on the CPU");
  }
  return as_bytes(bytes);
}

void check_options(const DecodeOptions& options) {
  constexpr std::array<int, 4> kScales = {1, 2, 4, 8};
  if (std::ranges::find(kScales, options.scale_denominator) == kScales.end()) {
    throw_error<ArgumentError>("decode_image: scale_denominator should be 1, 2, 4 or 8, not {}",
                               options.scale_denominator);
  }
  if (options.box && options.apply_exif_orientation) {
    throw ArgumentError("decode_image: a box cannot be combined with apply_exif_orientation");
  }
}

at::Tensor cropped(const at::Tensor& image, const Box& box) {
  if (box.top < 0 || box.left < 0 || box.height < 1 || box.width < 1 ||
      box.height > image.size(0) - box.top || box.width > image.size(1) - box.left) {
    throw_error<ArgumentError>(
        "decode_image: the box at ({}, {}) of {} x {} is not inside the image of {} x {}", box.top, box.left,
        box.height, box.width, image.size(0), image.size(1));
  }
  return image.narrow(0, box.top, box.height).narrow(1, box.left, box.width);
}

// [channels, height, width]
at::Tensor oriented(const at::Tensor& image, int orientation) {
  switch (orientation) {
    case 2:
      return image.flip({-1});
    case 3:
      return image.flip({-1, -2});
    case 4:
      return image.flip({-2});
    case 5:
      return image.transpose(-1, -2);
    case 6:
      return image.transpose(-1, -2).flip({-1});
    case 7:
      return image.transpose(-1, -2).flip({-1, -2});
    case 8:
      return image.transpose(-1, -2).flip({-2});
    default:
      return image;
  }
}

}  // namespace

bool starts_with(ByteSpan bytes, std::string_view magic, std::size_t offset) {
  return bytes.size() >= offset + magic.size() &&
         std::equal(
             magic.begin(), magic.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset),
             [](char expected, std::uint8_t byte) { return static_cast<std::uint8_t>(expected) == byte; });
}

void check_size(std::int64_t width, std::int64_t height, std::int64_t max_pixels) {
  if (width < 1 || height < 1) throw_error<DataError>("the image has the size {} x {}", width, height);
  if (height > max_pixels / width) {
    throw_error<DataError>(
        "the header gives {} x {} pixels, more than the limit of {}; raise max_pixels if the file is "
        "trustworthy",
        width, height, max_pixels);
  }
}

at::Tensor empty_image(std::int64_t height, std::int64_t width, std::int64_t channels, at::ScalarType dtype) {
  return at::empty({height, width, channels}, dtype);
}

ImageInfo image_info(const at::Tensor& bytes) {
  const auto file = bytes_of(bytes);
  return codec_of(file).info(file);
}

at::Tensor decode_image(const at::Tensor& bytes, const DecodeOptions& options) {
  const auto file = bytes_of(bytes);
  check_options(options);
  const auto& codec = codec_of(file);
  const bool is_jpeg = codec.decode == decode_jpeg;
  if (!is_jpeg && options.scale_denominator != 1) {
    throw_error<ArgumentError>("decode_image: scale_denominator is for JPEG files, but this is a {} file",
                               codec.name);
  }
  auto image = codec.decode(file, options);
  if (options.box && !is_jpeg) image = cropped(image, *options.box);
  image = image.permute({2, 0, 1});
  return options.apply_exif_orientation ? oriented(image, codec.info(file).orientation) : image;
}

at::Tensor read_file(const std::filesystem::path& file) {
  const ErrorFile about(file);
  const ReadingScope reading(file.native());
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) throw_error<DataError>("{}: is a folder", file.string());
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  const auto bytes = static_cast<std::int64_t>(stream.tellg());
  if (!stream || bytes < 0) {
    throw_error<DataError>("{}: cannot be opened: {}", file.string(),
                           std::error_code(errno, std::generic_category()).message());
  }
  auto contents = at::empty({bytes}, at::kByte);
  stream.seekg(0);
  stream.read(reinterpret_cast<char*>(contents.mutable_data_ptr<std::uint8_t>()), bytes);
  if (!stream) throw_error<DataError>("{}: cannot be read to its end", file.string());
  return contents;
}

at::Tensor read_image(const std::filesystem::path& file, const DecodeOptions& options) {
  const ErrorFile about(file);
  const auto bytes = read_file(file);
  try {
    return decode_image(bytes, options);
  } catch (const DataError& error) {
    throw_error<DataError>("{}: {}", file.string(), error.what());
  }
}

namespace {

std::string dtype_and_shape(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

// [channels, height, width] -> contiguous [height, width, channels]
at::Tensor pixels_of(const char* function, const at::Tensor& image,
                     std::initializer_list<std::int64_t> channels) {
  const bool fits = image.defined() && image.is_cpu() && image.scalar_type() == at::kByte &&
                    image.dim() == 3 && std::ranges::find(channels, image.size(0)) != channels.end() &&
                    image.numel() > 0;
  if (!fits) {
    throw_error<ArgumentError>(
        "{}: the image should be uint8 [{} channels, height, width] on the CPU, not {}", function,
        fmt::join(channels.begin(), channels.end(), ", "), dtype_and_shape(image));
  }
  return image.permute({1, 2, 0}).contiguous();
}

void check_range(const char* function, const char* option, int value, int least, int most) {
  if (value < least || value > most) {
    throw_error<ArgumentError>("{}: {} should be {} to {}, not {}", function, option, least, most, value);
  }
}

// [n, 3 or more channels, height, width]
at::Tensor as_batch(const at::Tensor& images) {
  auto batch = images;
  if (batch.dim() == 2) batch = batch.unsqueeze(0);
  if (batch.dim() == 3) batch = batch.unsqueeze(0);
  if (batch.dim() != 4 || batch.size(0) == 0) {
    throw_error<ArgumentError>("make_grid: images should be [n, channels, height, width], not [{}]",
                               fmt::join(images.sizes(), ", "));
  }
  return batch.size(1) == 1 ? at::cat({batch, batch, batch}, 1) : batch;
}

at::Tensor scaled(const at::Tensor& image, const std::optional<std::pair<double, double>>& range) {
  constexpr double kLeastRange = 1e-5;
  const auto low = range ? range->first : image.min().item<double>();
  const auto high = range ? range->second : image.max().item<double>();
  return image.clamp(low, high).sub_(low).div_(std::max(high - low, kLeastRange));
}

at::Tensor normalized(const at::Tensor& batch, const GridOptions& options) {
  if (!options.normalize) return batch;
  if (!batch.is_floating_point()) throw ArgumentError("make_grid: normalize is for floating-point images");
  if (!options.scale_each) return scaled(batch, options.value_range);
  std::vector<at::Tensor> images;
  for (const auto& image : batch.unbind()) images.push_back(scaled(image, options.value_range));
  return at::stack(images);
}

// A new file takes the place of the old one.
const char* remedy_for(const std::error_code& code) {
  switch (code.value()) {
    case EBUSY:
      return "the file is a mount point, as a single file mounted into a container is, and cannot be "
             "replaced: mount its folder instead, or write to another file";
    case EACCES:
    case EPERM:
    case EROFS:
      return "its folder must be writable even if the file exists and is writable, because a new file "
             "replaces it: allow writing to the folder, or write to another one";
    default:
      return "check that its folder exists and has space";
  }
}

at::Tensor as_uint8(const at::Tensor& image) {
  if (!image.is_floating_point()) return image.to(at::kByte);
  return image.mul(255).add_(0.5).clamp_(0, 255).to(at::kByte);
}

void check_samples(const at::Tensor& images, bool normalize) {
  const bool is_batch = images.defined() && images.dim() == 4 && images.numel() > 0 &&
                        (images.scalar_type() == at::kByte || images.is_floating_point());
  if (!is_batch) {
    throw_error<ArgumentError>(
        "save_samples: the first tensor of a batch should be images, uint8 or floating-point [n, channels, "
        "height, width], not {}",
        dtype_and_shape(images));
  }
  if (normalize || !images.is_floating_point()) return;
  const auto low = images.min().item<double>();
  const auto high = images.max().item<double>();
  if (low >= 0 && high <= 1) return;
  throw_error<ArgumentError>(
      "save_samples: the images have values from {:g} to {:g}, which are not within [0, 1]; set .normalize = "
      "true to scale them, with .value_range = {{0, 1}} to cut them off instead",
      low, high);
}

}  // namespace

at::Tensor encode_jpeg(const at::Tensor& image, int quality) {
  check_range("encode_jpeg", "quality", quality, 1, 100);
  return write_jpeg(pixels_of("encode_jpeg", image, {1, 3}), quality);
}

at::Tensor encode_png(const at::Tensor& image, int compression_level) {
  check_range("encode_png", "compression_level", compression_level, 0, 9);
  return write_png(pixels_of("encode_png", image, {1, 2, 3, 4}), compression_level);
}

at::Tensor make_grid(const at::Tensor& images, const GridOptions& options) {
  if (options.nrow < 1 || options.padding < 0) {
    throw_error<ArgumentError>("make_grid: nrow should be positive and padding not negative, not {} and {}",
                               options.nrow, options.padding);
  }
  const auto batch = normalized(as_batch(images), options);
  if (batch.size(0) == 1) return batch[0];
  const auto columns = std::min(options.nrow, batch.size(0));
  const auto rows = (batch.size(0) + columns - 1) / columns;
  const auto height = batch.size(2) + options.padding;
  const auto width = batch.size(3) + options.padding;
  auto grid = at::full({batch.size(1), height * rows + options.padding, width * columns + options.padding},
                       options.pad_value, batch.options());
  for (std::int64_t i = 0; i < batch.size(0); ++i) {
    grid.narrow(1, i / columns * height + options.padding, batch.size(2))
        .narrow(2, i % columns * width + options.padding, batch.size(3))
        .copy_(batch[i]);
  }
  return grid;
}

void save_image(const at::Tensor& images, const std::filesystem::path& file, const GridOptions& options) {
  const ErrorFile about(file);
  const auto extension = file.extension().string();
  const bool png = extension == ".png";
  if (!png && extension != ".jpg" && extension != ".jpeg") {
    throw_error<ArgumentError>("save_image: {} should end in .png, .jpg or .jpeg", file.string());
  }
  const auto image = as_uint8(make_grid(images, options).cpu());
  const auto encoded = png ? encode_png(image) : encode_jpeg(image);
  try {
    AtomicFile out(file, {.sync = false, .for_one_rank = true});
    out.write(std::as_bytes(as_bytes(encoded)));
    out.commit();
  } catch (const std::system_error& error) {
    throw_error<DataError>("save_image: {} cannot be written: {}; {}", file.string(),
                           errno_text(error.code().value()), remedy_for(error.code()));
  }
}

void save_samples(const at::Tensor& images, const std::filesystem::path& file, const GridOptions& options) {
  check_samples(images, options.normalize);
  save_image(images, file, options);
}

at::Tensor detail::random_samples(std::int64_t size) {
  constexpr std::int64_t kSamples = 32;
  if (size == 0) throw ArgumentError("save_samples: the dataset is empty; there is nothing to draw");
  return at::randperm(size, at::kLong).narrow(0, 0, std::min(size, kSamples));
}

}  // namespace lockstep::data
