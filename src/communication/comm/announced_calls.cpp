// SPDX-License-Identifier: BSD-3-Clause
#include "comm/announced_calls.h"

#include <limits>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"

namespace lockstep::comm {
namespace {

constexpr const char* kAnnouncement = "announcement of a call, in Join";
constexpr const char* kRepeated = "zeros of a rank without data, in Join";

constexpr std::int64_t kKinds = 8;

std::int64_t encoded(const Announcement& announcement) {
  return announcement.count * kKinds + static_cast<std::int64_t>(announcement.kind);
}

Announcement decoded(std::int64_t code) {
  return {.kind = static_cast<Announcement::Kind>(code % kKinds), .count = code / kKinds};
}

std::string text_of(const Announcement& announcement) {
  using enum Announcement::Kind;
  switch (announcement.kind) {
    case end_of_iteration:
      return "the end of the iteration";
    case all_gather:
      return fmt::format("an all-gather of {} values", announcement.count);
    case all_reduce:
      return fmt::format("an all-reduce of {} values", announcement.count);
    case bucket:
      return fmt::format("the reduction of bucket {}", announcement.count);
    case end_of_reductions:
      break;
  }
  return "the end of the reductions";
}

// The maximum over all ranks is that of those that announce; negated, their minimum.
at::Tensor codes(std::int64_t value, c10::Device device) {
  return at::full({2}, value, at::TensorOptions().dtype(at::kLong).device(device));
}

}  // namespace

void begin_announcing(const ProcessGroup& group, c10::Device device) { state_of(group).announce_on(device); }

void announce(const ProcessGroup& group, const Announcement& announcement) {
  const auto device = state_of(group).announces_on();
  if (!device) return;
  const auto both = codes(encoded(announcement), *device);
  both[1].neg_();
  const CallSite site(kAnnouncement);
  group.all_reduce_async(both, ReduceOp::MAX);
}

void end_announcing(const ProcessGroup& group) {
  announce(group, {.kind = Announcement::Kind::end_of_iteration});
  state_of(group).announce_on(std::nullopt);
}

Announcement await_announcement(const ProcessGroup& group, c10::Device device) {
  const auto both = codes(std::numeric_limits<std::int64_t>::min(), device);
  const CallSite site(kAnnouncement);
  group.all_reduce(both, ReduceOp::MAX);
  const auto host = both.to(at::kCPU);
  const auto highest = host[0].item<std::int64_t>();
  const auto lowest = -host[1].item<std::int64_t>();
  if (highest != lowest) {
    throw_error<DesyncError>(about(group),
                             "{}: Join: the ranks that have data make different calls: {} and {}",
                             state_of(group).whoami(), text_of(decoded(lowest)), text_of(decoded(highest)));
  }
  return decoded(highest);
}

void repeat_with_zeros(const Announcement& announcement, const ProcessGroup& group, c10::Device device) {
  const auto own = at::zeros({announcement.count}, at::TensorOptions().dtype(at::kDouble).device(device));
  if (announcement.kind == Announcement::Kind::all_reduce) {
    const CallSite site(kRepeated);
    group.all_reduce(own);
  } else {
    const CallSite site(kRepeated);
    group.all_gather_into_tensor(at::empty({group.size(), announcement.count}, own.options()), own);
  }
}

}  // namespace lockstep::comm
