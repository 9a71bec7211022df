// SPDX-License-Identifier: BSD-3-Clause
// Whatever the bytes are, decoding them gives an image or a DataError. The first byte says how they are
// decoded.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <ATen/Functions.h>

#include <lockstep/base/error.h>
#include <lockstep/data/images.h>

namespace {

using lockstep::data::DecodeOptions;
using lockstep::data::ImageReadMode;

DecodeOptions options_of(std::uint8_t choice) {
  constexpr int kModes = 5;
  DecodeOptions options{.mode = static_cast<ImageReadMode>(choice % kModes), .max_pixels = 1 << 20};
  const auto rest = choice / kModes;
  options.apply_exif_orientation = rest % 2 == 1;
  options.scale_denominator = 1 << (rest / 2 % 4);
  if (rest / 8 % 2 == 1 && !options.apply_exif_orientation) {
    options.box = lockstep::data::Box{.top = 3, .left = 5, .height = 7, .width = 6};
  }
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const auto file = at::empty({static_cast<std::int64_t>(size) - 1}, at::kByte);
  std::copy_n(bytes + 1, size - 1, file.mutable_data_ptr<std::uint8_t>());
  try {
    lockstep::data::decode_image(file, options_of(bytes[0]));
  } catch (const lockstep::DataError&) {
  } catch (const lockstep::ArgumentError&) {
  }
  return 0;
}
