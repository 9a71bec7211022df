// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "base/throw_error.h"
#include "data/images/codec.h"
#include "data/images/exif.h"

#ifdef LOCKSTEP_WITH_WEBP

#include <webp/decode.h>

namespace lockstep::data {
namespace {

WebPBitstreamFeatures features_of(ByteSpan bytes) {
  WebPBitstreamFeatures features;
  const auto status = ::WebPGetFeatures(bytes.data(), bytes.size(), &features);
  if (status != VP8_STATUS_OK) throw_error<DataError>("libwebp: no readable header (status {})", int(status));
  if (features.has_animation != 0) {
    throw DataError("the WebP file is an animation; only single images are supported");
  }
  return features;
}

std::size_t little_endian(ByteSpan bytes) {
  return bytes[0] | std::size_t{bytes[1]} << 8 | std::size_t{bytes[2]} << 16 | std::size_t{bytes[3]} << 24;
}

// The first EXIF chunk of the RIFF container; empty without one, or without the flag that announces it.
ByteSpan exif_chunk(ByteSpan file) {
  constexpr std::size_t kRiffHeader = 12;
  constexpr std::size_t kChunkHeader = 8;  // name and size
  constexpr std::size_t kFlags = kRiffHeader + kChunkHeader;
  constexpr unsigned kExifFlag = 8;
  if (file.size() <= kFlags || !starts_with(file, "VP8X", kRiffHeader)) return {};
  if ((file[kFlags] & kExifFlag) == 0) return {};
  for (auto left = file.subspan(kRiffHeader); left.size() >= kChunkHeader;) {
    const auto size = little_endian(left.subspan(4));
    const auto contents = left.subspan(kChunkHeader);
    if (size > contents.size()) return {};
    if (starts_with(left, "EXIF")) return contents.first(size);
    left = contents.subspan(std::min(size + size % 2, contents.size()));  // an even size
  }
  return {};
}

at::Tensor to_gray(const at::Tensor& rgb) {
  auto gray = empty_image(rgb.size(0), rgb.size(1), 1);
  const auto* in = rgb.const_data_ptr<std::uint8_t>();
  auto* out = gray.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < gray.numel(); ++i, in += 3) out[i] = luma(in[0], in[1], in[2]);
  return gray;
}

}  // namespace

ImageInfo webp_info(ByteSpan bytes) {
  const auto features = features_of(bytes);
  return {.format = ImageFormat::webp,
          .width = features.width,
          .height = features.height,
          .channels = features.has_alpha != 0 ? 4 : 3,
          .orientation = exif_orientation(exif_chunk(bytes))};
}

at::Tensor decode_webp(ByteSpan bytes, const DecodeOptions& options) {
  if (options.mode == ImageReadMode::GRAY_ALPHA) {
    throw ArgumentError("decode_image: a WebP file cannot be read as gray_alpha; use gray or rgb_alpha");
  }
  const auto info = webp_info(bytes);
  check_size(info.width, info.height, options.max_pixels);
  const bool alpha = options.mode == ImageReadMode::RGB_ALPHA ||
                     (options.mode == ImageReadMode::UNCHANGED && info.channels == 4);
  auto image = empty_image(info.height, info.width, alpha ? 4 : 3);
  auto* out = image.mutable_data_ptr<std::uint8_t>();
  const auto row_bytes = static_cast<int>(image.stride(0));
  const auto total = static_cast<std::size_t>(image.numel());
  const auto decode = alpha ? ::WebPDecodeRGBAInto : ::WebPDecodeRGBInto;
  if (decode(bytes.data(), bytes.size(), out, total, row_bytes) == nullptr) {
    throw DataError("libwebp: the image is damaged or truncated");
  }
  return options.mode == ImageReadMode::GRAY ? to_gray(image) : image;
}

}  // namespace lockstep::data

#else

namespace lockstep::data {

ImageInfo webp_info(ByteSpan /*bytes*/) {
  throw DataError("the file is a WebP image, but this Lockstep was built without LOCKSTEP_WITH_WEBP");
}

at::Tensor decode_webp(ByteSpan bytes, const DecodeOptions& /*options*/) {
  webp_info(bytes);
  return {};
}

}  // namespace lockstep::data

#endif
