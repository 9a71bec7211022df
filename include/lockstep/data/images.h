// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/subset.h>
#include <lockstep/device/pytree.h>
#include <lockstep/transforms/geometry.h>

namespace lockstep::data {

template <LoadableDataset Dataset>
class DataLoader;

/// The channels of a decoded image. torchvision: io.ImageReadMode.
enum class ImageReadMode {
  UNCHANGED,   ///< those of the file; the colors of a palette become RGB or RGBA
  GRAY,        ///< one channel
  GRAY_ALPHA,  ///< PNG and BMP only
  RGB,         ///< three channels
  RGB_ALPHA,   ///< not JPEG
};

using transforms::Box;

/// Options of decode_image().
struct DecodeOptions {
  ImageReadMode mode = ImageReadMode::UNCHANGED;  ///< the channels of the result
  /// Reduce the 16 bits per channel of a PNG file to the upper 8. torchvision: v2.ToDtype(uint8, scale=True).
  bool eight_bits = false;
  /// Rotate and flip the image as the EXIF orientation of a JPEG, PNG or WebP file asks.
  bool apply_exif_orientation = false;
  /// Refuse a file whose header gives more pixels. Default: PIL's limit, 2 * Image.MAX_IMAGE_PIXELS.
  std::int64_t max_pixels = 178'956'970;
  /// Decode only these pixels of a JPEG file; the result equals the same part of the whole image. Other
  /// formats are decoded whole and cropped. The coordinates count in the stored image, so a box cannot be
  /// combined with apply_exif_orientation.
  std::optional<Box> box = {};
  /// Decode a JPEG file at 1/1, 1/2, 1/4 or 1/8 of its size, with libjpeg's averages of pixels. The box
  /// counts in pixels of the smaller image.
  int scale_denominator = 1;
};

/// The format of an image file.
enum class ImageFormat {
  jpeg,  ///< JPEG
  png,   ///< PNG
  webp,  ///< WebP
  bmp,   ///< BMP
};

/// The header of an image file.
struct ImageInfo {
  ImageFormat format = ImageFormat::jpeg;  ///< format of the file
  std::int64_t width = 0;                  ///< pixels
  std::int64_t height = 0;                 ///< pixels
  int channels = 0;                        ///< of ImageReadMode::UNCHANGED
  int bits = 8;                            ///< per channel: 8 or 16
  int orientation = 1;                     ///< EXIF orientation, 1 to 8; 1 without one
};

/// Reads the header of a JPEG, PNG, WebP or BMP file. `bytes`: uint8 [n] on the CPU. Throws DataError when
/// the format is not one of these or the header is damaged.
ImageInfo image_info(const at::Tensor& bytes);

/// Decodes a JPEG, PNG, WebP or BMP file. `bytes`: uint8 [n] on the CPU. Returns uint8 [channels, height,
/// width], by default with the strides of torch.channels_last; uint16 for a PNG file with 16 bits per
/// channel, unless eight_bits is set. Throws DataError for damaged, truncated and too large files, and
/// ArgumentError for a mode that the format does not have. Thread-safe. torchvision: io.decode_image, with
/// equal pixels.
at::Tensor decode_image(const at::Tensor& bytes, const DecodeOptions& options = {});

/// Reads and decodes a file; errors name it. torchvision: io.decode_image(path).
at::Tensor read_image(const std::filesystem::path& file, const DecodeOptions& options = {});

/// The bytes of a file as uint8 [n]. Throws DataError naming the file. torchvision: io.read_file.
at::Tensor read_file(const std::filesystem::path& file);

/// Encodes uint8 [1 or 3, height, width] as JPEG with `quality` 1 to 100. Returns uint8 [n]. Throws
/// ArgumentError. torchvision: io.encode_jpeg.
at::Tensor encode_jpeg(const at::Tensor& image, int quality = 75);

/// Encodes uint8 [1 to 4, height, width] as PNG with `compression_level` 0 to 9. Returns uint8 [n]. Throws
/// ArgumentError. torchvision: io.encode_png, which takes 1 or 3 channels.
at::Tensor encode_png(const at::Tensor& image, int compression_level = 6);

/// Options of make_grid() and of the functions that save grids.
struct GridOptions {
  std::int64_t nrow = 8;     ///< images per row
  std::int64_t padding = 2;  ///< pixels between images
  bool normalize = false;    ///< shift and scale the values to [0, 1]
  /// The range that normalize maps to [0, 1]; default: the smallest and the largest value.
  std::optional<std::pair<double, double>> value_range = {};
  bool scale_each = false;  ///< normalize each image by its own range
  double pad_value = 0;     ///< value of the pixels between the images
};

/// Arranges images [n, channels, height, width], [channels, height, width] or [height, width] in a grid
/// [3 or more channels, height, width]; one channel becomes three. torchvision: utils.make_grid.
at::Tensor make_grid(const at::Tensor& images, const GridOptions& options = {});

/// Writes make_grid() of float images with values in [0, 1], or of uint8 images, to a .png, .jpg or .jpeg
/// file. The file appears under its name whole: a new file replaces an old one. So its folder must be
/// writable, and the file must not be a mount point itself, as a single file mounted into a container is.
/// Throws ArgumentError for another extension, DataError with the remedy when the file cannot be written.
/// torchvision: utils.save_image.
void save_image(const at::Tensor& images, const std::filesystem::path& file, const GridOptions& options = {});

/// Writes images as save_image() does, and checks that they are a batch: [n, channels, height, width] with 1
/// to 4 channels, uint8, or floating-point with values in [0, 1]. Set `normalize` to draw images with other
/// values, such as those of a Normalize. Throws ArgumentError for other shapes, dtypes and values and for
/// `normalize` with uint8, and the errors of save_image(). torchvision: utils.save_image, which cuts off
/// values outside [0, 1].
void save_samples(const at::Tensor& images, const std::filesystem::path& file,
                  const GridOptions& options = {});

/// Writes the images of a batch: its first tensor, such as Batch::data.
template <PyTree BatchType>
  requires(!BatchDataset<BatchType>)
void save_samples(BatchType batch, const std::filesystem::path& file, const GridOptions& options = {}) {
  const auto tensors = tensors_of(batch);
  save_samples(tensors.empty() ? at::Tensor() : tensors.front(), file, options);
}

namespace detail {
/// The indices of 32 different samples, or of all where there are fewer.
at::Tensor random_samples(std::int64_t size);
}  // namespace detail

/// Draws 32 random samples of a dataset as its transforms return them, or all samples if there are fewer:
/// `save_samples(train, "grid.png", {.normalize = true})`. Returns them as one batch, whose targets follow
/// the images row by row. The choice and the transforms draw from LibTorch's default generator; call
/// torch::manual_seed() to repeat a picture. Throws what get_batch() throws, and ArgumentError for an empty
/// dataset.
template <BatchDataset Dataset>
BatchOf<Dataset> save_samples(const Dataset& dataset, const std::filesystem::path& file,
                              const GridOptions& options = {}) {
  auto batch = dataset.get_batch(detail::random_samples(static_cast<std::int64_t>(dataset.size())));
  save_samples(batch, file, options);
  return batch;
}

/// Draws and returns the next batch of a loader:
/// `save_samples(DataLoader(train, {.batch_size = 64, .shuffle = true}), "grid.png")`. A copy of the loader
/// reads it, so the loader keeps its position; its generator, or LibTorch's default one, advances as in
/// begin(). Do not call it during a pass. With several ranks, call it on one. Throws what the loader throws,
/// and ArgumentError when there is no batch.
template <LoadableDataset Dataset>
auto save_samples(DataLoader<Dataset> loader, const std::filesystem::path& file,
                  const GridOptions& options = {}) {
  auto next = loader.begin();
  if (next == loader.end()) throw ArgumentError("save_samples: the loader yields no batch");
  auto batch = std::move(*next);
  save_samples(batch, file, options);
  return batch;
}

}  // namespace lockstep::data
