// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

struct TokenDatasetOptions {
  at::ScalarType dtype = at::kUInt16;  ///< of the tokens in the file: at::kUInt16 or at::kUInt32
  std::int64_t context_length = 1024;  ///< tokens of a sample; nanoGPT: block_size
  /// Tokens between the beginnings of two samples. Default: context_length, so that each token is the target
  /// of at most one sample.
  std::optional<std::int64_t> stride = {};
  /// Applied to the tokens of each sample, int64 [context_length].
  std::optional<transforms::Transform> transform = {};
  TargetTransform target_transform = {};  ///< applied to the targets of each sample, int64 [context_length]
};

/// Windows of a file of raw little-endian tokens, as nanoGPT's prepare.py writes it. Sample i is tokens
/// [i * stride, i * stride + context_length), and its targets are one token further. Batches are int64
/// [batch, context_length] twice. For windows at any position, as nanoGPT's get_batch() draws them, use
/// stride 1 and a RandomSampler:
///
///     TokenDataset tokens("train.bin", {.context_length = 256, .stride = 1});
///     auto sampler = std::make_shared<RandomSampler>(tokens, RandomSamplerOptions{.replacement = true,
///                                                                                .num_samples = 64'000});
///
/// The file is mapped: its pages are read when a batch needs them. It must not be truncated while the dataset
/// exists. Copies share the mapping.
class TokenDataset {
 public:
  /// Throws DataError when the file cannot be read, its size is not a multiple of the dtype's, or it is
  /// shorter than context_length + 1 tokens; ArgumentError for other options.
  explicit TokenDataset(const std::filesystem::path& file, const TokenDatasetOptions& options = {});

  std::int64_t size() const { return windows_; }
  /// Throws ArgumentError when an index is out of range.
  Batch get_batch(const at::Tensor& indices) const;
  /// The tokens of the file as a tensor of the dtype and of shape [tokens].
  const at::Tensor& tokens() const { return tokens_; }

 private:
  at::Tensor tokens_;
  std::int64_t context_length_;
  std::int64_t stride_;
  std::int64_t windows_;
  SampleTransforms transforms_;
};

}  // namespace lockstep::data
