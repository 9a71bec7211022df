// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <system_error>

#include <ATen/ops/empty.h>

#include "base/throw_error.h"
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
  const auto bytes = read_file(file);
  try {
    return decode_image(bytes, options);
  } catch (const DataError& error) {
    throw_error<DataError>("{}: {}", file.string(), error.what());
  }
}

}  // namespace lockstep::data
