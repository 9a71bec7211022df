// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include <lockstep/data/images.h>
#include <lockstep/data/vision.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "data/folder_listing.h"
#include "data/pictures.h"
#include "data/sample_batches.h"

namespace lockstep::data {
namespace {

at::Tensor bytes_of(const std::filesystem::path& file) {
  try {
    return read_file(file);
  } catch (const DataError& error) {
    throw Error(error.what(),
                error.details());  // no property of the picture: a policy for damaged files does not apply
  }
}

at::Tensor read_picture(const std::filesystem::path& file, const PictureReading& reading,
                        const transforms::OptionalGenerator& generator) {
  const ErrorFile about(file);
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
                             const DatasetFolderOptions& options)
    : listing_(std::make_shared<FolderListing>(list_folder(root, options))),
      load_(std::move(load)),
      options_(options) {}

// A temporary CallerPlace in an initializer lives until the constructor that it calls has ended.
DatasetFolder::DatasetFolder(const std::filesystem::path& root, SampleLoader loader,
                             const DatasetFolderOptions& options, std::source_location where)
    : DatasetFolder((CallerPlace(where), root),
                    TransformingLoader([loader = std::move(loader), transform = options.transform](
                                           const auto& file, const auto& generator) {
                      auto sample = loader(file);
                      return transform ? (*transform)(sample, generator) : sample;
                    }),
                    options) {
  if (options_.scaled_decoding || options_.apply_exif_orientation ||
      options_.max_pixels != DecodeOptions().max_pixels) {
    const CallerPlace place(where);
    throw ArgumentError(
        "DatasetFolder: scaled_decoding, apply_exif_orientation and max_pixels are options of ImageFolder");
  }
}

std::int64_t DatasetFolder::size() const { return static_cast<std::int64_t>(listing_->size()); }

const std::vector<std::string>& DatasetFolder::classes() const { return listing_->classes.classes; }

const std::map<std::string, std::int64_t>& DatasetFolder::class_to_idx() const {
  return listing_->classes.class_to_idx;
}

std::filesystem::path DatasetFolder::path(std::int64_t index, std::source_location where) const {
  const CallerPlace place(where);
  if (index < 0 || index >= size()) {
    throw_error<ArgumentError>("DatasetFolder: index {} is out of range for {} samples", index, size());
  }
  return listing_->path(static_cast<std::size_t>(index));
}

at::Tensor DatasetFolder::targets() const { return listing_->targets(); }

Batch DatasetFolder::get_batch(const at::Tensor& indices, std::source_location where) const {
  const CallerPlace place(where);
  const auto load = [this](std::int64_t index, const transforms::OptionalGenerator& generator) {
    const auto sample = static_cast<std::size_t>(index);
    auto data = load_(listing_->path(sample), generator);
    const auto target = at::scalar_tensor(listing_->target(sample), at::kLong);
    return Batch{.data = std::move(data),
                 .target = options_.target_transform ? options_.target_transform(target) : target};
  };
  return readable_batch({.dataset = "DatasetFolder",
                         .where = listing_->root.string(),
                         .size = size(),
                         .on_unreadable = options_.on_unreadable,
                         .unreadable = *unreadable_,
                         .load = load},
                        indices);
}

Example DatasetFolder::operator[](SampleIndex index) const { return sample_at(*this, index); }

ImageFolder::ImageFolder(const std::filesystem::path& root, const DatasetFolderOptions& options,
                         std::source_location where)
    : DatasetFolder(
          (CallerPlace(where), root),
          TransformingLoader([reading = rgb_reading(options)](const auto& file, const auto& generator) {
            return read_picture(file, reading, generator);
          }),
          options) {}

}  // namespace lockstep::data
