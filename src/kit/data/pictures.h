// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <lockstep/data/images.h>
#include <lockstep/transforms/transforms.h>

namespace lockstep::data {

// How the pictures of a dataset are read.
struct PictureReading {
  std::optional<transforms::Transform> transform;
  DecodeOptions decode;
  bool scaled_decoding;
};

// As uint8 RGB, by the options of a dataset.
template <typename Options>
PictureReading rgb_reading(const Options& options) {
  return {.transform = options.transform,
          .decode = {.mode = ImageReadMode::RGB,
                     .eight_bits = true,
                     .apply_exif_orientation = options.apply_exif_orientation,
                     .max_pixels = options.max_pixels},
          .scaled_decoding = options.scaled_decoding};
}

// Decodes only the pixels that the transform takes.
at::Tensor decode_and_transform(const at::Tensor& bytes, const PictureReading& reading,
                                const transforms::OptionalGenerator& generator);

}  // namespace lockstep::data
