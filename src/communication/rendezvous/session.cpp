// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/session.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <numeric>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/log.h>
#include <lockstep/device/device.h>

#include "base/deadline.h"
#include "base/rank_progress.h"
#include "base/time_limits.h"
#include "comm/from_c10d.h"
#include "comm/group_state.h"
#include "comm/membership.h"
#include "rendezvous/python_group.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;

// To form the group again; each loss of another rank meanwhile needs one or two more.
constexpr int kUsualAttempts = 5;
constexpr int kMostAttempts = 50;

// Calls on a device's stream fail after they have returned.
void throw_failure_of(const ProcessGroup& group) {
  if (const auto watch = comm::state_of(group).watch()) watch->throw_if_failed();
}

// Of rank 0.
void show_limits(const SessionOptions& options, int rank) {
  const auto limits = LauncherLimits::from(options.env);
  if (rank != 0) return;
  if (const auto text = limits.warning(options.timeout); !text.empty()) log(LogLevel::warning, text);
  log(limits.are_shown ? LogLevel::info : LogLevel::debug,
      "time limits of the ranks:" + table_text(rank_limits(options.timeout)));
}

DeviceRequest device_request(const SessionOptions& options, const backends::BackendSpec& backend) {
  const auto built = backends::available_backends();
  return {.wanted = options.device,
          .for_cpu = !options.share_devices && (backend.is_for_cpu_only() || backend.name() == "fake"),
          .share = options.share_devices,
          .count = device_count(c10::kCUDA),
          .can_reduce = std::ranges::find(built, "nccl") != built.end(),
          .restricted = std::getenv("CUDA_VISIBLE_DEVICES") != nullptr};
}

struct SelectedDevice {
  c10::Device device{c10::kCPU};
  bool shared = false;  // with another rank
};

// `agrees`: all ranks call this and look for ranks that share a device. A rank that cannot have its device
// then tells the others before it throws.
SelectedDevice select_device(const DeviceRequest& request, bool agrees, const World& world,
                             c10d::Store& store) {
  SelectedDevice selected;
  RankDevice own;
  try {
    selected.device = choose_device(request, world);
    set_device(selected.device);
    own.kind = c10::DeviceTypeName(selected.device.type(), true);
    own.identity = device_identity(selected.device);
  } catch (const ArgumentError& error) {
    if (!agrees) throw;
    own.error = error.what();
  }
  const bool all_on_cpu = selected.device.is_cpu() && !request.can_reduce && own.error.empty();
  if (agrees && !all_on_cpu) selected.shared = agree_on_devices(store, world, own, request.share);
  return selected;
}

}  // namespace

bool is_served_by_agent(const Env& env) { return env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"; }

bool checks_calls(const SessionOptions& options) {
  if (options.check_calls) return *options.check_calls;
  auto level = options.env.get("TORCH_DISTRIBUTED_DEBUG").value_or("");
  std::ranges::transform(level, level.begin(), [](unsigned char letter) { return std::toupper(letter); });
  return level == "DETAIL";
}

c10::Device expected_device(const SessionOptions& options, const backends::BackendSpec& backend) {
  auto request = device_request(options, backend);
  request.share = true;  // which rank has which device is not known yet
  return choose_device(request, {});
}

std::unique_ptr<Session> Session::connect(const SessionOptions& options, const backends::BackendSpec& backend,
                                          const RankInfo& rank_info, c10::intrusive_ptr<c10d::Store> store,
                                          std::shared_ptr<node::ThreadExchange> threads) {
  const bool with_python = options.with_python;
  // As PyTorch does with a store that it has made.
  if (with_python && !options.store) store = c10::make_intrusive<c10d::PrefixStore>("default_pg", store);
  // The local numbers are then those of the launcher.
  auto hosts = with_python || options.enable_reconfigure
                   ? HostMap(std::vector<int>(static_cast<std::size_t>(rank_info.world_size)))
                   : read_host_map(*store, rank_info.rank, rank_info.world_size);
  const auto world = world_of(hosts, rank_info);
  const auto request = device_request(options, backend);
  const bool agrees = world.size > 1 && backend.name() != "fake" && !with_python && !options.joins_later();
  const auto selected = select_device(request, agrees, world, *store);
  const auto warning = cpu_warning(request, backend);
  if (world.rank == 0 && !warning.empty()) log(LogLevel::warning, warning);
  std::unique_ptr<Session> session(
      new Session({.store = store,
                   .store_of_run = store,
                   .threads = std::move(threads),
                   .env = options.env,
                   .master_host = rank_info.master_addr.empty() ? "127.0.0.1" : rank_info.master_addr,
                   .backend = backend,
                   .nccl = options.nccl,
                   .check_calls = checks_calls(options),
                   .with_python = with_python,
                   .enable_reconfigure = options.enable_reconfigure,
                   .serves_store = rank_info.rank == 0 && !options.store && !options.run_memory &&
                                   !is_served_by_agent(options.env),
                   .run_memory = options.run_memory,
                   .is_replacement = options.is_replacement,
                   .hosts = std::move(hosts),
                   .world = world,
                   .device = selected.device,
                   .share_device = selected.shared}));
  session->connect_default_group(options);
  if (options.run_memory) {
    if (!options.is_replacement) session->remember_backend();
    session->generations_.emplace(options.run_memory, session->config_.store_of_run, world.rank,
                                  options.is_replacement);
    if (options.run_memory->has_several_hosts())
      session->loss_watch_.emplace(options.run_memory, [&session = *session] { session.on_lost_host(); });
  }
  runtime::enter(*session, session->config_.threads ? runtime::Scope::thread : runtime::Scope::process);
  return session;
}

Session::~Session() {
  leaves_quietly_.emplace();
  loss_watch_.reset();
  runtime::leave(*this);
  if (group_ && std::uncaught_exceptions() <= uncaught_at_start_) {
    comm::state_of(*group_).announce_end();
    for (const auto& group : subgroups_) comm::state_of(group).announce_end();
    if (!config_.threads) wait_for_others_to_leave();
  }
  for (const auto& group : subgroups_) group.close();
  if (group_) group_->close();
}

void Session::connect_default_group(const SessionOptions& options) {
  const auto& world = config_.world;
  Members members{.ranks = std::vector<int>(static_cast<std::size_t>(world.size)), .own = world.rank};
  std::iota(members.ranks.begin(), members.ranks.end(), 0);
  const auto choice = backends::resolve_backend(config_.backend, topology(members.ranks));
  if (!choice.reason.empty() && world.rank == 0 && world.size > 1) {
    log(LogLevel::info,
        fmt::format("backend {} for {} ranks: {}", choice.spec.text(), world.size, choice.reason));
  }
  show_limits(options, world.rank);
  group_ = connect_group("default", choice.spec, members, config_.nccl,
                         {.name = options.group_name, .timeout = options.timeout});
  recipes_.emplace(&comm::state_of(*group_),
                   GroupRecipe{.key = "default", .backend = config_.backend, .nccl = config_.nccl});
}

ProcessGroup Session::connect_group(const std::string& key, const backends::BackendSpec& spec,
                                    const Members& members, const NcclOptions& nccl, ProcessGroupInfo info) {
  const PhaseScope phase(Phase::communication);
  backends::BackendRequest request;
  request.rank = members.own;
  request.size = static_cast<int>(members.ranks.size());
  request.timeout = info.timeout;
  request.group_name = info.name;
  request.master_host = config_.master_host;
  request.one_host = config_.hosts.all_on_one_host(members.ranks);
  request.hosts = config_.hosts.hosts_of(members.ranks);
  request.env = config_.env;
  request.threads = config_.threads;
  request.key = key;
  request.enable_reconfigure = config_.enable_reconfigure || config_.is_replacement;
  request.device = config_.device;
  request.nccl = nccl;
  backends::BackendHandle handle;
  if (config_.with_python) {
    const auto python_key = key == "default" ? "" : key;
    const auto for_cpu = store_of_python(config_.store, python_key, "cpu");
    agree_on_backend(*for_cpu, spec.name(), request.rank, request.size);
    request.store =
        backends::is_for_gpus(spec.name()) ? store_of_python(config_.store, python_key, "cuda") : for_cpu;
    request.python.group_name = python_key.empty() ? "0" : python_key;
    handle = splits_default_group(spec)
                 ? backends::BackendHandle{.backend = split_default_group(request.store, members.ranks, info),
                                           .traits = comm::state_of(*group_).info().traits}
                 : create_with_python(spec.name(), std::move(request));
  } else {
    request.store = c10::make_intrusive<c10d::PrefixStore>("group/" + key, config_.store);
    handle = backends::create_backend(spec, request);
    if (config_.is_replacement) handle = simulate(request, handle.membership);
  }
  info.traits = handle.traits;
  info.node_group = handle.node_group;
  info.membership = handle.membership;
  info.with_python = config_.with_python;
  info.check_calls = config_.check_calls && !handle.traits.compares_calls;
  return {handle.backend, std::move(info)};
}

backends::BackendHandle Session::simulate(const backends::BackendRequest& request,
                                          const std::shared_ptr<comm::Membership>& membership) {
  return {.backend = c10::make_intrusive<backends::FakeBackend>(request.rank, request.size),
          .traits = backends::FakeBackend::traits(),
          .membership = membership};
}

bool Session::splits_default_group(const backends::BackendSpec& spec) const {
  return config_.with_python && group_ && python_splits_default_group(config_.backend, spec, config_.env);
}

c10::intrusive_ptr<c10d::Backend> Session::split_default_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                               const std::vector<int>& ranks,
                                                               const ProcessGroupInfo& info) {
  const auto options = c10::make_intrusive<c10d::Backend::Options>("nccl", info.timeout);
  options->group_name = info.name;
  return comm::state_of(*group_).backend()->split(store, ranks, options);
}

// The groups of the members before are gone, and their keys must not meet those of the groups to come.
void Session::form(const ReconfigureOptions& options, Formation formation) {
  const QuietC10d quiet;
  const MutexLock lock(reconfiguring_);
  const auto recipe = recipes_.at(&comm::state_of(*group_));
  const auto before = *group_;
  const int before_size = before.size();
  group_ = before.reconfigure(options);
  const bool is_after_loss = formation == Formation::after_loss;
  if (is_after_loss) comm::replace(before, *group_);
  for (const auto& group : subgroups_) group.close();
  subgroups_.clear();
  recipes_ = {{&comm::state_of(*group_), recipe}};
  groups_made_ = 0;
  config_.enable_reconfigure = false;
  if (formed_store_) formed_store_->delete_own_keys();
  formed_store_ = c10::make_intrusive<backends::MemberStore>(fmt::format("formed/{}", options.uuid),
                                                             config_.store_of_run);
  config_.store = formed_store_;
  config_.hosts = HostMap(comm::state_of(*group_).required_membership()->hosts());
  config_.world = world_of(config_.hosts, {.rank = group_->rank(), .world_size = group_->size()});
  if (is_after_loss && group_->size() < before_size) {
    runtime::shrink_world(*this);
  } else {
    runtime::change_world(*this);
  }
  if (!config_.threads) share_cores();  // spawn_threads() has done it for its ranks
}

// Ranks on other hosts that wait for this one do not see that another rank is lost.
void Session::leave_before_meeting() {
  if (!memory().has_several_hosts()) return;
  const MutexLock lock(leaving_);
  const auto backend = comm::state_of(*group_).backend();
  if (auto* const former = dynamic_cast<comm::FromC10d*>(backend.get())) former->leave();
}

// Calls that wait for the lost ranks fail then, on all hosts that are left.
void Session::on_lost_host() {
  try {
    generations_->propose_after(generations_->current());
    const MutexLock lock(leaving_);
    const auto backend = backend_to_leave_.lock();
    if (auto* const former = dynamic_cast<comm::FromC10d*>(backend.get())) former->leave();
  } catch (const std::exception& error) {
    log(LogLevel::debug,
        first_line_of(error.what()));  // the store of the run is lost, which the launcher reports
  }
}

void Session::remember_backend() {
  const MutexLock lock(leaving_);
  backend_to_leave_ = c10::weak_intrusive_ptr<c10d::Backend>(comm::state_of(*group_).backend());
}

void Session::form_again() {
  generations_->propose_after(generations_->current());
  leave_before_meeting();
  for (int attempt = 1;; ++attempt) {
    const auto members = generations_->meet(group_->reconfigure_handle(), group_->timeout());
    try {
      form({.uuid = static_cast<std::int64_t>(members.generation), .handles = members.handles},
           Formation::after_loss);
    } catch (const RendezvousError& error) {
      // A rank was lost meanwhile; or the reason lasts.
      log(attempt < kUsualAttempts ? LogLevel::debug : LogLevel::warning, error.what());
      if (attempt == kMostAttempts) throw;
      generations_->propose_after(members.generation);
      continue;
    }
    config_.is_replacement = false;
    generations_->enter(members.generation);
    return remember_backend();
  }
}

std::vector<int> Session::hosts_of(const ProcessGroup& group) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < group.size(); ++rank) ranks.push_back(group.global_rank(rank));
  return config_.hosts.hosts_of(ranks);
}

backends::GroupTopology Session::topology(const std::vector<int>& ranks) const {
  const auto hosts = config_.hosts.hosts_of(ranks);
  const auto distinct = std::set(hosts.begin(), hosts.end()).size();
  return {.device = config_.device,
          .one_host = distinct == 1,
          .share_hosts = distinct > 1 && (distinct < hosts.size() || config_.run_memory),
          .share_device = config_.share_device,
          .env = config_.env};
}

void Session::synchronize() const {
  lockstep::synchronize(config_.device);
  throw_failure_of(*group_);
  std::ranges::for_each(subgroups_, throw_failure_of);
}

void Session::share_cores() {
  thread_share_.reset();
  thread_share_.emplace(config_.world, comm::state_of(*group_).node_group().get(), config_.env);
}

void Session::wait_for_others_to_leave() {
  if (config_.with_python) return;  // nor do Python ranks
  const PhaseScope phase(Phase::communication);
  auto& store = *config_.store;
  const auto& world = config_.world;
  try {
    if (config_.serves_store) config_.store_of_run->set(kServerLeftKey, "");
    store.add(kLeftKey, 1);
    if (world.rank != 0) return;
    const Deadline deadline(kLeaveLimit);
    while (store.add(kLeftKey, 0) < world.size && !deadline.expired()) std::this_thread::sleep_for(1ms);
  } catch (const std::exception&) {
    // Rank 0 has left, so no rank needs the store any more.
  }
}

}  // namespace lockstep::rendezvous
