// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <string_view>

#include <fmt/ranges.h>

#include <lockstep/data/files.h>

#include "base/throw_error.h"
#include "data/mapped_file.h"
#include "data/numpy_header.h"
#include "serialize/byte_source.h"
#include "serialize/storage.h"
#include "serialize/zip.h"

namespace lockstep::data {
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
      : source_(serialize::open_file(file, /*mapped=*/true)),
        zip_(*source_, serialize::ZipCompression::deflate) {}

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

TensorDataset load_pair(const std::filesystem::path& npz, const NpzNames& names,
                        const SampleTransforms& transforms) {
  return as_data_errors([&] {
    const NpzFile arrays(npz);
    return TensorDataset(arrays.array(names.data), arrays.array(names.target), transforms);
  });
}

}  // namespace

at::Tensor load_numpy(const std::filesystem::path& file) {
  return parse_numpy(map_file(file), file.string());
}

std::map<std::string, at::Tensor> load_npz(const std::filesystem::path& file) {
  return as_data_errors([&file] {
    const NpzFile npz(file);
    std::map<std::string, at::Tensor> arrays;
    for (const auto& name : npz.names()) arrays.emplace(name, npz.array(name));
    return arrays;
  });
}

NumpyDataset::NumpyDataset(const std::filesystem::path& npz, const NpzNames& names,
                           const SampleTransforms& transforms)
    : TensorDataset(load_pair(npz, names, transforms)) {}

}  // namespace lockstep::data
