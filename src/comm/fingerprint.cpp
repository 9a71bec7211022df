// SPDX-License-Identifier: BSD-3-Clause
#include "comm/fingerprint.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

namespace lockstep::comm {
namespace {

constexpr std::size_t kBytes = 512;
constexpr std::uint64_t kOddNumber = 0x9E37'79B9'7F4A'7C15U;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * kOddNumber;
  return hash ^ hash >> 29U;
}

// The memory layout of a dense tensor; 0 if it is contiguous.
std::uint64_t layout_of(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return 0;
  std::uint64_t layout = 1;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    // The stride of a dimension of one element has no meaning.
    if (tensor.size(dim) > 1) layout = mixed(layout, static_cast<std::uint64_t>(tensor.stride(dim)));
  }
  return layout;
}

// The part that must be equal, a line break, then information for the reader.
std::string description(const CallRecord& record) {
  std::string key = fmt::format("{} {} {} {}", name_of(record.kind), c10::toString(record.dtype), record.root,
                                record.op ? name_of(*record.op) : "");
  if (!is_uneven(record.kind)) key += fmt::format(" [{}]", fmt::join(record.shape, ", "));
  std::string text = record.describe();
  if (record.op) text += fmt::format(" ({})", name_of(*record.op));
  if (record.root >= 0) text += fmt::format(", root {}", record.root);
  return (key + "\n" + text).substr(0, kBytes - 1);
}

std::string key_of(const std::string& print) { return print.substr(0, print.find('\n')); }

}  // namespace

std::uint64_t fingerprint(const Call& call) {
  if (is_message(call.kind)) return 0;
  const auto* tensor = main_tensor(call);
  const auto dtype = tensor != nullptr ? tensor->scalar_type() : c10::ScalarType::Undefined;
  const auto print = mixed(static_cast<std::uint64_t>(call.kind) + 1, static_cast<std::uint64_t>(dtype) + 1);
  if (is_uneven(call.kind)) return print;
  if (tensor == nullptr) return mixed(print, 0);
  auto shaped = print;
  for (const auto size : tensor->sizes()) shaped = mixed(shaped, static_cast<std::uint64_t>(size) + 1);
  return mixed(shaped, layout_of(*tensor));
}

void compare_calls(c10d::Backend& backend, const GroupState& group, const CallRecord& record) {
  if (is_message(record.kind)) return;
  const auto own = description(record);
  std::vector<at::Tensor> input{at::zeros({static_cast<std::int64_t>(kBytes)}, at::kByte)};
  std::memcpy(input.front().data_ptr(), own.data(), own.size());
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < group.size(); ++rank) outputs.front().push_back(at::empty_like(input.front()));
  backend.allgather(outputs, input)->wait();
  std::string all;
  bool same = true;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::string print(
        static_cast<const char*>(outputs.front()[static_cast<std::size_t>(rank)].const_data_ptr()));
    same = same && key_of(print) == key_of(own);
    all += fmt::format("{}rank {}: {}", rank == 0 ? "" : "; ", rank, print.substr(key_of(print).size() + 1));
  }
  if (!same) throw DesyncError("the ranks make different calls: " + all);
}

}  // namespace lockstep::comm
