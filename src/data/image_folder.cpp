// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <lockstep/data/image_folder.h>
#include <lockstep/data/images.h>
#include <lockstep/data/loader_position.h>

#include "base/throw_error.h"
#include "data/folder_listing.h"
#include "data/sample_transforms.h"

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

struct Reading {
  std::optional<transforms::Transform> transform;
  DecodeOptions decode;
  bool scaled_decoding;
};

at::Tensor decode_and_transform(const at::Tensor& bytes, const Reading& reading,
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

at::Tensor bytes_of(const std::filesystem::path& file) {
  try {
    return read_file(file);
  } catch (const DataError& error) {
    throw Error(error.what());  // no property of the picture: a policy for damaged files does not apply
  }
}

at::Tensor read_picture(const std::filesystem::path& file, const Reading& reading,
                        const transforms::OptionalGenerator& generator) {
  const auto bytes = bytes_of(file);
  try {
    return decode_and_transform(bytes, reading, generator);
  } catch (const DataError& error) {
    throw_error<DataError>("{}: {}", file.string(), error.what());
  } catch (const ArgumentError& error) {
    throw_error<ArgumentError>("{}: {}", file.string(), error.what());
  }
}

}  // namespace

DatasetFolder::DatasetFolder(const std::filesystem::path& root, TransformingLoader load,
                             DatasetFolderOptions options)
    : listing_(std::make_shared<FolderListing>(list_folder(root, options))),
      load_(std::move(load)),
      options_(std::move(options)) {}

DatasetFolder::DatasetFolder(const std::filesystem::path& root, SampleLoader loader,
                             DatasetFolderOptions options)
    : DatasetFolder(root,
                    TransformingLoader([loader = std::move(loader), transform = options.transform](
                                           const auto& file, const auto& generator) {
                      auto sample = loader(file);
                      return transform ? (*transform)(sample, generator) : sample;
                    }),
                    options) {
  if (options_.scaled_decoding || options_.apply_exif_orientation ||
      options_.max_pixels != DecodeOptions().max_pixels) {
    throw ArgumentError(
        "DatasetFolder: scaled_decoding, apply_exif_orientation and max_pixels are options of ImageFolder");
  }
}

std::int64_t DatasetFolder::size() const { return static_cast<std::int64_t>(listing_->size()); }

const std::vector<std::string>& DatasetFolder::classes() const { return listing_->classes.classes; }

const std::map<std::string, std::int64_t>& DatasetFolder::class_to_idx() const {
  return listing_->classes.class_to_idx;
}

std::filesystem::path DatasetFolder::path(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw_error<ArgumentError>("DatasetFolder: index {} is out of range for {} samples", index, size());
  }
  return listing_->path(static_cast<std::size_t>(index));
}

std::vector<std::int64_t> DatasetFolder::targets() const {
  std::vector<std::int64_t> targets(listing_->size());
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = listing_->target(i);
  return targets;
}

std::optional<at::Tensor> DatasetFolder::try_load(std::int64_t index,
                                                  const transforms::OptionalGenerator& generator) const {
  try {
    return load_(listing_->path(static_cast<std::size_t>(index)), generator);
  } catch (const DataError&) {
    ++*unreadable_;
    if (options_.on_unreadable == OnUnreadable::raise) throw;
    return std::nullopt;
  }
}

std::optional<Batch> DatasetFolder::load_readable(std::int64_t index) const {
  const auto tries = options_.on_unreadable == OnUnreadable::replace ? size() : 1;
  for (std::int64_t i = 0; i < tries; ++i) {
    const auto candidate = (index + i) % size();
    auto data = try_load(candidate, sample_generator(index));
    if (!data) continue;
    const auto target = at::scalar_tensor(listing_->target(static_cast<std::size_t>(candidate)), at::kLong);
    return Batch{.data = std::move(*data),
                 .target = options_.target_transform ? options_.target_transform(target) : target};
  }
  if (options_.on_unreadable == OnUnreadable::skip) return std::nullopt;
  throw_error<DataError>("{}: no file of the dataset can be decoded", listing_->root.string());
}

Batch DatasetFolder::get_batch(const at::Tensor& indices) const {
  check_indices(indices, size());
  const auto chosen = indices.accessor<std::int64_t, 1>();
  std::vector<at::Tensor> samples;
  std::vector<at::Tensor> targets;
  for (std::int64_t i = 0; i < chosen.size(0); ++i) {
    auto sample = load_readable(chosen[i]);
    if (!sample) continue;
    samples.push_back(std::move(sample->data));
    targets.push_back(std::move(sample->target));
  }
  if (samples.empty()) return {.data = at::empty({0}), .target = at::empty({0}, at::kLong)};
  return {.data = stack_samples("DatasetFolder", samples),
          .target = stack_samples("target_transform", targets)};
}

ImageFolder::ImageFolder(const std::filesystem::path& root, DatasetFolderOptions options)
    : DatasetFolder(root,
                    TransformingLoader([reading = Reading{.transform = options.transform,
                                                          .decode = {.mode = ImageReadMode::rgb,
                                                                     .eight_bits = true,
                                                                     .apply_exif_orientation =
                                                                         options.apply_exif_orientation,
                                                                     .max_pixels = options.max_pixels},
                                                          .scaled_decoding = options.scaled_decoding}](
                                           const auto& file, const auto& generator) {
                      return read_picture(file, reading, generator);
                    }),
                    options) {}

}  // namespace lockstep::data
