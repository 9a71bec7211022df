// SPDX-License-Identifier: BSD-3-Clause
#include "comm/fingerprint.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"

namespace lockstep::comm {
namespace {

constexpr std::uint64_t kOddNumber = 0x9E37'79B9'7F4A'7C15U;

[[gnu::always_inline]] inline std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * kOddNumber;
  return hash ^ hash >> 29U;
}

// The memory layout of a dense tensor; 0 if it is contiguous.
[[gnu::always_inline]] inline std::uint64_t layout_of(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) [[likely]]
    return 0;
  std::uint64_t layout = 1;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    // The stride of a dimension of one element has no meaning.
    if (tensor.size(dim) > 1) layout = mixed(layout, static_cast<std::uint64_t>(tensor.stride(dim)));
  }
  return layout;
}

[[gnu::always_inline]] inline std::uint64_t shape_of(const at::Tensor& tensor) {
  std::uint64_t shape = 1;
  for (const auto size : tensor.sizes()) shape = mixed(shape, static_cast<std::uint64_t>(size) + 1);
  return shape;
}

// What must be equal on all ranks that make one collective. The fingerprint and compare_calls() read this and
// nothing else, so that they find the same differences.
struct CallSignature {
  std::uint64_t scalars = 0;  // kind, dtype, operation and root, at these bits
  std::uint64_t shape = 0;    // a hash, if the kind requires equal shapes
  std::uint64_t layout = 0;   // a hash of the strides, in the same kinds; 0: contiguous
};

constexpr unsigned kDtypeBit = 8;
constexpr unsigned kOperationBit = 16;  // of the reducing kinds
constexpr unsigned kRootBit = 24;       // of the rooted kinds

std::uint64_t scalar(auto value, unsigned bit) { return (static_cast<std::uint64_t>(value) + 1) << bit; }

// Inline, because each call takes its fingerprint.
[[gnu::always_inline]] inline CallSignature signature_of(const Call& call) {
  CallSignature signature{.scalars = scalar(call.kind, 0)};
  const auto* tensor = main_tensor(call);
  if (tensor == nullptr) return signature;
  signature.scalars |= scalar(tensor->scalar_type(), kDtypeBit);
  if (has_operation(call.kind)) signature.scalars |= scalar(call.op, kOperationBit);
  if (has_root(call.kind)) signature.scalars |= scalar(call.root, kRootBit);
  if (is_uneven(call.kind)) return signature;
  signature.shape = shape_of(*tensor);
  signature.layout = layout_of(*tensor);
  return signature;
}

// The bytes for each rank, and from each rank, of a call with uneven shapes.
struct Traffic {
  std::vector<std::uint64_t> given;
  std::vector<std::uint64_t> taken;
};

std::vector<std::uint64_t> bytes_of(at::TensorList tensors) {
  std::vector<std::uint64_t> bytes;
  for (const auto& tensor : tensors) bytes.push_back(tensor.nbytes());
  return bytes;
}

std::vector<std::uint64_t> bytes_of_rows(const at::Tensor& tensor, c10::IntArrayRef splits,
                                         std::size_t ranks) {
  const auto rows = static_cast<std::uint64_t>(tensor.size(0));
  const auto width = rows == 0 ? 0 : tensor.nbytes() / rows;
  std::vector<std::uint64_t> bytes(ranks, rows / ranks * width);
  for (std::size_t i = 0; i < splits.size(); ++i) bytes[i] = static_cast<std::uint64_t>(splits[i]) * width;
  return bytes;
}

Traffic traffic_of(const Call& call, std::size_t ranks) {
  Traffic traffic{.given = std::vector<std::uint64_t>(ranks), .taken = std::vector<std::uint64_t>(ranks)};
  if (!is_uneven(call.kind)) return traffic;
  if (call.kind == CallKind::all_to_all_single) {
    traffic.given = bytes_of_rows(call.inputs[0], call.input_splits, ranks);
    traffic.taken = bytes_of_rows(call.outputs[0], call.output_splits, ranks);
    return traffic;
  }
  if (call.kind == CallKind::all_to_all) {
    traffic.given = bytes_of(call.inputs);
  } else if (call.kind == CallKind::all_gather) {
    traffic.given.assign(ranks, call.inputs[0].nbytes());
  } else {
    traffic.given[static_cast<std::size_t>(call.root)] = call.inputs[0].nbytes();
  }
  if (!call.outputs.empty()) traffic.taken = bytes_of(call.outputs);
  return traffic;
}

// For the reader of an error.
std::string description(const Call& call, const CallRecord& record) {
  std::string text = record.describe();
  if (has_operation(call.kind)) text += fmt::format(" ({})", name_of(call.op));
  if (has_root(call.kind)) text += fmt::format(", root {}", call.root);
  const auto* tensor = main_tensor(call);
  if (tensor != nullptr && !tensor->is_contiguous()) {
    text += fmt::format(", strides [{}]", fmt::join(tensor->strides(), ", "));
  }
  return text;
}

// What one rank shows the others: its signature, its traffic, its description.
constexpr std::size_t kTextBytes = 512;

struct Shown {
  CallSignature signature = {};
  Traffic traffic = {};
  std::string text = {};
};

at::Tensor packed(const Shown& shown) {
  const auto words = shown.traffic.given.size() * sizeof(std::uint64_t);
  const auto bytes = sizeof(CallSignature) + 2 * words + kTextBytes;
  auto tensor = at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte);
  auto* to = static_cast<std::byte*>(tensor.data_ptr());
  std::memcpy(to, &shown.signature, sizeof(CallSignature));
  std::memcpy(to + sizeof(CallSignature), shown.traffic.given.data(), words);
  std::memcpy(to + sizeof(CallSignature) + words, shown.traffic.taken.data(), words);
  std::memcpy(to + sizeof(CallSignature) + 2 * words, shown.text.data(),
              std::min(shown.text.size(), kTextBytes - 1));
  return tensor;
}

Shown unpacked(const at::Tensor& tensor, std::size_t ranks) {
  const auto* from = static_cast<const std::byte*>(tensor.const_data_ptr());
  const auto words = ranks * sizeof(std::uint64_t);
  Shown shown{
      .traffic = {.given = std::vector<std::uint64_t>(ranks), .taken = std::vector<std::uint64_t>(ranks)}};
  std::memcpy(&shown.signature, from, sizeof(CallSignature));
  std::memcpy(shown.traffic.given.data(), from + sizeof(CallSignature), words);
  std::memcpy(shown.traffic.taken.data(), from + sizeof(CallSignature) + words, words);
  shown.text = reinterpret_cast<const char*>(from + sizeof(CallSignature) + 2 * words);
  return shown;
}

// In what two ranks differ; empty: in nothing.
std::string difference(const CallSignature& a, const CallSignature& b) {
  const auto differing = a.scalars ^ b.scalars;
  const auto first = static_cast<unsigned>(std::countr_zero(differing));
  if (first < kDtypeBit) return "kind of call";
  if (first < kOperationBit) return "dtype";
  if (first < kRootBit) return "operation";
  if (differing != 0) return "root";
  if (a.shape != b.shape) return "shape";
  return a.layout != b.layout ? "memory layout" : "";
}

std::string difference(const std::vector<Shown>& ranks) {
  for (const auto& rank : ranks) {
    if (auto found = difference(ranks.front().signature, rank.signature); !found.empty()) return found;
  }
  for (std::size_t from = 0; from < ranks.size(); ++from) {
    for (std::size_t to = 0; to < ranks.size(); ++to) {
      const auto given = ranks[from].traffic.given[to];
      const auto taken = ranks[to].traffic.taken[from];
      if (given != taken)
        return fmt::format("sizes: rank {} has {} bytes for rank {}, which expects {}", from, given, to,
                           taken);
    }
  }
  return {};
}

std::vector<Shown> exchange(c10d::Backend& backend, const Shown& own, std::size_t ranks) {
  std::vector<at::Tensor> input{packed(own)};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (std::size_t rank = 0; rank < ranks; ++rank) outputs.front().push_back(at::empty_like(input.front()));
  backend.allgather(outputs, input)->wait();
  std::vector<Shown> all;
  for (const auto& output : outputs.front()) all.push_back(unpacked(output, ranks));
  return all;
}

}  // namespace

[[gnu::flatten]] std::uint64_t fingerprint(const Call& call) {
  if (is_message(call.kind)) return 0;
  const auto signature = signature_of(call);
  return mixed(mixed(signature.scalars, signature.shape), signature.layout ^ call.whole);
}

void compare_calls(c10d::Backend& backend, const GroupState& group, const Call& call,
                   const CallRecord& record) {
  if (is_message(call.kind)) return;
  const auto size = static_cast<std::size_t>(group.size());
  const Shown own{
      .signature = signature_of(call), .traffic = traffic_of(call, size), .text = description(call, record)};
  const auto ranks = exchange(backend, own, size);
  const auto what = difference(ranks);
  if (what.empty()) return;
  std::string all;
  for (std::size_t rank = 0; rank < size; ++rank)
    all += fmt::format("{}rank {}: {}", rank == 0 ? "" : "; ", rank, ranks[rank].text);
  throw_error<DesyncError>("the ranks make different calls: {}. They differ in {}", all, what);
}

}  // namespace lockstep::comm
