// SPDX-License-Identifier: BSD-3-Clause
#include "comm/fingerprint.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "comm/call_form.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kBytes = 512;

bool is_one_to_one(CallKind kind) { return kind == CallKind::send || kind == CallKind::recv; }

// What has to be equal, then a line break, then what a reader wants to know.
std::string fingerprint(const CallRecord& record) {
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

void compare_calls(c10d::Backend& backend, const GroupState& group, const CallRecord& record) {
  if (is_one_to_one(record.kind)) return;
  const auto own = fingerprint(record);
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
