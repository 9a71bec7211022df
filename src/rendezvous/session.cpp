// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/session.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/backends/registry.h>
#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/device/device.h>

#include "comm/group_state.h"
#include "rendezvous/arrival.h"
#include "rendezvous/device_choice.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kLeaveLimit = 2'000ms;

// Beside World in base, the default process group's only globals: the process's, and that of a thread which
// is a rank by itself.
std::atomic<Session*>& slot() {
  static std::atomic<Session*> session{nullptr};
  return session;
}

Session*& thread_slot() {
  thread_local Session* session = nullptr;
  return session;
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Of calls on a device's stream, which fail after the call that made them has returned.
void throw_failure_of(const ProcessGroup& group) {
  if (const auto watch = group.state().watch()) watch->throw_if_failed();
}

DeviceQuestion question_of(const InitOptions& options) {
  const auto built = backends::available_backends();
  return {.wanted = options.device,
          .for_cpu = !options.share_devices &&
                     (backends::is_for_cpu_only(options.backend) || options.backend == "fake"),
          .share = options.share_devices,
          .count = device_count(c10::kCUDA),
          .can_reduce = std::ranges::find(built, "nccl") != built.end(),
          .restricted = std::getenv("CUDA_VISIBLE_DEVICES") != nullptr};
}

}  // namespace

c10::Device expected_device(const InitOptions& options) {
  auto question = question_of(options);
  question.share = true;  // who has which is known only once all are there
  return choose_device(question, {});
}

Session* current_session() { return is_thread_rank() ? thread_slot() : slot().load(); }

bool is_thread_rank() { return thread_slot() != nullptr; }

Session::Session(const InitOptions& options, const Placement& placement,
                 c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<comm::ThreadMeeting> threads)
    : store_(std::move(store)),
      threads_(std::move(threads)),
      env_(options.env),
      master_host_(placement.master_addr.empty() ? "127.0.0.1" : placement.master_addr),
      hosts_(read_hosts(*store_)),
      world_(locate(hosts_, placement)),
      device_(c10::kCPU),
      net_name_(options.nccl.net_name == nullptr ? "" : options.nccl.net_name),
      nccl_(options.nccl),
      uncaught_at_start_(std::uncaught_exceptions()),
      check_calls_(options.check_calls.value_or(options.env.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL")) {
  backend_ = options.backend;
  if (nccl_.net_name != nullptr) nccl_.net_name = net_name_.c_str();
  settle_device(options);
  const auto ranks = whereabouts(all_ranks(world_.size));
  const auto choice = backends::resolve_backend(backend_, ranks);
  if (!choice.reason.empty() && world_.rank == 0 && world_.size > 1) {
    log(LogLevel::info, fmt::format("backend {} for {} ranks: {}", choice.name, world_.size, choice.reason));
  }
  group_ = connect("default", {.name = choice.name, .one_host = ranks.one_host, .nccl = nccl_}, world_.rank,
                   world_.size, {.name = options.group_name, .timeout = options.timeout});
  make_current();
}

// Where there may be GPUs a rank that cannot have its device tells the others before it goes.
void Session::settle_device(const InitOptions& options) {
  const auto question = question_of(options);
  DeviceClaim claim;
  try {
    device_ = choose_device(question, world_);
    set_device(device_);
    claim.kind = c10::DeviceTypeName(device_.type(), true);
    claim.identity = device_identity(device_);
  } catch (const ArgumentError& error) {
    if (world_.size == 1) throw;
    claim.complaint = error.what();
  }
  if (options.backend == "fake" && claim.complaint.empty()) return;  // nobody else is there
  if (world_.size == 1 || (device_.is_cpu() && !question.can_reduce && claim.complaint.empty())) return;
  share_device_ = agree_on_devices(*store_, world_, claim, options.share_devices);
}

backends::Whereabouts Session::whereabouts(const std::vector<int>& ranks) const {
  return {.device = device_, .one_host = hosts_.all_on_one_host(ranks), .share_device = share_device_};
}

void Session::synchronize() const {
  lockstep::synchronize(device_);
  throw_failure_of(*group_);
  std::ranges::for_each(subgroups_, throw_failure_of);
}

void Session::make_current() {
  if (threads_) {
    thread_slot() = this;
    set_thread_world(world_);
    return;
  }
  Session* none = nullptr;
  if (!slot().compare_exchange_strong(none, this)) {
    throw ArgumentError(
        "lockstep::init: this process is in a run already; end the first context before a second");
  }
  set_current_world(world_);
}

void Session::end_being_current() noexcept {
  if (thread_slot() == this) {
    thread_slot() = nullptr;
    set_thread_world(std::nullopt);
  }
  Session* self = this;
  if (slot().compare_exchange_strong(self, nullptr)) set_current_world({});
}

Session::~Session() {
  end_being_current();
  if (!threads_ && std::uncaught_exceptions() <= uncaught_at_start_) wait_for_others_to_leave();
  for (const auto& group : subgroups_) group.close();
  if (group_) group_->close();
}

ProcessGroup Session::connect(const std::string& key, const Way& way, int rank, int size,
                              ProcessGroupInfo info) {
  auto handle = backends::create_backend(
      way.name, {.store = c10::make_intrusive<c10d::PrefixStore>("group/" + key, store_),
                 .rank = rank,
                 .size = size,
                 .timeout = info.timeout,
                 .group_name = info.name,
                 .master_host = master_host_,
                 .one_host = way.one_host,
                 .env = env_,
                 .threads = threads_,
                 .key = key,
                 .device = device_,
                 .nccl = way.nccl});
  info.traits = handle.traits;
  info.host_group = handle.host_group;
  info.check_calls = check_calls_ && !handle.traits.compares_calls;
  return {handle.backend, std::move(info)};
}

void Session::check_members(const std::vector<int>& ranks) const {
  const std::set<int> distinct(ranks.begin(), ranks.end());
  const bool in_range = !ranks.empty() && *distinct.begin() >= 0 && *distinct.rbegin() < world_.size;
  if (distinct.size() == ranks.size() && in_range) return;
  throw ArgumentError(
      fmt::format("rank {}: new_group([{}]): one or more different ranks of 0 to {} are needed", world_.rank,
                  fmt::join(ranks, ", "), world_.size - 1));
}

std::optional<ProcessGroup> Session::new_group(const std::vector<int>& ranks, const GroupOptions& options) {
  check_members(ranks);
  const auto members = whereabouts(ranks);
  const auto choice =
      backends::resolve_backend(options.backend.empty() ? backend_ : options.backend, members);
  const std::string name =
      options.group_name.empty() ? fmt::format("group {}", groups_made_ + 1) : options.group_name;
  // Counted on every rank, members or not, so that keys agree.
  const std::string key = fmt::format("{}", ++groups_made_);
  const auto own = std::ranges::find(ranks, world_.rank);
  if (own == ranks.end()) return std::nullopt;
  auto group =
      connect(key, {.name = choice.name, .one_host = members.one_host, .nccl = options.nccl.value_or(nccl_)},
              static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
              {.name = name, .global_ranks = ranks, .timeout = options.timeout.value_or(group_->timeout())});
  subgroups_.push_back(group);
  return group;
}

void Session::wait_for_others_to_leave() {
  try {
    store_->add(kLeftKey, 1);
    if (world_.rank != 0) return;
    const Deadline deadline(kLeaveLimit);
    while (store_->add(kLeftKey, 0) < world_.size && !deadline.expired()) std::this_thread::sleep_for(1ms);
  } catch (const std::exception&) {
    // Rank 0 has left before: nobody needs the store any more.
  }
}

}  // namespace lockstep::rendezvous
