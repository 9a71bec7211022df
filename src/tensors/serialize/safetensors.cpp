// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <ranges>
#include <span>
#include <unordered_map>

#include <ATen/Functions.h>
#include <c10/util/strides.h>

#include <lockstep/serialize/safetensors.h>

#include "base/throw_error.h"
#include "serialize/byte_source.h"
#include "serialize/dtypes.h"
#include "serialize/safetensors_folder.h"
#include "serialize/safetensors_header.h"
#include "serialize/storage.h"
#include "serialize/tensor_calls.h"
#include "serialize/torch_format.h"

namespace lockstep::safetensors {
namespace {

using serialize::ByteSource;

at::Tensor read_tensor(const ByteSource& source, const Header& header, const TensorInfo& tensor,
                       at::Device device) {
  const auto strides = at::IntArrayRef(c10::contiguous_strides(tensor.shape)).vec();
  if (device.is_meta()) return serialize::rebuild_meta(tensor.dtype, tensor.shape, strides, false);
  auto storage = source.storage(header.data_start + tensor.begin, tensor.end - tensor.begin,
                                c10::elementSize(tensor.dtype));
  return serialize::rebuild_strided(serialize::place_storage(std::move(storage), device), tensor.dtype, 0,
                                    tensor.shape, strides);
}

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

void check_tensor(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const std::string& why) {
    throw_error<CheckpointError>("tensor {} {}", shown(name), why);
  };
  if (!tensor.defined()) refuse("is undefined");
  if (tensor.layout() != at::kStrided)
    refuse("is sparse, which the format cannot hold; save to_dense() of it, or use lockstep::save()");
  if (tensor.is_meta()) refuse("is on the meta device and has no data");
  const auto* dtype = serialize::find_dtype(tensor.scalar_type());
  if (dtype == nullptr || dtype->safetensors.empty()) {
    refuse(fmt::format("is of dtype {}, which the format cannot hold; use lockstep::save()",
                       c10::toString(tensor.scalar_type())));
  }
}

std::vector<NamedTensor> named_tensors(const Dict& dict) {
  std::vector<NamedTensor> tensors;
  tensors.reserve(dict.size());
  for (const auto& [key, value] : dict) {
    const auto* name = key.get_if<std::string>();
    if (name == nullptr)
      throw_error<CheckpointError>("the key {} is a {}; the format has strings only", repr(key, 100),
                                   key.type_name());
    if (*name == kMetadataKey)
      throw_error<CheckpointError>("no tensor can be named {}, because the format reserves this name", *name);
    if (!value.is<at::Tensor>() && !value.is<Parameter>()) {
      throw_error<CheckpointError>(
          "the entry {} is a {}, not a Tensor; the format holds a flat dict of tensors", shown(*name),
          value.type_name());
    }
    check_tensor(*name, value.as_tensor());
    tensors.push_back({*name, value.as_tensor()});
  }
  return tensors;
}

struct MemoryExtent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t position = 0;
};

MemoryExtent extent_of(const at::Tensor& tensor, std::size_t position) {
  const auto begin = reinterpret_cast<std::uint64_t>(tensor.const_data_ptr());
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {begin, begin + static_cast<std::uint64_t>(last + 1) * tensor.element_size(), position};
}

// Refuses tensors whose memory overlaps, from the first to the last element of each.
void refuse_shared(const std::vector<NamedTensor>& tensors) {
  // Addresses of all devices differ: CUDA has one address space.
  std::vector<MemoryExtent> extents;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].tensor.numel() > 0) extents.push_back(extent_of(tensors[i].tensor, i));
  }
  std::ranges::sort(extents, {}, &MemoryExtent::begin);
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin >= extents[i - 1].end) continue;
    const auto [first, second] = std::minmax(extents[i - 1].position, extents[i].position);
    throw_error<CheckpointError>(
        "tensors {} and {} share memory, which the format cannot hold: leave one out, clone() one of "
        "them to have both written (lockstep ckpt convert --copy-shared does), or use lockstep::save()",
        shown(tensors[first].name), shown(tensors[second].name));
  }
}

std::vector<TensorInfo> place(const std::vector<NamedTensor>& tensors) {
  std::vector<TensorInfo> infos;
  infos.reserve(tensors.size());
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    infos.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), offset, offset + bytes});
    offset += bytes;
  }
  return infos;
}

std::span<const std::byte> bytes_in(const void* data, std::size_t size) {
  return {static_cast<const std::byte*>(data), size};
}

void write_file(AtomicFile& file, const std::string& header, const std::vector<NamedTensor>& tensors) {
  const std::uint64_t length = header.size();
  file.write(bytes_in(&length, sizeof(length)));
  file.write(bytes_in(header.data(), header.size()));
  for (const auto& [name, tensor] : tensors) {
    const auto whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    file.write(bytes_in(whole.const_data_ptr(), whole.nbytes()));
  }
}

}  // namespace

Dict load_file(const std::filesystem::path& file, const LoadOptions& options) {
  const ErrorFile about(file);
  const auto source = serialize::open_file(file, options.mmap && !options.map_location.device().is_meta());
  serialize::require_location(source->name(), options.map_location);
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
  File(const std::filesystem::path& file, at::Device target)
      : device(target), source(serialize::open_file(file, !target.is_meta())), header(read_header(*source)) {
    for (const auto& tensor : header.tensors) index.emplace(tensor.name, &tensor);
  }

  const TensorInfo& info(std::string_view name) const {
    if (const auto found = index.find(name); found != index.end()) return *found->second;
    constexpr std::size_t most_names = 50;
    List names;
    for (const auto& tensor : header.tensors | std::views::take(most_names))
      names.items.emplace_back(tensor.name);
    throw_error<CheckpointError>(ErrorDetails{.file = source->name()},
                                 "{}: it has no tensor {}; it has {} tensors: {}", source->name(),
                                 shown(name), header.tensors.size(), repr(Value(names), 500));
  }

  at::Device device;
  std::unique_ptr<ByteSource> source;
  Header header;
  std::unordered_map<std::string_view, const TensorInfo*> index;
};

SafeOpen::SafeOpen(const std::filesystem::path& file, at::Device device)
    : file_((ErrorFile(file), std::make_unique<const File>(file, device))) {}
SafeOpen::SafeOpen(SafeOpen&&) noexcept = default;
SafeOpen& SafeOpen::operator=(SafeOpen&&) noexcept = default;
SafeOpen::~SafeOpen() = default;

std::vector<std::string> SafeOpen::keys() const {
  std::vector<std::string> names;
  for (const auto& tensor : file_->header.tensors) names.push_back(tensor.name);
  return names;
}

bool SafeOpen::contains(std::string_view name) const { return file_->index.contains(name); }
const Metadata& SafeOpen::metadata() const { return file_->header.metadata; }
at::Tensor SafeOpen::get_tensor(std::string_view name) const {
  return read_tensor(*file_->source, file_->header, file_->info(name), file_->device);
}
const std::vector<std::int64_t>& SafeOpen::shape(std::string_view name) const {
  return file_->info(name).shape;
}
at::ScalarType SafeOpen::dtype(std::string_view name) const { return file_->info(name).dtype; }
std::uint64_t SafeOpen::nbytes(std::string_view name) const {
  const auto& info = file_->info(name);
  return info.end - info.begin;
}

void check_tensors(const Dict& tensors) { refuse_shared(named_tensors(tensors)); }

void save_file(const Dict& tensors, const std::filesystem::path& file, const SaveFileOptions& options) {
  const ErrorFile about(file);
  with_source(file.string(), [&] {
    auto named = named_tensors(tensors);
    refuse_shared(named);
    std::ranges::sort(named, {}, [](const NamedTensor& each) {
      return std::pair(serialize::find_dtype(each.tensor.scalar_type()), std::string_view(each.name));
    });
    const auto header = header_text(place(named), options.metadata);
    if (header.size() > kLargestHeader) {
      throw_error<CheckpointError>(
          "its header would have {} bytes, but the format allows {}; shorten the names", header.size(),
          kLargestHeader);
    }
    serialize::replace_file(file, options.sync,
                            [&](AtomicFile& target) { write_file(target, header, named); });
  });
}

}  // namespace lockstep::safetensors
