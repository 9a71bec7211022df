// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdio>  // jpeglib.h needs it
#include <cstdlib>
#include <jpeglib.h>
#include <type_traits>
#include <vector>

#include <ATen/ops/empty.h>
// after jpeglib.h
#include <jerror.h>

#include "base/throw_error.h"
#include "data/images/codec.h"
#include "data/images/exif.h"

namespace lockstep::data {
namespace {

// A progressive file of a few kilobytes can hold thousands of scans over a large image.
constexpr int kMostScans = 500;

struct JpegErrors {
  jpeg_error_mgr manager;  // first: libjpeg passes a pointer to it
  std::jmp_buf jump;
  std::array<char, JMSG_LENGTH_MAX> text;
};

[[noreturn]] void leave_jpeg(j_common_ptr codec) {
  auto* state = reinterpret_cast<JpegErrors*>(codec->err);
  codec->err->format_message(codec, state->text.data());
  std::longjmp(state->jump, 1);
}

// libjpeg replaces missing bytes at the end of a file by grey pixels and warns; other warnings concern pixels
// that every decoder shows.
void refuse_truncated(j_common_ptr codec, int level) {
  if (level < 0 && codec->err->msg_code == JWRN_JPEG_EOF) leave_jpeg(codec);
}

void limit_scans(j_common_ptr codec) {
  if (codec->is_decompressor == 0) return;
  if (reinterpret_cast<j_decompress_ptr>(codec)->input_scan_number > kMostScans) {
    codec->err->msg_code = JERR_BAD_PROGRESSION;
    leave_jpeg(codec);
  }
}

void prepare_errors(JpegErrors& state) {
  ::jpeg_std_error(&state.manager);
  state.manager.error_exit = leave_jpeg;
  state.manager.emit_message = refuse_truncated;
}

int channels_of(J_COLOR_SPACE space) {
  switch (space) {
    case JCS_GRAYSCALE:
      return 1;
    case JCS_CMYK:
    case JCS_YCCK:
      return 4;
    default:
      return 3;
  }
}

bool is_cmyk(J_COLOR_SPACE space) { return space == JCS_CMYK || space == JCS_YCCK; }

// The codec of libjpeg and its errors.
template <typename Codec>
struct JpegHandle {
  JpegHandle() {
    prepare_errors(error);
    codec.err = &error.manager;
    guarded(error, "libjpeg", [&] {
      if constexpr (std::is_same_v<Codec, jpeg_decompress_struct>) {
        jpeg_create_decompress(&codec);
      } else {
        jpeg_create_compress(&codec);
      }
    });
  }
  ~JpegHandle() { ::jpeg_destroy(reinterpret_cast<j_common_ptr>(&codec)); }
  JpegHandle(const JpegHandle&) = delete;
  JpegHandle& operator=(const JpegHandle&) = delete;

  Codec codec{};
  JpegErrors error{};
};

class JpegReader {
 public:
  explicit JpegReader(ByteSpan bytes) {
    guarded(error_, "libjpeg", [&] {
      ::jpeg_mem_src(&codec_, bytes.data(), bytes.size());
      ::jpeg_save_markers(&codec_, JPEG_APP0 + 1, 0xffff);
      ::jpeg_read_header(&codec_, TRUE);
    });
    progress_.progress_monitor = limit_scans;
    codec_.progress = &progress_;
  }

  ImageInfo info() const {
    return {.format = ImageFormat::jpeg,
            .width = codec_.image_width,
            .height = codec_.image_height,
            .channels = channels_of(codec_.jpeg_color_space),
            .orientation = orientation()};
  }

  at::Tensor read(const DecodeOptions& options) {
    choose_colors(options.mode);
    codec_.scale_num = 1;
    codec_.scale_denom = static_cast<unsigned>(options.scale_denominator);
    guarded(error_, "libjpeg", [&] { ::jpeg_start_decompress(&codec_); });
    const Box whole{.height = codec_.output_height, .width = codec_.output_width};
    const auto box = options.box.value_or(whole);
    check_box(box, whole);
    return read_box(box);
  }

 private:
  int orientation() const {
    constexpr std::array<std::uint8_t, 6> kExif = {'E', 'x', 'i', 'f', 0, 0};
    for (auto* marker = codec_.marker_list; marker != nullptr; marker = marker->next) {
      const ByteSpan data(marker->data, marker->data_length);
      if (data.size() > kExif.size() && std::ranges::equal(data.first(kExif.size()), kExif)) {
        return exif_orientation(data.subspan(kExif.size()));
      }
    }
    return 1;
  }

  void choose_colors(ImageReadMode mode) {
    if (mode == ImageReadMode::GRAY_ALPHA || mode == ImageReadMode::RGB_ALPHA) {
      throw ArgumentError("decode_image: a JPEG file has no alpha channel; use rgb or gray");
    }
    mode_ = mode;
    // libjpeg converts CMYK to nothing else.
    if (mode == ImageReadMode::UNCHANGED || is_cmyk(codec_.jpeg_color_space)) return;
    codec_.out_color_space = mode == ImageReadMode::GRAY ? JCS_GRAYSCALE : JCS_RGB;
  }

  static void check_box(const Box& box, const Box& whole) {
    if (box.top < 0 || box.left < 0 || box.height < 1 || box.width < 1 ||
        box.height > whole.height - box.top || box.width > whole.width - box.left) {
      throw_error<ArgumentError>(
          "decode_image: the box at ({}, {}) of {} x {} is not inside the image of {} x {}", box.top,
          box.left, box.height, box.width, whole.height, whole.width);
    }
  }

  // Restricts the columns to those of the box and a margin: at its edges libjpeg interpolates the colors
  // differently. Returns the box's first column.
  std::int64_t crop_columns(const Box& box) {
    constexpr int kMostSampling = 2;  // with more, the pixels differ with any margin
    if (codec_.max_h_samp_factor > kMostSampling) return box.left;
    const auto block = codec_.max_h_samp_factor * codec_.min_DCT_scaled_size;
    auto first = static_cast<JDIMENSION>(std::max<std::int64_t>(0, box.left - block));
    const auto end = std::min<std::int64_t>(codec_.output_width, box.left + box.width + block);
    auto width = static_cast<JDIMENSION>(end - first);
    if (width < codec_.output_width) {
      guarded(error_, "libjpeg", [&] { ::jpeg_crop_scanline(&codec_, &first, &width); });
    }
    return box.left - first;
  }

  at::Tensor read_box(const Box& box) {
    const auto first = crop_columns(box);
    const bool convert = is_cmyk(codec_.out_color_space) && mode_ != ImageReadMode::UNCHANGED;
    const int stored = codec_.output_components;
    const int channels = !convert ? stored : mode_ == ImageReadMode::GRAY ? 1 : 3;
    auto image = empty_image(box.height, box.width, channels);
    auto* out = image.mutable_data_ptr<std::uint8_t>();
    const bool direct = !convert && box.width == codec_.output_width;
    std::vector<std::uint8_t> buffer(direct ? 0 : std::size_t{codec_.output_width} * stored);
    guarded(error_, "libjpeg", [&] {
      if (box.top > 0) ::jpeg_skip_scanlines(&codec_, static_cast<JDIMENSION>(box.top));
      for (std::int64_t row = 0; row < box.height; ++row, out += box.width * channels) {
        auto* line = direct ? out : buffer.data();
        ::jpeg_read_scanlines(&codec_, &line, 1);
        if (direct) continue;
        const auto* pixels = line + first * stored;
        if (convert) {
          convert_cmyk(pixels, box.width, channels, out);
        } else {
          std::copy_n(pixels, box.width * stored, out);
        }
      }
    });
    return image;
  }

  // PIL's arithmetic, for the inverted values that JPEG files store.
  static void convert_cmyk(const std::uint8_t* cmyk, std::int64_t pixels, int channels, std::uint8_t* out) {
    for (std::int64_t i = 0; i < pixels; ++i, cmyk += 4, out += channels) {
      std::array<int, 3> rgb{};
      const int light = cmyk[3];
      for (std::size_t c = 0; c < rgb.size(); ++c) {
        int dark = light * (255 - cmyk[c]) + 128;
        dark = ((dark >> 8) + dark) >> 8;
        rgb[c] = std::clamp(light - dark, 0, 255);
      }
      if (channels == 1) {
        *out = luma(rgb[0], rgb[1], rgb[2]);
      } else {
        std::ranges::copy(rgb, out);
      }
    }
  }

  JpegHandle<jpeg_decompress_struct> handle_{};
  jpeg_decompress_struct& codec_ = handle_.codec;
  JpegErrors& error_ = handle_.error;
  jpeg_progress_mgr progress_{};
  ImageReadMode mode_ = ImageReadMode::UNCHANGED;
};

class JpegWriter {
 public:
  JpegWriter() {
    guarded(error_, "libjpeg", [&] { ::jpeg_mem_dest(&codec_, &bytes_, &size_); });
  }
  ~JpegWriter() { std::free(bytes_); }  // NOLINT: libjpeg's buffer is from malloc()
  JpegWriter(const JpegWriter&) = delete;
  JpegWriter& operator=(const JpegWriter&) = delete;

  at::Tensor write(const at::Tensor& pixels, int quality) {
    const auto width = pixels.size(1);
    const auto channels = pixels.size(2);
    codec_.image_width = static_cast<JDIMENSION>(width);
    codec_.image_height = static_cast<JDIMENSION>(pixels.size(0));
    codec_.input_components = static_cast<int>(channels);
    codec_.in_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    // libjpeg takes rows that it may not write to as mutable ones.
    auto* row = const_cast<std::uint8_t*>(pixels.const_data_ptr<std::uint8_t>());
    try {
      guarded(error_, "libjpeg", [&] {
        ::jpeg_set_defaults(&codec_);
        ::jpeg_set_quality(&codec_, quality, TRUE);
        ::jpeg_start_compress(&codec_, TRUE);
        for (; codec_.next_scanline < codec_.image_height; row += width * channels) {
          ::jpeg_write_scanlines(&codec_, &row, 1);
        }
        ::jpeg_finish_compress(&codec_);
      });
    } catch (const DataError&) {
      bytes_ = nullptr;  // after an error in the middle, libjpeg may have freed it
      throw;
    }
    auto encoded = at::empty({static_cast<std::int64_t>(size_)}, at::kByte);
    std::copy_n(bytes_, size_, encoded.mutable_data_ptr<std::uint8_t>());
    return encoded;
  }

 private:
  JpegHandle<jpeg_compress_struct> handle_{};
  jpeg_compress_struct& codec_ = handle_.codec;
  JpegErrors& error_ = handle_.error;
  unsigned char* bytes_ = nullptr;
  unsigned long size_ = 0;  // NOLINT: libjpeg's type
};

}  // namespace

ImageInfo jpeg_info(ByteSpan bytes) { return JpegReader(bytes).info(); }

at::Tensor decode_jpeg(ByteSpan bytes, const DecodeOptions& options) {
  JpegReader reader(bytes);
  const auto info = reader.info();
  check_size(info.width, info.height, options.max_pixels);
  return reader.read(options);
}

at::Tensor write_jpeg(const at::Tensor& pixels, int quality) { return JpegWriter().write(pixels, quality); }

}  // namespace lockstep::data
