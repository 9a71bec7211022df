// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

/// A column by its name in the header or by its number from 0; -1 is the last.
using CsvColumn = std::variant<std::int64_t, std::string>;

/// Options of CsvDataset.
struct CsvDatasetOptions {
  std::vector<CsvColumn> target_columns = {std::int64_t{-1}};  ///< the other columns are features
  /// The target column names classes: targets are indices into classes(). Otherwise targets are numbers.
  bool target_classes = false;
  char delimiter = ',';  ///< between the columns
  bool header = true;    ///< the first row names the columns
  /// Applied to the features of each row, float32 [columns].
  std::optional<transforms::Transform> transform = {};
  TargetTransform target_transform = {};  ///< applied to the target of each row
};

/// The numbers of a CSV file (RFC 4180, plain or gzip-compressed), read at once: features float32 [batch,
/// columns], and targets float32 [batch], [batch, target columns] for several target columns, or int64
/// [batch] for target_classes. A quoted field may contain delimiters, line breaks and doubled quotes. Lines
/// end with LF or CRLF; blank lines are skipped. A number may be surrounded by spaces; "nan" and "inf" are
/// numbers.
class CsvDataset : public TensorDataset {
 public:
  /// Throws DataError that names line and column: a field is empty or not a number within float32, rows
  /// differ in their number of fields, a quote is not closed, the file has no rows. Throws ArgumentError for
  /// a target column that does not exist or occurs twice, and when no column is left for features.
  explicit CsvDataset(const std::filesystem::path& file, const CsvDatasetOptions& options = {},
                      std::source_location where = std::source_location::current());

  /// The names of the feature columns; empty without a header.
  const std::vector<std::string>& feature_names() const { return feature_names_; }
  /// With target_classes: the names of the classes, sorted. torchvision: `classes`.
  const std::vector<std::string>& classes() const { return classes_; }

 private:
  struct Contents;
  CsvDataset(Contents contents, SampleTransforms transforms);
  static Contents read(const std::filesystem::path& file, const CsvDatasetOptions& options);

  std::vector<std::string> feature_names_;
  std::vector<std::string> classes_;
};

/// The array of a .npy file, of dtype bool, an integer, float16 to float64 or complex, in C or Fortran order.
/// The tensor's memory is the file's pages, read on first access and copied on write; values that are not
/// little-endian are copied. The file must not be truncated while the tensor exists. Throws DataError naming
/// the file and the problem: missing, cut short, damaged, another dtype. numpy: `np.load(file,
/// mmap_mode="c")`.
at::Tensor load_numpy(const std::filesystem::path& file);

/// The arrays of an .npz file by name, as numpy.savez or savez_compressed wrote them. An array is mapped like
/// that of load_numpy() where the file stores it uncompressed and aligned; otherwise it is a copy with a
/// verified checksum. Throws DataError. numpy: `np.load(file)`.
std::map<std::string, at::Tensor> load_npz(const std::filesystem::path& file,
                                           std::source_location where = std::source_location::current());

/// The names of the two arrays in an .npz file.
struct NpzNames {
  std::string data;    ///< name of the array of data
  std::string target;  ///< name of the array of targets
};

/// Samples [n, ...] and targets [n, ...] in NumPy files. Batches have the arrays' dtypes.
class NumpyDataset : public TensorDataset {
 public:
  /// Two .npy files. Throws DataError as load_numpy(), and ArgumentError when the arrays differ in their
  /// first dimension.
  NumpyDataset(const std::filesystem::path& data, const std::filesystem::path& target,
               SampleTransforms transforms = {},
               std::source_location where = std::source_location::current());
  /// One .npz file: `NumpyDataset("digits.npz", {.data = "x_train", .target = "y_train"})`. Reads only these
  /// two arrays. Throws also DataError that lists the arrays of the file when one is missing.
  NumpyDataset(const std::filesystem::path& npz, const NpzNames& names,
               const SampleTransforms& transforms = {},
               std::source_location where = std::source_location::current());
};

/// Options of TokenDataset.
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
  explicit TokenDataset(const std::filesystem::path& file, const TokenDatasetOptions& options = {},
                        std::source_location where = std::source_location::current());

  /// The number of samples.
  std::int64_t size() const { return windows_; }
  /// Throws ArgumentError when an index is out of range.
  Batch get_batch(const at::Tensor& indices,
                  std::source_location where = std::source_location::current()) const;
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
