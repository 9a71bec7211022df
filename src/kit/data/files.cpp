// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <lockstep/data/files.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "data/bytes.h"
#include "data/csv_rows.h"
#include "data/download/dataset_files.h"
#include "data/numpy_header.h"
#include "data/sample_batches.h"
#include "serialize/byte_source.h"
#include "serialize/storage.h"
#include "serialize/zip.h"

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
  const ErrorFile about(path);
  const auto file = path.string();
  const auto bytes = read_file_bytes(path);
  CsvRows rows(as_text(bytes), options.delimiter, file);
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

CsvDataset::CsvDataset(const std::filesystem::path& file, const CsvDatasetOptions& options,
                       std::source_location where)
    : CsvDataset(read((CallerPlace(where), file), options),
                 {.transform = options.transform, .target_transform = options.target_transform}) {}

CsvDataset::CsvDataset(Contents contents, SampleTransforms transforms)
    : TensorDataset(std::move(contents.features), std::move(contents.targets), std::move(transforms)),
      feature_names_(std::move(contents.feature_names)),
      classes_(std::move(contents.classes)) {}

namespace {

constexpr std::string_view kSuffix = ".npy";

// The array of a file with these bytes, whose memory it shares where it can.
at::Tensor parse_numpy(const at::Tensor& bytes, const std::string& name) {
  const auto header = parse_numpy_header(bytes, name);
  auto values = bytes.narrow(0, header.size, header.payload);
  const bool aligned = header.size % static_cast<std::int64_t>(c10::elementSize(header.dtype)) == 0;
  if (!aligned || header.big_endian) values = values.clone();
  if (header.big_endian) serialize::swap_byte_order(values.storage(), header.dtype);
  values = values.view(header.dtype);
  if (!header.fortran_order) return values.view(header.shape);
  auto dims = header.shape;
  std::ranges::reverse(dims);
  values = values.view(dims);
  std::iota(dims.rbegin(), dims.rend(), 0);
  return values.permute(dims);
}

class NpzFile {
 public:
  explicit NpzFile(const std::filesystem::path& file)
      : source_(serialize::open_file(file, /*mapped=*/true)), zip_(*source_) {}

  // Other records are not arrays.
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& [name, record] : zip_.records()) {
      if (name.ends_with(kSuffix)) names.insert(name.substr(0, name.size() - kSuffix.size()));
    }
    return names;
  }

  at::Tensor array(const std::string& name) const {
    const auto record_name = fmt::format("{}{}", name, kSuffix);
    const auto* const record = zip_.find(record_name);
    if (record == nullptr) {
      throw_error<DataError>("{}: has no array \"{}\"; its arrays are: {}", source_->name(), name,
                             fmt::join(names(), ", "));
    }
    const auto storage = zip_.storage(record_name, *record, alignof(std::max_align_t));
    return parse_numpy(serialize::storage_bytes(storage), fmt::format("{}, array {}", source_->name(), name));
  }

 private:
  std::unique_ptr<serialize::ByteSource> source_;
  serialize::ZipReader zip_;
};

TensorDataset load_files(const std::filesystem::path& data, const std::filesystem::path& target,
                         SampleTransforms transforms) {
  auto samples = load_numpy(data);
  return {std::move(samples), load_numpy(target), std::move(transforms)};
}

TensorDataset load_pair(const std::filesystem::path& npz, const NpzNames& names,
                        const SampleTransforms& transforms) {
  return as_data_errors([&] {
    const NpzFile arrays(npz);
    return TensorDataset(arrays.array(names.data), arrays.array(names.target), transforms);
  });
}

}  // namespace

at::Tensor load_numpy(const std::filesystem::path& file) {
  const ErrorFile about(file);
  return parse_numpy(map_file(file), file.string());
}

std::map<std::string, at::Tensor> load_npz(const std::filesystem::path& file, std::source_location where) {
  const ErrorFile about(file);
  const CallerPlace place(where);
  return as_data_errors([&file] {
    const NpzFile npz(file);
    std::map<std::string, at::Tensor> arrays;
    for (const auto& name : npz.names()) arrays.emplace(name, npz.array(name));
    return arrays;
  });
}

NumpyDataset::NumpyDataset(const std::filesystem::path& data, const std::filesystem::path& target,
                           SampleTransforms transforms, std::source_location where)
    : TensorDataset(load_files((CallerPlace(where), data), target, std::move(transforms))) {}

NumpyDataset::NumpyDataset(const std::filesystem::path& npz, const NpzNames& names,
                           const SampleTransforms& transforms, std::source_location where)
    : TensorDataset(load_pair((CallerPlace(where), npz), names, transforms)) {}

namespace {

void check_options(const TokenDatasetOptions& options) {
  if (options.dtype != at::kUInt16 && options.dtype != at::kUInt32) {
    throw_error<ArgumentError>("TokenDataset: dtype is {}; it should be at::kUInt16 or at::kUInt32",
                               c10::toString(options.dtype));
  }
  if (options.context_length < 1 || options.stride.value_or(1) < 1) {
    throw_error<ArgumentError>(
        "TokenDataset: context_length {} and stride {} should be positive numbers of tokens",
        options.context_length, options.stride.value_or(options.context_length));
  }
}

at::Tensor map_tokens(const std::filesystem::path& file, at::ScalarType dtype) {
  const ErrorFile about(file);
  const auto bytes = map_file(file);
  if (const auto width = static_cast<std::int64_t>(c10::elementSize(dtype)); bytes.numel() % width != 0) {
    throw_error<DataError>("{}: its {} bytes are not a whole number of {} tokens; was it copied in full?",
                           file.string(), bytes.numel(), c10::toString(dtype));
  }
  return bytes.view(dtype);
}

template <typename Token>
void copy_windows(const at::Tensor& tokens, const at::Tensor& indices, std::int64_t stride, Batch& batch) {
  const auto* from = tokens.const_data_ptr<Token>();
  const auto length = batch.data.size(1);
  auto* data = batch.data.mutable_data_ptr<std::int64_t>();
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  const auto windows = indices.accessor<std::int64_t, 1>();
  for (std::int64_t i = 0; i < windows.size(0); ++i) {
    const auto* window = from + windows[i] * stride;
    data = std::copy_n(window, length, data);
    target = std::copy_n(window + 1, length, target);
  }
}

}  // namespace

TokenDataset::TokenDataset(const std::filesystem::path& file, const TokenDatasetOptions& options,
                           std::source_location where)
    : context_length_(options.context_length),
      stride_(options.stride.value_or(options.context_length)),
      transforms_{.transform = options.transform, .target_transform = options.target_transform} {
  const CallerPlace place(where);
  check_options(options);
  tokens_ = map_tokens(file, options.dtype);
  // The last target needs one token more.
  const auto starts = tokens_.numel() - context_length_;
  if (starts < 1) {
    throw_error<DataError>("{}: has {} tokens, fewer than the {} + 1 of a sample", file.string(),
                           tokens_.numel(), context_length_);
  }
  windows_ = (starts - 1) / stride_ + 1;
}

Batch TokenDataset::get_batch(const at::Tensor& indices, std::source_location where) const {
  const CallerPlace place(where);
  check_indices(indices, size());
  const std::array sizes{indices.size(0), context_length_};
  Batch batch{.data = at::empty(sizes, at::kLong), .target = at::empty(sizes, at::kLong)};
  if (tokens_.scalar_type() == at::kUInt16) {
    copy_windows<std::uint16_t>(tokens_, indices, stride_, batch);
  } else {
    copy_windows<std::uint32_t>(tokens_, indices, stride_, batch);
  }
  return transformed(std::move(batch), indices, transforms_);
}

}  // namespace lockstep::data
