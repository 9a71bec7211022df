// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <bit>
#include <csetjmp>
#include <cstddef>
#include <png.h>
#include <vector>

#include <ATen/ops/empty.h>

#include "base/throw_error.h"
#include "data/images/codec.h"
#include "data/images/exif.h"

namespace lockstep::data {
namespace {

struct PngErrors {
  std::jmp_buf jump;
  std::array<char, 200> text;
};

[[noreturn]] void leave_png(png_structp codec, png_const_charp message) {
  auto* state = static_cast<PngErrors*>(::png_get_error_ptr(codec));
  std::size_t length = 0;
  while (message[length] != '\0' && length + 1 < state->text.size()) ++length;
  std::copy_n(message, length, state->text.begin());
  state->text[length] = '\0';
  std::longjmp(state->jump, 1);
}

void ignore_warning(png_structp /*codec*/, png_const_charp /*message*/) {}

// libpng takes memory for some chunks by their stated length alone.
void check_chunk_lengths(ByteSpan file) {
  constexpr std::size_t kSignature = 8;
  constexpr std::size_t kAround = 12;  // length, type and checksum
  for (auto left = file.subspan(std::min(kSignature, file.size())); left.size() >= kAround;) {
    const auto length =
        std::size_t{left[0]} << 24 | std::size_t{left[1]} << 16 | std::size_t{left[2]} << 8 | left[3];
    if (length > left.size() - kAround) throw DataError("libpng: the file ends within a chunk");
    constexpr std::array<std::uint8_t, 4> kEnd = {'I', 'E', 'N', 'D'};
    if (std::ranges::equal(left.subspan(4, kEnd.size()), kEnd)) return;  // bytes after the image are ignored
    left = left.subspan(length + kAround);
  }
}

void read_bytes(png_structp codec, png_bytep out, std::size_t count) {
  auto& left = *static_cast<ByteSpan*>(::png_get_io_ptr(codec));
  if (left.size() < count) ::png_error(codec, "the file ends within the image");
  std::copy_n(left.data(), count, out);
  left = left.subspan(count);
}

void append_bytes(png_structp codec, png_bytep bytes, std::size_t count) {
  auto& out = *static_cast<std::vector<std::uint8_t>*>(::png_get_io_ptr(codec));
  bool fits = true;
  try {
    out.insert(out.end(), bytes, bytes + count);
  } catch (const std::bad_alloc&) {
    fits = false;  // an error of libpng jumps, which may not leave a handler
  }
  if (!fits) ::png_error(codec, "out of memory");
}

// The codec of libpng, its description of the image and its errors.
struct PngReadHandle {
  PngReadHandle() {
    codec = ::png_create_read_struct(PNG_LIBPNG_VER_STRING, &errors, leave_png, ignore_warning);
    if (codec != nullptr) info = ::png_create_info_struct(codec);
  }
  ~PngReadHandle() { ::png_destroy_read_struct(&codec, &info, nullptr); }
  PngReadHandle(const PngReadHandle&) = delete;
  PngReadHandle& operator=(const PngReadHandle&) = delete;

  PngErrors errors{};
  png_structp codec = nullptr;
  png_infop info = nullptr;
};

class PngReader {
 public:
  explicit PngReader(ByteSpan bytes) : left_(bytes) {
    if (info_ == nullptr) throw DataError("libpng: out of memory");
    check_chunk_lengths(bytes);
    guarded(errors_, "libpng", [&] {
      ::png_set_read_fn(codec_, &left_, read_bytes);
      // Texts and palettes for other devices, of which a small file can hold gigabytes.
      constexpr int kChunks = 4;
      ::png_set_keep_unknown_chunks(codec_, PNG_HANDLE_CHUNK_NEVER,
                                    reinterpret_cast<png_const_bytep>("tEXt\0zTXt\0iTXt\0sPLT"), kChunks);
      ::png_set_user_limits(codec_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
      ::png_read_info(codec_, info_);
    });
  }

  ImageInfo info() const {
    return {.format = ImageFormat::png,
            .width = ::png_get_image_width(codec_, info_),
            .height = ::png_get_image_height(codec_, info_),
            .channels = (has_color() ? 3 : 1) + (has_alpha() ? 1 : 0),
            .bits = is_wide() ? 16 : 8,
            .orientation = orientation()};
  }

  at::Tensor read(const DecodeOptions& options) {
    int passes = 1;
    guarded(errors_, "libpng", [&] {
      choose_channels(options.mode);
      if (is_wide() && options.eight_bits) {
        ::png_set_strip_16(codec_);
      } else if (is_wide() && std::endian::native == std::endian::little) {
        ::png_set_swap(codec_);
      }
      passes = ::png_set_interlace_handling(codec_);
      ::png_read_update_info(codec_, info_);
    });
    const std::int64_t height = ::png_get_image_height(codec_, info_);
    auto image = empty_image(height, ::png_get_image_width(codec_, info_), ::png_get_channels(codec_, info_),
                             is_wide() ? at::kUInt16 : at::kByte);
    auto* const first = static_cast<std::uint8_t*>(image.mutable_data_ptr());
    const auto row_bytes = ::png_get_rowbytes(codec_, info_);
    guarded(errors_, "libpng", [&] {
      for (int pass = 0; pass < passes; ++pass) {
        for (std::int64_t row = 0; row < height; ++row) {
          ::png_read_row(codec_, first + static_cast<std::size_t>(row) * row_bytes, nullptr);
        }
      }
      // Without png_read_end(): a file may end here, as for PIL and torchvision.
    });
    return image;
  }

 private:
  int color_type() const { return ::png_get_color_type(codec_, info_); }
  bool is_palette() const { return color_type() == PNG_COLOR_TYPE_PALETTE; }
  bool has_color() const { return (color_type() & PNG_COLOR_MASK_COLOR) != 0; }
  bool has_transparent_colors() const { return ::png_get_valid(codec_, info_, PNG_INFO_tRNS) != 0; }
  bool has_alpha() const {
    return (color_type() & PNG_COLOR_MASK_ALPHA) != 0 || (is_palette() && has_transparent_colors());
  }
  bool is_wide() const { return ::png_get_bit_depth(codec_, info_) == 16; }

  int orientation() const {
    png_bytep data = nullptr;
    png_uint_32 bytes = 0;
    if (::png_get_eXIf_1(codec_, info_, &bytes, &data) == 0) return 1;
    return exif_orientation({data, bytes});
  }

  void choose_channels(ImageReadMode mode) {
    const auto source = info();
    const bool had_color = source.channels >= 3;
    const bool had_alpha = source.channels % 2 == 0;
    const bool unchanged = mode == ImageReadMode::UNCHANGED;
    const bool wants_color =
        unchanged ? had_color : mode == ImageReadMode::RGB || mode == ImageReadMode::RGB_ALPHA;
    const bool wants_alpha =
        unchanged ? had_alpha : mode == ImageReadMode::GRAY_ALPHA || mode == ImageReadMode::RGB_ALPHA;

    if (is_palette()) ::png_set_palette_to_rgb(codec_);
    if (is_palette() && has_transparent_colors()) ::png_set_tRNS_to_alpha(codec_);
    if (!had_color) ::png_set_expand_gray_1_2_4_to_8(codec_);
    if (had_color && !wants_color) {
      constexpr int kSilently = 1;
      ::png_set_rgb_to_gray(codec_, kSilently, 0.2989, 0.587);  // torchvision's weights
    }
    if (!had_color && wants_color) ::png_set_gray_to_rgb(codec_);
    if (had_alpha && !wants_alpha) ::png_set_strip_alpha(codec_);
    if (!had_alpha && wants_alpha) {
      ::png_set_add_alpha(codec_, is_wide() ? 0xffff : 0xff, PNG_FILLER_AFTER);
    }
  }

  PngReadHandle handle_{};
  PngErrors& errors_ = handle_.errors;
  png_structp codec_ = handle_.codec;
  png_infop info_ = handle_.info;
  ByteSpan left_;
};

struct PngWriteHandle {
  PngWriteHandle() {
    codec = ::png_create_write_struct(PNG_LIBPNG_VER_STRING, &errors, leave_png, ignore_warning);
    if (codec != nullptr) info = ::png_create_info_struct(codec);
  }
  ~PngWriteHandle() { ::png_destroy_write_struct(&codec, &info); }
  PngWriteHandle(const PngWriteHandle&) = delete;
  PngWriteHandle& operator=(const PngWriteHandle&) = delete;

  PngErrors errors{};
  png_structp codec = nullptr;
  png_infop info = nullptr;
};

class PngWriter {
 public:
  PngWriter() {
    if (info_ == nullptr) throw DataError("libpng: out of memory");
    guarded(errors_, "libpng", [&] { ::png_set_write_fn(codec_, &bytes_, append_bytes, nullptr); });
  }

  at::Tensor write(const at::Tensor& pixels, int compression_level) {
    constexpr std::array<int, 5> kTypes = {0, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA,
                                           PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA};
    const auto height = pixels.size(0);
    const auto channels = pixels.size(2);
    const auto row_bytes = pixels.size(1) * channels;
    const auto* row = pixels.const_data_ptr<std::uint8_t>();
    guarded(errors_, "libpng", [&] {
      ::png_set_compression_level(codec_, compression_level);
      ::png_set_IHDR(codec_, info_, static_cast<png_uint_32>(pixels.size(1)),
                     static_cast<png_uint_32>(height), 8, kTypes[static_cast<std::size_t>(channels)],
                     PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
      ::png_write_info(codec_, info_);
      for (std::int64_t i = 0; i < height; ++i, row += row_bytes) ::png_write_row(codec_, row);
      ::png_write_end(codec_, info_);
    });
    auto encoded = at::empty({static_cast<std::int64_t>(bytes_.size())}, at::kByte);
    std::ranges::copy(bytes_, encoded.mutable_data_ptr<std::uint8_t>());
    return encoded;
  }

 private:
  PngWriteHandle handle_{};
  PngErrors& errors_ = handle_.errors;
  png_structp codec_ = handle_.codec;
  png_infop info_ = handle_.info;
  std::vector<std::uint8_t> bytes_{};
};

}  // namespace

ImageInfo png_info(ByteSpan bytes) { return PngReader(bytes).info(); }

at::Tensor decode_png(ByteSpan bytes, const DecodeOptions& options) {
  PngReader reader(bytes);
  const auto info = reader.info();
  check_size(info.width, info.height, options.max_pixels);
  return reader.read(options);
}

at::Tensor write_png(const at::Tensor& pixels, int compression_level) {
  return PngWriter().write(pixels, compression_level);
}

}  // namespace lockstep::data
