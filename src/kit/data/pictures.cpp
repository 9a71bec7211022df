// SPDX-License-Identifier: BSD-3-Clause
#include "data/pictures.h"

namespace lockstep::data {
namespace {

// The largest fraction of the size of which the box is not smaller than the result.
int scale_denominator_of(const Box& box, const std::optional<transforms::ImageSize>& result) {
  constexpr int kMost = 8;
  int denominator = 1;
  while (result && denominator < kMost && box.height / (2 * denominator) >= result->height &&
         box.width / (2 * denominator) >= result->width) {
    denominator *= 2;
  }
  return denominator;
}

// The box in an image that is smaller by the denominator; inside of it, and not smaller than the result.
Box scaled(const Box& box, int denominator) {
  return {.top = box.top / denominator,
          .left = box.left / denominator,
          .height = box.height / denominator,
          .width = box.width / denominator};
}

}  // namespace

at::Tensor decode_and_transform(const at::Tensor& bytes, const PictureReading& reading,
                                const transforms::OptionalGenerator& generator) {
  if (!reading.transform) return decode_image(bytes, reading.decode);
  const auto info = image_info(bytes);
  if (reading.decode.apply_exif_orientation && info.orientation != 1) {
    return (*reading.transform)(decode_image(bytes, reading.decode), generator);
  }
  const auto decode = [&](const Box& box, const std::optional<transforms::ImageSize>& result) {
    const bool may_scale = reading.scaled_decoding && info.format == ImageFormat::jpeg;
    auto options = reading.decode;
    options.apply_exif_orientation = false;
    options.scale_denominator = may_scale ? scale_denominator_of(box, result) : 1;
    options.box = scaled(box, options.scale_denominator);
    return decode_image(bytes, options);
  };
  return (*reading.transform)(
      transforms::EncodedImage{.height = info.height, .width = info.width, .decode = decode}, generator);
}

}  // namespace lockstep::data
