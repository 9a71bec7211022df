// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <lockstep/data/files.h>

#include "base/throw_error.h"
#include "data/csv_rows.h"
#include "data/download/dataset_files.h"

namespace lockstep::data {

struct CsvDataset::Contents {
  at::Tensor features{};
  at::Tensor targets{};
  std::vector<std::string> feature_names{};
  std::vector<std::string> classes{};
};

namespace {

constexpr std::size_t kMostShown = 40;  // characters of a field in a message

// Where a field is, for messages.
struct CsvPlace {
  const std::string& file;
  const std::vector<std::string>& names;
  std::int64_t line;
  std::size_t column;

  std::string text() const {
    const auto name = names.empty() ? "" : fmt::format(" (\"{}\")", names[column]);
    return fmt::format("{}: line {}, column {}{}", file, line, column, name);
  }
};

float number_in(std::string_view field, const CsvPlace& place) {
  const auto first = std::min(field.find_first_not_of(" \t"), field.size());
  auto digits = field.substr(first, field.find_last_not_of(" \t") + 1 - first);
  if (digits.empty()) {
    throw_error<DataError>("{}: the field is empty; give the missing value a number", place.text());
  }
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
  double value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code == std::errc::invalid_argument || end != digits.data() + digits.size()) {
    throw_error<DataError>("{}: \"{}\" is not a number", place.text(), field.substr(0, kMostShown));
  }
  const bool too_large = std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max();
  if (code == std::errc::result_out_of_range || too_large) {
    throw_error<DataError>("{}: {} is out of the range of float32", place.text(),
                           field.substr(0, kMostShown));
  }
  return static_cast<float>(value);
}

std::size_t number_of_name(const std::string& name, const std::vector<std::string>& names,
                           const std::string& file) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    throw_error<ArgumentError>("{}: has no column \"{}\"{}", file, name,
                               names.empty() ? "; without a header, columns have numbers only" : "");
  }
  if (std::find(found + 1, names.end(), name) != names.end()) {
    throw_error<ArgumentError>("{}: has several columns \"{}\"; name the target by its number", file, name);
  }
  return static_cast<std::size_t>(found - names.begin());
}

std::size_t number_of_column(std::int64_t number, std::size_t columns, const std::string& file) {
  const auto count = static_cast<std::int64_t>(columns);
  if (number < -count || number >= count) {
    throw_error<ArgumentError>("{}: has no column {}; it has {} columns", file, number, columns);
  }
  return static_cast<std::size_t>(number < 0 ? number + count : number);
}

// For each column, whether it is a target, and the targets in the order of the options.
struct CsvColumns {
  std::vector<std::size_t> features{};
  std::vector<std::size_t> targets{};
};

CsvColumns choose_columns(const CsvDatasetOptions& options, std::size_t columns,
                          const std::vector<std::string>& names, const std::string& file) {
  CsvColumns chosen;
  for (const auto& column : options.target_columns) {
    const auto* const name = std::get_if<std::string>(&column);
    const auto number = name != nullptr ? number_of_name(*name, names, file)
                                        : number_of_column(std::get<std::int64_t>(column), columns, file);
    if (std::ranges::count(chosen.targets, number) > 0) {
      throw_error<ArgumentError>("{}: column {} is a target twice", file, number);
    }
    chosen.targets.push_back(number);
  }
  for (std::size_t i = 0; i < columns; ++i) {
    if (std::ranges::count(chosen.targets, i) == 0) chosen.features.push_back(i);
  }
  if (chosen.targets.empty() || chosen.features.empty()) {
    throw_error<ArgumentError>("{}: of its {} columns {} are targets; it needs a target and a feature", file,
                               columns, chosen.targets.size());
  }
  if (options.target_classes && chosen.targets.size() > 1) {
    throw_error<ArgumentError>("{}: target_classes is for one target column, but {} are given", file,
                               chosen.targets.size());
  }
  return chosen;
}

// Numbers the class names of the rows by their sorted order.
at::Tensor class_indices(const std::vector<std::string>& names, std::vector<std::string>& classes) {
  std::map<std::string_view, std::int64_t> numbers;
  for (const auto& name : names) numbers.emplace(name, 0);
  for (auto& [name, number] : numbers) {
    number = static_cast<std::int64_t>(classes.size());
    classes.emplace_back(name);
  }
  std::vector<std::int64_t> indices;
  indices.reserve(names.size());
  for (const auto& name : names) indices.push_back(numbers.at(name));
  return at::tensor(indices, at::kLong);
}

at::Tensor as_rows(const std::vector<float>& values, std::size_t columns) {
  return at::tensor(values, at::kFloat).view({-1, static_cast<std::int64_t>(columns)});
}

// The values of the rows that were read.
struct CsvValues {
  std::vector<float> features{};
  std::vector<float> targets{};
  std::vector<std::string> target_names{};

  void add(const CsvRows& rows, const CsvColumns& columns, bool target_classes, CsvPlace place) {
    const auto& fields = rows.fields();
    for (place.column = 0; place.column < fields.size(); ++place.column) {
      const auto target = std::ranges::find(columns.targets, place.column) != columns.targets.end();
      if (!target) features.push_back(number_in(fields[place.column], place));
    }
    for (const auto column : columns.targets) {
      place.column = column;
      if (!target_classes) {
        targets.push_back(number_in(fields[column], place));
      } else if (fields[column].empty()) {
        throw_error<DataError>("{}: the class is empty", place.text());
      } else {
        target_names.emplace_back(fields[column]);
      }
    }
  }
};

}  // namespace

CsvDataset::Contents CsvDataset::read(const std::filesystem::path& path, const CsvDatasetOptions& options) {
  const auto file = path.string();
  const auto bytes = read_file_bytes(path);
  const auto text = as_bytes(bytes);
  CsvRows rows({reinterpret_cast<const char*>(text.data()), text.size()}, options.delimiter, file);
  std::vector<std::string> names;
  bool more = rows.next();
  if (more && options.header) {
    names.assign(rows.fields().begin(), rows.fields().end());
    more = rows.next();
  }
  if (!more) throw_error<DataError>("{}: has no rows", file);
  const auto columns = options.header ? names.size() : rows.fields().size();
  const auto chosen = choose_columns(options, columns, names, file);
  CsvValues values;
  for (; more; more = rows.next()) {
    if (rows.fields().size() != columns) {
      throw_error<DataError>("{}: line {}: has {} fields, but the rows before it have {}", file, rows.line(),
                             rows.fields().size(), columns);
    }
    values.add(rows, chosen, options.target_classes,
               {.file = file, .names = names, .line = rows.line(), .column = 0});
  }
  Contents contents{.features = as_rows(values.features, chosen.features.size())};
  if (options.header) {
    for (const auto column : chosen.features) contents.feature_names.push_back(names[column]);
  }
  if (options.target_classes) {
    contents.targets = class_indices(values.target_names, contents.classes);
  } else {
    contents.targets = as_rows(values.targets, chosen.targets.size());
    if (chosen.targets.size() == 1) contents.targets = contents.targets.view(-1);
  }
  return contents;
}

CsvDataset::CsvDataset(const std::filesystem::path& file, const CsvDatasetOptions& options)
    : CsvDataset(read(file, options),
                 {.transform = options.transform, .target_transform = options.target_transform}) {}

CsvDataset::CsvDataset(Contents contents, SampleTransforms transforms)
    : TensorDataset(std::move(contents.features), std::move(contents.targets), std::move(transforms)),
      feature_names_(std::move(contents.feature_names)),
      classes_(std::move(contents.classes)) {}

}  // namespace lockstep::data
