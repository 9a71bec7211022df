// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <lockstep/data/images.h>

#include "base/throw_error.h"
#include "data/bytes.h"

namespace lockstep::data {

// Every reader returns [height, width, channels], contiguous, with the channels of options.mode, and throws
// DataError without a file's name.
ImageInfo jpeg_info(ByteSpan bytes);
at::Tensor decode_jpeg(ByteSpan bytes, const DecodeOptions& options);

// Encodes contiguous uint8 [height, width, channels] as uint8 [n].
at::Tensor write_jpeg(const at::Tensor& pixels, int quality);

ImageInfo png_info(ByteSpan bytes);
at::Tensor decode_png(ByteSpan bytes, const DecodeOptions& options);

at::Tensor write_png(const at::Tensor& pixels, int compression_level);

ImageInfo webp_info(ByteSpan bytes);
at::Tensor decode_webp(ByteSpan bytes, const DecodeOptions& options);

ImageInfo bmp_info(ByteSpan bytes);
at::Tensor decode_bmp(ByteSpan bytes, const DecodeOptions& options);

// Whether `magic` is at `offset`.
bool starts_with(ByteSpan bytes, std::string_view magic, std::size_t offset = 0);

// Throws DataError when the image has more pixels than allowed, or none.
void check_size(std::int64_t width, std::int64_t height, std::int64_t max_pixels);

// uint8 [height, width, channels], not initialized.
at::Tensor empty_image(std::int64_t height, std::int64_t width, std::int64_t channels,
                       at::ScalarType dtype = at::kByte);

// The luma of ITU-R 601-2, rounded as PIL does.
constexpr std::uint8_t luma(int red, int green, int blue) {
  return static_cast<std::uint8_t>((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16);
}

// Runs `calls`, which call a C library and own nothing: an error of the library jumps over them to
// `state.jump`, with its message in `state.text`. Throws it as DataError.
template <typename State, typename Calls>
void guarded(State& state, const char* library, Calls&& calls) {
  if (setjmp(state.jump) != 0) throw_error<DataError>("{}: {}", library, state.text.data());
  calls();
}

}  // namespace lockstep::data
