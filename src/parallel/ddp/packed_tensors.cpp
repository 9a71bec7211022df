// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/packed_tensors.h"

#include <cstring>
#include <span>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"

namespace lockstep::ddp {
namespace {

constexpr std::int64_t kLine = 64;       // bytes; LibTorch's memory begins at a multiple of it
constexpr std::int64_t kUndefined = -1;  // in place of a type
constexpr int kTag = 4801;               // of no message of the program

// The elements from the first to the last in memory, gaps included.
std::int64_t extent_of(const at::Tensor& tensor) {
  std::int64_t extent = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) == 0) return 0;
    extent += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return extent;
}

std::int64_t place_in_line(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) %
                                   static_cast<std::uintptr_t>(kLine));
}

// type, offset in bytes, dimensions, sizes, strides
void append_layout(std::vector<std::int64_t>& layout, const at::Tensor& tensor, std::int64_t offset) {
  layout.insert(layout.end(), {static_cast<std::int64_t>(tensor.scalar_type()), offset, tensor.dim()});
  layout.insert(layout.end(), tensor.sizes().begin(), tensor.sizes().end());
  layout.insert(layout.end(), tensor.strides().begin(), tensor.strides().end());
}

}  // namespace

PackedTensors pack(const std::vector<at::Tensor>& tensors, const char* what) {
  const c10::NoGradGuard no_grad;
  PackedTensors packed;
  std::vector<at::Tensor> flat;
  std::vector<std::int64_t> offsets;
  std::int64_t end = 0;
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) {
      packed.layout.push_back(kUndefined);
      continue;
    }
    if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
      throw_error<ArgumentError>("{} is a {} tensor; only dense tensors can be sent to another rank", what,
                                 tensor.is_quantized() ? "quantized" : c10::str(tensor.layout()));
    }
    const auto plain = tensor.detach().resolve_conj().resolve_neg();
    const auto extent = extent_of(plain);
    const auto offset = (end + kLine - 1) / kLine * kLine + (extent == 0 ? 0 : place_in_line(plain));
    append_layout(packed.layout, plain, offset);
    end = offset + extent * plain.element_size();
    flat.push_back(extent == 0 ? at::Tensor() : at::as_strided(plain, {extent}, {1}).cpu());
    offsets.push_back(offset);
  }
  packed.bytes = at::empty({end}, at::kByte);
  for (std::size_t i = 0; i < flat.size(); ++i)
    if (flat[i].defined())
      std::memcpy(packed.bytes.mutable_data_ptr<std::uint8_t>() + offsets[i], flat[i].const_data_ptr(),
                  flat[i].nbytes());
  return packed;
}

std::vector<at::Tensor> unpack(const PackedTensors& packed) {
  std::vector<at::Tensor> tensors;
  const std::span<const std::int64_t> layout(packed.layout);
  for (std::size_t at = 0; at < layout.size();) {
    if (layout[at] == kUndefined) {
      tensors.emplace_back();
      ++at;
      continue;
    }
    const auto dtype = static_cast<at::ScalarType>(layout[at]);
    const auto dims = static_cast<std::size_t>(layout[at + 2]);
    const auto sizes = layout.subspan(at + 3, dims);
    const auto strides = layout.subspan(at + 3 + dims, dims);
    const auto offset = layout[at + 1] / static_cast<std::int64_t>(c10::elementSize(dtype));
    tensors.push_back(
        at::empty({0}, dtype)
            .set_(packed.bytes.storage(), offset, {sizes.data(), dims}, {strides.data(), dims}));
    at += 3 + 2 * dims;
  }
  return tensors;
}

std::optional<PackedTensors> exchange(const ProcessGroup& group, const std::optional<PackedTensors>& sent,
                                      int dst, std::optional<int> src, std::source_location where) {
  const comm::CallSite site(where, "batch and state of a verified step");
  const auto device = comm::device_for_objects(group);
  std::vector<Work> sends;
  if (sent) {
    const std::vector<std::int64_t> lengths{static_cast<std::int64_t>(sent->layout.size()),
                                            sent->bytes.numel()};
    for (const auto& each :
         {at::tensor(lengths, at::kLong), at::tensor(sent->layout, at::kLong), sent->bytes})
      sends.push_back(group.send_async(each.to(device), dst, kTag, where));
  }
  std::optional<PackedTensors> received;
  if (src) {
    const auto receive = [&](std::int64_t length, at::ScalarType dtype) {
      const auto tensor = at::empty({length}, at::TensorOptions(dtype).device(device));
      group.recv(tensor, src, kTag, where);
      return tensor.cpu();
    };
    const auto lengths = receive(2, at::kLong);
    const auto layout = receive(lengths[0].item<std::int64_t>(), at::kLong);
    const auto* const begin = layout.const_data_ptr<std::int64_t>();
    received = {.layout = {begin, begin + layout.numel()},
                .bytes = receive(lengths[1].item<std::int64_t>(), at::kByte)};
  }
  for (const auto& each : sends) each.wait();
  return received;
}

}  // namespace lockstep::ddp
