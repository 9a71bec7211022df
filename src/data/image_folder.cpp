// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <lockstep/data/image_folder.h>
#include <lockstep/data/images.h>
#include <lockstep/data/sample_seeds.h>

#include "base/throw_error.h"
#include "data/folder_listing.h"
#include "data/indices.h"

namespace lockstep::data {
namespace {

at::Tensor stacked(const std::vector<at::Tensor>& samples) {
  for (const auto& sample : samples) {
    if (sample.sizes() == samples.front().sizes()) continue;
    throw_error<ArgumentError>(
        "DatasetFolder: a batch has samples of the shapes [{}] and [{}]; add a transform that gives all "
        "samples one "
        "size, such as RandomResizedCrop or Resize and CenterCrop",
        fmt::join(samples.front().sizes(), ", "), fmt::join(sample.sizes(), ", "));
  }
  return at::stack(samples);
}

at::Tensor read_rgb(const std::filesystem::path& file) {
  return read_image(file, {.mode = ImageReadMode::rgb});
}

}  // namespace

DatasetFolder::DatasetFolder(const std::filesystem::path& root, SampleLoader loader,
                             DatasetFolderOptions options)
    : listing_(std::make_shared<FolderListing>(list_folder(root, options))),
      loader_(std::move(loader)),
      options_(std::move(options)) {}

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

std::optional<at::Tensor> DatasetFolder::try_load(std::int64_t index) const {
  try {
    return loader_(listing_->path(static_cast<std::size_t>(index)));
  } catch (const DataError&) {
    ++*unreadable_;
    if (options_.on_unreadable == OnUnreadable::raise) throw;
    return std::nullopt;
  }
}

std::optional<std::pair<std::int64_t, at::Tensor>> DatasetFolder::load_readable(std::int64_t index) const {
  const auto tries = options_.on_unreadable == OnUnreadable::replace ? size() : 1;
  for (std::int64_t i = 0; i < tries; ++i) {
    const auto candidate = (index + i) % size();
    if (auto sample = try_load(candidate)) return std::pair(candidate, std::move(*sample));
  }
  if (options_.on_unreadable == OnUnreadable::skip) return std::nullopt;
  throw_error<DataError>("{}: no file of the dataset can be decoded", listing_->root.string());
}

Batch DatasetFolder::get_batch(const at::Tensor& indices) const {
  check_indices(indices, size());
  const auto chosen = indices.accessor<std::int64_t, 1>();
  std::vector<at::Tensor> samples;
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < chosen.size(0); ++i) {
    auto loaded = load_readable(chosen[i]);
    if (!loaded) continue;
    auto& [index, sample] = *loaded;
    if (options_.transform) sample = (*options_.transform)(sample, sample_generator(chosen[i]));
    samples.push_back(std::move(sample));
    const auto target = listing_->target(static_cast<std::size_t>(index));
    targets.push_back(options_.target_transform ? options_.target_transform(target) : target);
  }
  if (samples.empty()) return {.data = at::empty({0}), .target = at::empty({0}, at::kLong)};
  return {.data = stacked(samples), .target = at::tensor(targets, at::kLong)};
}

ImageFolder::ImageFolder(const std::filesystem::path& root, DatasetFolderOptions options)
    : DatasetFolder(root, read_rgb, std::move(options)) {}

}  // namespace lockstep::data
