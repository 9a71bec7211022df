// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/device_choice.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

namespace lockstep::rendezvous {
namespace {

constexpr const char* kVerdictKey = "devices/verdict";
constexpr const char* kReadKey = "devices/read";
constexpr auto kReadLimit = std::chrono::seconds(2);

constexpr const char* kWaysOut =
    "start at most as many ranks on a host as it has GPUs, or let them share with InitOptions::share_devices "
    "(reduction then goes by way of host memory: slow, and right)";

std::string device_key(int rank) { return fmt::format("devices/{}", rank); }

c10::Device cuda(int index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

[[noreturn]] void refuse_device(const World& world, const std::string& complaint) {
  throw ArgumentError(fmt::format("rank {} of {}: {}", world.rank, world.size, complaint));
}

c10::Device cuda_of_rank(const DeviceQuestion& question, const World& world) {
  if (question.count == 0) {
    refuse_device(world,
                  "InitOptions::device is cuda, but this process can use no CUDA device; look at "
                  "CUDA_VISIBLE_DEVICES and nvidia-smi (`lockstep doctor` does)");
  }
  if (world.local_rank < question.count) return cuda(world.local_rank);
  // Launchers that give each rank a device of its own show it no other.
  if (question.restricted && question.count == 1) return cuda(0);
  if (question.share) return cuda(world.local_rank % question.count);
  refuse_device(world, fmt::format("local rank {} finds {} CUDA device{}{} for the {} ranks of this host; {}",
                                   world.local_rank, question.count, question.count == 1 ? "" : "s",
                                   question.restricted ? " (CUDA_VISIBLE_DEVICES is set)" : "",
                                   world.local_size, kWaysOut));
}

void check_wanted(const DeviceQuestion& question, const World& world) {
  const auto& device = *question.wanted;
  const int count = device.is_cuda() ? question.count : device_count(device.type());
  if (device.has_index() && device.index() >= count && !device.is_cpu()) {
    refuse_device(world, fmt::format("InitOptions::device is {}, but this process can use {} of that kind",
                                     device.str(), count));
  }
}

}  // namespace

c10::Device choose_device(const DeviceQuestion& question, const World& world) {
  if (question.wanted) {
    check_wanted(question, world);
    const bool by_rank = question.wanted->is_cuda() && !question.wanted->has_index();
    return by_rank ? cuda_of_rank(question, world) : *question.wanted;
  }
  const bool on_gpu = question.count > 0 && question.can_reduce && !question.for_cpu;
  return on_gpu ? cuda_of_rank(question, world) : c10::Device(c10::kCPU);
}

namespace {

std::string shared_ranks(const std::vector<DeviceClaim>& claims) {
  std::map<std::string, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < claims.size(); ++rank) {
    if (!claims[rank].identity.empty()) ranks[claims[rank].identity].push_back(static_cast<int>(rank));
  }
  std::string text;
  for (const auto& [identity, having] : ranks) {
    if (having.size() < 2) continue;
    text += fmt::format("{}ranks {} have the same {}", text.empty() ? "" : "; ", fmt::join(having, ", "),
                        identity);
  }
  return text;
}

std::string mixed_kinds(const std::vector<DeviceClaim>& claims) {
  const auto other =
      std::ranges::find_if(claims, [&](const auto& each) { return each.kind != claims[0].kind; });
  if (other == claims.end()) return "";
  return fmt::format(
      "rank 0's device is {} and rank {}'s is {}; all ranks need the same kind: look at CUDA_VISIBLE_DEVICES "
      "and the "
      "driver there (`lockstep doctor` does), or set InitOptions::device on all",
      claims[0].kind, other - claims.begin(), other->kind);
}

constexpr char kSeparator = '\n';

void publish(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

std::string read(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

DeviceClaim claim_of(const std::string& text) {
  std::istringstream lines(text);
  DeviceClaim claim;
  std::getline(lines, claim.kind, kSeparator);
  std::getline(lines, claim.identity, kSeparator);
  std::getline(lines, claim.complaint, kSeparator);
  return claim;
}

// Rank 0 takes the store along when it goes, which the others have to have read before.
void wait_for_readers(c10d::Store& store, const World& world) {
  const Deadline deadline(kReadLimit);
  while (store.add(kReadKey, 0) < world.size && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Verdict judge_devices(const std::vector<DeviceClaim>& claims, bool share) {
  for (const auto& claim : claims) {
    if (!claim.complaint.empty()) return {.refusal = claim.complaint};
  }
  if (auto mixed = mixed_kinds(claims); !mixed.empty()) return {.refusal = std::move(mixed)};
  const auto shared = shared_ranks(claims);
  if (shared.empty()) return {};
  return share ? Verdict{.shared = true} : Verdict{.refusal = fmt::format("{}; {}", shared, kWaysOut)};
}

bool agree_on_devices(c10d::Store& store, const World& world, const DeviceClaim& own, bool share) {
  publish(store, device_key(world.rank),
          fmt::format("{}{}{}{}{}", own.kind, kSeparator, own.identity, kSeparator, own.complaint));
  if (world.rank == 0) {
    std::vector<DeviceClaim> claims;
    for (int rank = 0; rank < world.size; ++rank) claims.push_back(claim_of(read(store, device_key(rank))));
    const auto verdict = judge_devices(claims, share);
    publish(store, kVerdictKey, (verdict.shared ? "shared" : "own") + (kSeparator + verdict.refusal));
  }
  std::istringstream verdict(read(store, kVerdictKey));
  std::string kind;
  std::string refusal;
  std::getline(verdict, kind, kSeparator);
  std::getline(verdict, refusal, kSeparator);
  store.add(kReadKey, 1);
  if (world.rank == 0 && !refusal.empty()) wait_for_readers(store, world);
  if (!refusal.empty()) refuse_device(world, refusal);
  return kind == "shared";
}

}  // namespace lockstep::rendezvous
