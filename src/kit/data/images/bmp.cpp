// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>

#include "base/throw_error.h"
#include "data/images/codec.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kFileHeader = 14;
constexpr std::size_t kCoreHeader = 12;
constexpr std::size_t kInfoHeader = 40;
constexpr std::size_t kMaskBytes = 12;
constexpr std::uint32_t kUncompressed = 0;
constexpr std::uint32_t kBitFields = 3;

std::uint32_t number(ByteSpan bytes, std::size_t offset, std::size_t count) {
  if (offset > bytes.size() || bytes.size() - offset < count) {
    throw DataError("BMP: the file ends within its header");
  }
  std::uint32_t value = 0;
  for (std::size_t i = count; i-- > 0;) value = value << 8 | bytes[offset + i];
  return value;
}

struct Header {
  std::int64_t width = 0;
  std::int64_t height = 0;
  bool bottom_up = true;
  std::uint32_t bits = 0;  // per pixel: 1, 4, 8, 24 or 32
  bool has_alpha = false;
  std::size_t palette = 0;        // offset
  std::size_t palette_entry = 0;  // bytes
  std::size_t colors = 0;
  std::size_t pixels = 0;  // offset

  bool has_palette() const { return bits <= 8; }
  std::size_t row_bytes() const { return (static_cast<std::size_t>(width) * bits + 31) / 32 * 4; }
  // The filling of the last row may be missing.
  std::size_t pixel_bytes() const {
    const auto last_row = (static_cast<std::size_t>(width) * bits + 7) / 8;
    return (static_cast<std::size_t>(height) - 1) * row_bytes() + last_row;
  }
};

void check_compression(ByteSpan bytes, const Header& header, std::uint32_t compression) {
  constexpr std::array<std::uint32_t, 3> kMasks = {0xff0000, 0xff00, 0xff};
  if (compression == kUncompressed) return;
  if (compression != kBitFields || header.bits != 32) {
    throw_error<DataError>(
        "BMP: compression {} with {} bits per pixel is not supported; convert the file to PNG", compression,
        header.bits);
  }
  for (std::size_t i = 0; i < kMasks.size(); ++i) {
    if (number(bytes, kFileHeader + kInfoHeader + 4 * i, 4) != kMasks[i]) {
      throw DataError("BMP: only 8 bits per color are supported; convert the file to PNG");
    }
  }
}

Header read_header(ByteSpan bytes) {
  Header header;
  header.pixels = number(bytes, 10, 4);
  const std::size_t info_bytes = number(bytes, kFileHeader, 4);
  const bool core = info_bytes == kCoreHeader;
  if (!core && info_bytes < kInfoHeader)
    throw_error<DataError>("BMP: unknown header of {} bytes", info_bytes);
  header.width = static_cast<std::int32_t>(number(bytes, 18, core ? 2 : 4));
  const auto height = static_cast<std::int32_t>(number(bytes, core ? 20 : 22, core ? 2 : 4));
  header.height = std::abs(std::int64_t{height});
  header.bottom_up = height > 0;
  header.bits = number(bytes, core ? 24 : 28, 2);
  constexpr std::array<std::uint32_t, 5> kBits = {1, 4, 8, 24, 32};
  if (std::ranges::find(kBits, header.bits) == kBits.end()) {
    throw_error<DataError>("BMP: {} bits per pixel are not supported; convert the file to PNG", header.bits);
  }
  const auto compression = core ? kUncompressed : number(bytes, 30, 4);
  check_compression(bytes, header, compression);
  constexpr std::size_t kAlphaMask = kFileHeader + 52;
  constexpr std::size_t kHeaderWithAlpha = 56;
  header.has_alpha = header.bits == 32 && info_bytes >= kHeaderWithAlpha && number(bytes, kAlphaMask, 4) != 0;
  header.palette = kFileHeader + info_bytes;
  header.palette_entry = core ? 3 : 4;
  if (header.has_palette()) {
    const std::size_t stored = core ? 0 : number(bytes, 46, 4);
    const std::size_t most = std::size_t{1} << header.bits;
    header.colors = stored == 0 ? most : std::min(stored, most);
  }
  if (header.pixels == 0) {  // they follow what precedes them
    const bool masks_follow = compression == kBitFields && info_bytes == kInfoHeader;
    header.pixels = header.palette + header.colors * header.palette_entry + (masks_follow ? kMaskBytes : 0);
  }
  return header;
}

using Pixel = std::array<std::uint8_t, 4>;  // red, green, blue, alpha

class Pixels {
 public:
  Pixels(ByteSpan bytes, const Header& header) : header_(header) {
    if (header.pixels > bytes.size() || bytes.size() - header.pixels < header.pixel_bytes()) {
      throw DataError("BMP: the file ends within the image");
    }
    rows_ = bytes.subspan(header.pixels);
    if (header.palette > bytes.size()) throw DataError("BMP: the file ends within its header");
    // A palette that should be longer than the file has the colors that are there.
    header_.colors = std::min(header.colors, (bytes.size() - header.palette) / header.palette_entry);
    palette_ = bytes.subspan(header.palette, header_.colors * header.palette_entry);
  }

  Pixel at(std::int64_t row, std::int64_t column) const {
    const auto stored_row = static_cast<std::size_t>(header_.bottom_up ? header_.height - 1 - row : row);
    const auto* line = rows_.data() + stored_row * header_.row_bytes();
    const auto x = static_cast<std::size_t>(column);
    if (!header_.has_palette()) return color(line + x * header_.bits / 8);
    const auto per_byte = 8 / header_.bits;
    const auto shift = 8 - header_.bits * (1 + x % per_byte);
    const auto index = std::size_t{line[x / per_byte]} >> shift & ((1U << header_.bits) - 1);
    if (index >= header_.colors) return {0, 0, 0, 255};  // as for PIL
    return color(palette_.data() + index * header_.palette_entry);
  }

 private:
  Pixel color(const std::uint8_t* stored) const {
    return {stored[2], stored[1], stored[0], header_.has_alpha ? stored[3] : std::uint8_t{255}};
  }

  Header header_;
  ByteSpan rows_{};
  ByteSpan palette_{};
};

}  // namespace

ImageInfo bmp_info(ByteSpan bytes) {
  const auto header = read_header(bytes);
  return {.format = ImageFormat::bmp,
          .width = header.width,
          .height = header.height,
          .channels = header.has_alpha ? 4 : 3};
}

at::Tensor decode_bmp(ByteSpan bytes, const DecodeOptions& options) {
  const auto header = read_header(bytes);
  check_size(header.width, header.height, options.max_pixels);
  const Pixels pixels(bytes, header);
  const bool gray = options.mode == ImageReadMode::GRAY || options.mode == ImageReadMode::GRAY_ALPHA;
  const bool alpha = options.mode == ImageReadMode::UNCHANGED ? header.has_alpha
                                                              : options.mode == ImageReadMode::GRAY_ALPHA ||
                                                                    options.mode == ImageReadMode::RGB_ALPHA;
  auto image = empty_image(header.height, header.width, (gray ? 1 : 3) + (alpha ? 1 : 0));
  auto* out = image.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t row = 0; row < header.height; ++row) {
    for (std::int64_t column = 0; column < header.width; ++column) {
      const auto pixel = pixels.at(row, column);
      if (gray) {
        *out++ = luma(pixel[0], pixel[1], pixel[2]);
      } else {
        out = std::copy_n(pixel.begin(), 3, out);
      }
      if (alpha) *out++ = pixel[3];
    }
  }
  return image;
}

}  // namespace lockstep::data
