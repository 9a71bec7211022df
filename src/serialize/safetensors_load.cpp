// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <unordered_map>

#include <ATen/Functions.h>

#include <lockstep/serialize/safetensors.h>

#include "serialize/byte_source.h"
#include "serialize/errors.h"
#include "serialize/rebuild_tensor.h"
#include "serialize/safetensors_header.h"
#include "serialize/storage.h"

namespace lockstep::safetensors {
namespace {

using serialize::ByteSource;

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (auto i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

at::Tensor read_tensor(const ByteSource& source, const Header& header, const TensorInfo& tensor,
                       at::Device device) {
  const auto strides = contiguous_strides(tensor.shape);
  if (device.is_meta()) return serialize::rebuild_meta(tensor.dtype, tensor.shape, strides, false);
  auto storage = source.storage(header.data_start + tensor.begin, tensor.end - tensor.begin,
                                c10::elementSize(tensor.dtype));
  return serialize::rebuild_strided(serialize::place_storage(std::move(storage), device), tensor.dtype, 0,
                                    tensor.shape, strides);
}

}  // namespace

Dict load_file(const std::filesystem::path& file, const LoadOptions& options) {
  const auto source = serialize::open_file(file, options.mmap && !options.map_location.is_meta());
  const auto header = read_header(*source);
  Dict tensors;
  tensors.reserve(header.tensors.size());
  for (const auto& tensor : header.tensors) {
    tensors.set(tensor.name, read_tensor(*source, header, tensor, options.map_location));
  }
  return tensors;
}

class SafeOpen::File {
 public:
  File(const std::filesystem::path& file, at::Device device)
      : device_(device),
        source_(serialize::open_file(file, !device.is_meta())),
        header_(read_header(*source_)) {
    index_.reserve(header_.tensors.size());
    for (const auto& tensor : header_.tensors) index_.emplace(tensor.name, &tensor);
  }

  const Header& header() const { return header_; }
  bool contains(std::string_view name) const { return index_.contains(name); }

  const TensorInfo& info(std::string_view name) const {
    const auto found = index_.find(name);
    if (found != index_.end()) return *found->second;
    List names;
    for (const auto& tensor : header_.tensors) {
      constexpr std::size_t most_names = 50;
      if (names.items.size() == most_names) break;
      names.items.emplace_back(tensor.name);
    }
    throw_error("{}: it has no tensor {}; it has {} tensors: {}", source_->name(), shown(name),
                header_.tensors.size(), repr(Value(names), 500));
  }

  at::Tensor tensor(std::string_view name) const {
    return read_tensor(*source_, header_, info(name), device_);
  }

 private:
  at::Device device_;
  std::unique_ptr<ByteSource> source_;
  Header header_;
  std::unordered_map<std::string_view, const TensorInfo*> index_;
};

SafeOpen::SafeOpen(const std::filesystem::path& file, at::Device device)
    : file_(std::make_unique<const File>(file, device)) {}
SafeOpen::SafeOpen(SafeOpen&&) noexcept = default;
SafeOpen& SafeOpen::operator=(SafeOpen&&) noexcept = default;
SafeOpen::~SafeOpen() = default;

std::vector<std::string> SafeOpen::keys() const {
  std::vector<std::string> names;
  names.reserve(file_->header().tensors.size());
  for (const auto& tensor : file_->header().tensors) names.push_back(tensor.name);
  return names;
}

bool SafeOpen::contains(std::string_view name) const { return file_->contains(name); }

const Metadata& SafeOpen::metadata() const { return file_->header().metadata; }

at::Tensor SafeOpen::get_tensor(std::string_view name) const { return file_->tensor(name); }

const std::vector<std::int64_t>& SafeOpen::shape(std::string_view name) const {
  return file_->info(name).shape;
}

at::ScalarType SafeOpen::dtype(std::string_view name) const { return file_->info(name).dtype; }

std::uint64_t SafeOpen::nbytes(std::string_view name) const {
  const auto& info = file_->info(name);
  return info.end - info.begin;
}

}  // namespace lockstep::safetensors
