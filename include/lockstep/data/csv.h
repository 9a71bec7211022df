// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

/// A column by its name in the header or by its number from 0; -1 is the last.
using CsvColumn = std::variant<std::int64_t, std::string>;

struct CsvDatasetOptions {
  std::vector<CsvColumn> target_columns = {std::int64_t{-1}};  ///< the other columns are features
  /// The target column names classes: targets are indices into classes(). Otherwise targets are numbers.
  bool target_classes = false;
  char delimiter = ',';
  bool header = true;  ///< the first row names the columns
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
  explicit CsvDataset(const std::filesystem::path& file, const CsvDatasetOptions& options = {});

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

}  // namespace lockstep::data
