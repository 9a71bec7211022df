// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/rank_resources.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>
#include <lockstep/device/device.h>

#include "base/deadline.h"
#include "base/host.h"
#include "base/throw_error.h"
#include "machine/host.h"

namespace lockstep::rendezvous {
namespace {

constexpr const char* kAgreementKey = "devices/agreement";
constexpr const char* kReadKey = "devices/read";
constexpr auto kReadLimit = std::chrono::seconds(2);

constexpr const char* kShareAdvice =
    "start at most one rank per GPU, or set InitOptions::share_devices (slower: reductions go through host "
    "memory)";

std::string device_key(int rank) { return fmt::format("devices/{}", rank); }

c10::Device cuda(int index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

[[noreturn]] void refuse_device(const World& world, const std::string& error) {
  if (world.size == 1) throw ArgumentError(error);  // or the ranks have not met yet
  throw_error<ArgumentError>(Reporter{world.rank, world.size}, "{}", error);
}

c10::Device cuda_of_rank(const DeviceRequest& request, const World& world) {
  if (request.count == 0) {
    refuse_device(world,
                  "InitOptions::device is cuda, but this process can use no CUDA device; check "
                  "CUDA_VISIBLE_DEVICES and nvidia-smi, or run `lockstep doctor`");
  }
  if (world.local_rank < request.count) return cuda(world.local_rank);
  // A launcher may show each rank only its own device.
  if (request.restricted && request.count == 1) return cuda(0);
  if (request.share) return cuda(world.local_rank % request.count);
  refuse_device(world, fmt::format("local rank {} finds {} CUDA device{}{} for the {} ranks of this host; {}",
                                   world.local_rank, request.count, request.count == 1 ? "" : "s",
                                   request.restricted ? " (CUDA_VISIBLE_DEVICES is set)" : "",
                                   world.local_size, kShareAdvice));
}

void check_wanted(const DeviceRequest& request, const World& world) {
  const auto& device = *request.wanted;
  const int count = device.is_cuda() ? request.count : device_count(device.type());
  if (device.has_index() && device.index() >= count && !device.is_cpu()) {
    refuse_device(
        world,
        fmt::format(
            "InitOptions::device is {}, but this process can use {} of that type; leave it out for the "
            "default, or use at::kCPU",
            device.str(), count));
  }
}

}  // namespace

c10::Device choose_device(const DeviceRequest& request, const World& world) {
  if (request.wanted) {
    check_wanted(request, world);
    const bool by_rank = request.wanted->is_cuda() && !request.wanted->has_index();
    return by_rank ? cuda_of_rank(request, world) : *request.wanted;
  }
  const bool on_gpu = request.count > 0 && request.can_reduce && !request.for_cpu;
  return on_gpu ? cuda_of_rank(request, world) : c10::Device(c10::kCPU);
}

std::string cpu_warning(const DeviceRequest& request, const backends::BackendSpec& backend) {
  if (!backend.is_for_cpu_only() || !request.for_cpu || request.wanted || request.count == 0) return "";
  return fmt::format(
      "backend {}: training uses the CPU, although {} GPU{} visible. To train on the GPU{}, use backend "
      "\"auto\" or \"cpu:{},cuda:nccl\". To keep {}, set InitOptions::device to torch::kCUDA (GPU tensors go "
      "through host memory). To train on the CPU without this warning, set it to torch::kCPU",
      backend.text(), request.count, request.count == 1 ? " is" : "s are", request.count == 1 ? "" : "s",
      backend.names().front(), backend.names().front());
}

namespace {

std::string shared_ranks(const std::vector<RankDevice>& devices) {
  std::map<std::string, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    if (!devices[rank].identity.empty()) ranks[devices[rank].identity].push_back(static_cast<int>(rank));
  }
  std::string text;
  for (const auto& [identity, having] : ranks) {
    if (having.size() < 2) continue;
    text += fmt::format("{}ranks {} have the same {}", text.empty() ? "" : "; ", fmt::join(having, ", "),
                        identity);
  }
  return text;
}

std::string mixed_kinds(const std::vector<RankDevice>& devices) {
  const auto other =
      std::ranges::find_if(devices, [&](const auto& each) { return each.kind != devices[0].kind; });
  if (other == devices.end()) return "";
  return fmt::format(
      "rank 0's device is {} and rank {}'s is {}; all ranks need the same kind: check CUDA_VISIBLE_DEVICES "
      "and the driver there (`lockstep doctor` does), or set InitOptions::device on all ranks",
      devices[0].kind, other - devices.begin(), other->kind);
}

constexpr char kSeparator = '\n';

void publish(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

std::string read(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

RankDevice parse_device(const std::string& text) {
  std::istringstream lines(text);
  RankDevice device;
  std::getline(lines, device.kind, kSeparator);
  std::getline(lines, device.identity, kSeparator);
  std::getline(lines, device.error, kSeparator);
  return device;
}

// The store ends with rank 0, so the others must have read the agreement before a refusal ends it.
void wait_for_readers(c10d::Store& store, const World& world) {
  const Deadline deadline(kReadLimit);
  while (store.add(kReadKey, 0) < world.size && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

DeviceAgreement check_devices(const std::vector<RankDevice>& devices, bool share) {
  for (const auto& device : devices) {
    if (!device.error.empty()) return {.refusal = device.error};
  }
  if (auto mixed = mixed_kinds(devices); !mixed.empty()) return {.refusal = std::move(mixed)};
  const auto shared = shared_ranks(devices);
  if (shared.empty()) return {};
  return share ? DeviceAgreement{.shared = true}
               : DeviceAgreement{.refusal = fmt::format("{}; {}", shared, kShareAdvice)};
}

bool agree_on_devices(c10d::Store& store, const World& world, const RankDevice& own, bool share) {
  publish(store, device_key(world.rank),
          fmt::format("{}{}{}{}{}", own.kind, kSeparator, own.identity, kSeparator, own.error));
  if (world.rank == 0) {
    std::vector<RankDevice> devices;
    for (int rank = 0; rank < world.size; ++rank)
      devices.push_back(parse_device(read(store, device_key(rank))));
    const auto agreement = check_devices(devices, share);
    publish(store, kAgreementKey, (agreement.shared ? "shared" : "own") + (kSeparator + agreement.refusal));
  }
  std::istringstream agreement(read(store, kAgreementKey));
  std::string kind;
  std::string refusal;
  std::getline(agreement, kind, kSeparator);
  std::getline(agreement, refusal, kSeparator);
  store.add(kReadKey, 1);
  const bool shared = kind == "shared";  // which the backend may refuse on all ranks
  if (world.rank == 0 && (shared || !refusal.empty())) wait_for_readers(store, world);
  if (!refusal.empty()) refuse_device(world, refusal);
  return shared;
}

namespace {

// LibTorch takes all cores, or all their hardware threads.
bool is_default(int threads) {
  std::set<int> cores;
  const auto logical = machine::read_cores();
  for (const auto& each : logical) cores.insert(each.core);
  return threads == static_cast<int>(cores.size()) || threads == static_cast<int>(logical.size());
}

int ranks_on_own_cores(const World& world, const node::NodeGroup* node) {
  if (node != nullptr) return node->ranks_on_own_cores();
  // SLURM and MPI bind each rank to cores of its own. A larger set may be that of all ranks.
  const bool bound =
      static_cast<long>(affinity_cpus().size()) <= ::sysconf(_SC_NPROCESSORS_ONLN) / world.local_size;
  return bound ? 1 : world.local_size;
}

}  // namespace

ThreadShare::ThreadShare(const World& world, const node::NodeGroup* node, const Env& env) {
  if (world.local_size < 2 || env.has("OMP_NUM_THREADS") || env.has("MKL_NUM_THREADS")) return;
  const int cores = usable_cores();
  const int ranks = ranks_on_own_cores(world, node);
  const int share = std::max(1, cores / ranks);
  const int threads = at::get_num_threads();
  if (threads <= share || !is_default(threads)) return;
  before_ = threads;
  share_ = share;
  at::set_num_threads(share);
  if (world.rank != 0) return;
  log(LogLevel::info,
      fmt::format(
          "LibTorch uses {} thread{} instead of {} on each rank, its share of {} core{} for {} ranks; set "
          "OMP_NUM_THREADS for another number",
          share, share == 1 ? "" : "s", threads, cores, cores == 1 ? "" : "s", ranks));
}

ThreadShare::~ThreadShare() {
  if (share_ != 0 && at::get_num_threads() == share_) at::set_num_threads(before_);
}

}  // namespace lockstep::rendezvous
