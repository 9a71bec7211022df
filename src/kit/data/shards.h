// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/web_dataset.h>

namespace lockstep::data {

// The names that a pattern with {a,b} and {000..146} stands for, as Python's braceexpand gives them for
// webdataset. Throws ArgumentError for braces without a partner and for more than a million names.
std::vector<std::string> expand_braces(std::string_view pattern);

// The first headers of the samples of a shard, in order, and where the last sample ends. The fields of a
// sample are found by its headers: a million samples take 8 MB.
using ShardOffsets = std::vector<std::int64_t>;

// Groups the files of a tar archive as webdataset does. `bytes`: uint8 [n]; `name` is for messages. Throws
// DataError when the archive is damaged or a sample has two files of one extension.
ShardOffsets scan_shard(const at::Tensor& bytes, const std::string& name);

// The sample whose headers are in [begin, end) of a shard, with views of `bytes`. Throws DataError.
WebSample read_sample(const at::Tensor& bytes, const std::string& name, std::int64_t begin, std::int64_t end);

// The shards of a dataset, mapped, and where their samples are.
class ShardSet {
 public:
  // Uses the index cache where it is valid. Throws DataError.
  ShardSet(std::vector<std::filesystem::path> paths, const std::filesystem::path& index_cache);

  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  std::int64_t size() const { return sample_ends_.empty() ? 0 : sample_ends_.back(); }
  std::vector<std::int64_t> sizes() const;
  // Throws DataError when the shard has changed since it was opened.
  WebSample read(std::int64_t sample) const;

 private:
  std::vector<std::filesystem::path> paths_;
  std::vector<at::Tensor> bytes_;          // per shard: its pages
  std::vector<ShardOffsets> offsets_;      // per shard
  std::vector<std::int64_t> sample_ends_;  // per shard: the samples up to its end
};

}  // namespace lockstep::data
