// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>
#include <lockstep/data/images.h>
#include <lockstep/data/sampler.h>
#include <lockstep/data/vision.h>

namespace lockstep::data {

/// The files of one sample in a shard.
struct WebSample {
  std::string key;                           ///< their common name; webdataset: `__key__`
  std::filesystem::path shard;               ///< webdataset: `__url__`
  std::map<std::string, at::Tensor> fields;  ///< extension in lower case -> contents, uint8 [n]
};

/// Options of WebDataset.
struct WebDatasetOptions {
  /// The extension of the picture; of several, separated by ';', the first that a sample has. webdataset:
  /// `to_tuple("jpg;png", "cls")`.
  std::string image = "jpg;jpeg;png;webp;bmp";
  /// The extension of the target, an integer as text.
  std::string target = "cls";
  /// Applied to each picture, or to the data of `decode`: any callable `at::Tensor(const at::Tensor&)`, or a
  /// transform.
  std::optional<transforms::Transform> transform = {};
  /// Applied to each target.
  TargetTransform target_transform = {};
  /// These three as in DatasetFolderOptions.
  bool scaled_decoding = false;
  bool apply_exif_orientation = false;  ///< turn images as their Exif data says
  /// larger images are errors
  std::int64_t max_pixels = DecodeOptions().max_pixels;
  /// The treatment of a sample for which decoding, or the transform, throws DataError, or that lacks a field.
  OnUnreadable on_unreadable = OnUnreadable::raise;
  /// Makes data and target of a sample, without a batch dimension, where they are not a picture and an
  /// integer. Must be thread-safe. Its DataError marks the sample as unreadable. Excludes the other options
  /// about pictures and targets. webdataset: `map()`.
  std::function<Batch(const WebSample&)> decode = {};
  /// A file that keeps the positions of the samples, which makes opening large shards fast. It is used while
  /// the paths, sizes and modification times of all shards stay the same, and written anew otherwise.
  std::filesystem::path index_cache = {};
};

class ShardSet;

/// Samples in tar files, as webdataset stores them: consecutive files whose names are equal up to the first
/// dot form a sample, and the rest of the name is the extension of the field. Samples have indices in the
/// order of the shards, so that samplers, workers and checkpoints of positions work as for any dataset:
///
///     using namespace lockstep::transforms;
///     const Compose augment(RandomResizedCrop(224), ToTensor());
///     WebDataset train("train-{000000..000146}.tar", {.transform = augment});
///     DataLoader loader(train, {.batch_size = 64, .sampler = std::make_shared<ShardSampler>(train)});
///
/// Files are grouped and skipped as webdataset does. The formats are ustar, GNU and pax. The shards are local
/// files, not compressed, and mapped: their pages are read when a batch needs them. They must not be changed
/// while the dataset exists. Copies share the mapping. get_batch() is thread-safe if `decode` and the
/// transforms are. webdataset: WebDataset.
class WebDataset {
 public:
  /// `urls`: a path with braces, {000..146} or {a,b}. Opening reads the headers of all shards, but no
  /// contents. Throws DataError, which names the shard and the offset, for a damaged shard and for two files
  /// of a sample with one extension, and when there is no sample; ArgumentError for options that exclude each
  /// other.
  explicit WebDataset(const std::string& urls, const WebDatasetOptions& options = {},
                      std::source_location where = std::source_location::current());
  /// Shards in this order; braces have no meaning.
  explicit WebDataset(std::vector<std::filesystem::path> shards, const WebDatasetOptions& options = {},
                      std::source_location where = std::source_location::current());

  /// The number of samples.
  std::int64_t size() const;
  /// Pictures as uint8 RGB [batch, 3, height, width], or what the transform makes of them, and int64 targets
  /// [batch]; with `decode`, its tensors, stacked. Throws ArgumentError for an index out of range or unequal
  /// shapes, DataError as `on_unreadable` says, and Error when a shard has changed since it was opened.
  Batch get_batch(const at::Tensor& indices,
                  std::source_location where = std::source_location::current()) const;
  /// All fields of a sample, as views of the mapped shard. Throws ArgumentError when the index is out of
  /// range.
  WebSample sample(std::int64_t index, std::source_location where = std::source_location::current()) const;

  /// The files, in order.
  const std::vector<std::filesystem::path>& shards() const;
  /// The number of samples in each shard.
  std::vector<std::int64_t> shard_sizes() const;
  /// Unreadable samples met so far, by all copies.
  std::int64_t unreadable() const { return *unreadable_; }

 private:
  WebDatasetOptions options_;
  std::shared_ptr<const ShardSet> shards_;
  std::shared_ptr<std::atomic<std::int64_t>> unreadable_ = std::make_shared<std::atomic<std::int64_t>>(0);
};

/// Options of ShardSampler.
struct ShardSamplerOptions {
  std::optional<int> num_replicas = {};  ///< default: the size of the current world
  std::optional<int> rank = {};          ///< default: the rank in the current world
  bool shuffle = true;                   ///< false: the samples in the order of the dataset
  std::int64_t seed = 0;                 ///< must be the same on all ranks
  bool drop_last = false;                ///< as in DistributedSamplerOptions
  /// Samples in the shuffle buffer of each piece; 1 keeps their order. webdataset: `shuffle(n, initial=n)`.
  std::int64_t shuffle_buffer = 1000;
  /// The order is cut into as many pieces, which are read side by side. With a multiple of num_replicas,
  /// ranks read different shards. The order depends on it, and not on the number of ranks.
  std::int64_t pieces = 8;
};

/// Reads shards in order, and shares them over ranks. With shuffle, in this order, a function of seed +
/// epoch:
///
/// 1. The shards are permuted, and the samples of each stay in order: `torch.randperm(shards, generator=g)`
///    with a generator g seeded with seed + epoch.
/// 2. This sequence is cut into `pieces` of equal size; the first ones are longer by one where needed.
/// 3. Each piece goes through a shuffle buffer. It is filled with the first samples. Then sample k of it is
///    taken, k = torch.randint(its size, generator=g), the last one moves to k, and the next one is added; at
///    the end it is emptied. A sample thus moves to the front by less than shuffle_buffer places.
/// 4. The order is the first sample of each piece, then the second of each, and so on.
///
/// As in DistributedSampler, a rank gets every num_replicas-th sample of the order, all ranks get the same
/// number, and a pass resumes exactly, or with another number of ranks.
class ShardSampler : public DistributedSampler {
 public:
  /// Throws ArgumentError when the rank is not one of 0 .. num_replicas-1, or shuffle_buffer or pieces is not
  /// positive.
  explicit ShardSampler(const WebDataset& dataset, const ShardSamplerOptions& options = {},
                        std::source_location where = std::source_location::current());
  /// For other data in shards, of these sizes.
  explicit ShardSampler(std::vector<std::int64_t> shard_sizes, const ShardSamplerOptions& options = {},
                        std::source_location where = std::source_location::current());

 protected:
  at::Tensor order(std::uint64_t seed) const override;

 private:
  std::vector<std::int64_t> shard_sizes_;
  std::int64_t shuffle_buffer_;
  std::int64_t pieces_;
};

}  // namespace lockstep::data
