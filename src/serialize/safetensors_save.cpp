// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <span>
#include <system_error>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <lockstep/base/atomic_file.h>
#include <lockstep/base/error.h>
#include <lockstep/serialize/safetensors.h>

#include "serialize/safetensors_dtypes.h"
#include "serialize/safetensors_header.h"
#include "serialize/safetensors_json.h"
#include "serialize/shared_memory.h"
#include "serialize/write_file.h"

namespace lockstep::safetensors {
namespace {

using serialize::NamedTensor;

void check_tensor(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const std::string& why) {
    throw CheckpointError(fmt::format("tensor {} {}", shown(name), why));
  };
  if (!tensor.defined()) refuse("is undefined");
  if (tensor.layout() != at::kStrided) {
    refuse("is sparse, which the format cannot hold; save to_dense() of it, or use lockstep::save()");
  }
  if (tensor.is_meta()) refuse("is on the meta device and has no data");
  if (find_dtype(tensor.scalar_type()) == nullptr) {
    refuse(fmt::format("is of dtype {}, which the format cannot hold; use lockstep::save()",
                       c10::toString(tensor.scalar_type())));
  }
}

std::vector<NamedTensor> named_tensors(const Dict& dict) {
  std::vector<NamedTensor> tensors;
  tensors.reserve(dict.size());
  for (const auto& [key, value] : dict) {
    const auto* name = key.get_if<std::string>();
    if (name == nullptr) {
      throw CheckpointError(
          fmt::format("the key {} is a {}; the format has strings only", repr(key, 100), key.type_name()));
    }
    if (*name == kMetadataKey) {
      throw CheckpointError(fmt::format("no tensor can be named {}, which has a meaning of its own", *name));
    }
    if (!value.is<at::Tensor>() && !value.is<Parameter>()) {
      throw CheckpointError(
          fmt::format("the entry {} is a {}, not a Tensor; the format holds a flat dict of tensors",
                      shown(*name), value.type_name()));
    }
    check_tensor(*name, value.as_tensor());
    tensors.push_back({*name, value.as_tensor()});
  }
  return tensors;
}

void refuse_shared(const std::vector<NamedTensor>& tensors) {
  const auto pair = serialize::find_shared_memory(tensors);
  if (!pair) return;
  throw CheckpointError(fmt::format(
      "tensors {} and {} share memory, which the format cannot hold: leave one out, clone() one of "
      "them to have both written (lockstep ckpt convert --copy-shared does), or use lockstep::save()",
      shown(pair->first), shown(pair->second)));
}

void sort_for_file(std::vector<NamedTensor>& tensors) {
  std::ranges::sort(tensors, {}, [](const NamedTensor& named) {
    return std::pair(rank_of(*find_dtype(named.tensor.scalar_type())), std::string_view(named.name));
  });
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

void save_file(const Dict& tensors, const std::filesystem::path& file, const SaveOptions& options) {
  try {
    auto named = named_tensors(tensors);
    refuse_shared(named);
    sort_for_file(named);
    const auto header = header_text(place(named), options.metadata);
    if (header.size() > kLargestHeader) {
      throw CheckpointError(
          fmt::format("its header would have {} bytes, but the format allows {}; shorten the names",
                      header.size(), kLargestHeader));
    }
    AtomicFile target(file, {.sync = options.sync});
    write_file(target, header, named);
    target.commit();
  } catch (const NotOnDisk& error) {
    serialize::fail_to_sync(file, error);
  } catch (const std::system_error& error) {
    throw CheckpointError(
        fmt::format("{}: the file cannot be written: {}; what was there before is unchanged", file.string(),
                    error.code().message()));
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", file.string(), error.what()));
  }
}

}  // namespace lockstep::safetensors
