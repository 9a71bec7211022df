// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/device_choice.h"

#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

namespace lockstep::rendezvous {
namespace {

constexpr const char* kVerdictKey = "devices/verdict";

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

std::string describe_shared(const std::vector<std::string>& identities) {
  std::map<std::string, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    if (!identities[rank].empty()) ranks[identities[rank]].push_back(static_cast<int>(rank));
  }
  std::string text;
  for (const auto& [identity, having] : ranks) {
    if (having.size() < 2) continue;
    text += fmt::format("{}ranks {} have the same {}", text.empty() ? "" : "; ", fmt::join(having, ", "),
                        identity);
  }
  return text;
}

bool find_shared_devices(c10d::Store& store, const World& world, const std::string& identity, bool share) {
  if (world.size == 1) return false;
  store.set(device_key(world.rank), std::vector<std::uint8_t>(identity.begin(), identity.end()));
  if (world.rank == 0) {
    std::vector<std::string> identities;
    for (int rank = 0; rank < world.size; ++rank) {
      const auto bytes = store.get(device_key(rank));
      identities.emplace_back(bytes.begin(), bytes.end());
    }
    const auto text = describe_shared(identities);
    store.set(kVerdictKey, std::vector<std::uint8_t>(text.begin(), text.end()));
  }
  const auto verdict = store.get(kVerdictKey);
  if (verdict.empty()) return false;
  if (share) return true;
  refuse_device(world, fmt::format("{}; {}", std::string(verdict.begin(), verdict.end()), kWaysOut));
}

}  // namespace lockstep::rendezvous
