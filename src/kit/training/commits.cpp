// SPDX-License-Identifier: BSD-3-Clause
#include "training/commits.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/host.h"
#include "base/throw_error.h"
#include "checkpoint/share.h"
#include "checkpoint/training_state_access.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "training/commit_parts.h"

namespace lockstep::training {
namespace {

using Access = checkpointing::TrainingStateAccess;
using checkpointing::CommitMemory;

constexpr std::int64_t kCommon = -1;  // the key of the common part; that of an own part is the rank
constexpr const char* kStates = "states";
constexpr const char* kBucketOrders = "bucket orders";
constexpr std::size_t kMessageSpare = 16384;
constexpr std::size_t kMessageUnit = 4096;
constexpr std::int64_t kBroadcastBytes = std::int64_t{64} << 20;

at::Tensor no_bytes() { return at::empty({0}, at::kByte); }

std::int64_t length(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }

std::size_t message_bytes_for(std::int64_t largest) {
  const auto bytes = static_cast<std::size_t>(largest) + kMessageSpare;
  return (bytes + kMessageUnit - 1) / kMessageUnit * kMessageUnit;
}

// The ranks whose copies `holder` keeps, ascending.
std::vector<int> wards_of(const std::vector<int>& neighbours, int holder) {
  std::vector<int> wards;
  for (int rank = 0; rank < static_cast<int>(neighbours.size()); ++rank)
    if (neighbours[static_cast<std::size_t>(rank)] == holder) wards.push_back(rank);
  return wards;
}

}  // namespace

Commits::Commits(TrainingState& state, const runtime::Run& run, runtime::ElasticRun& elastic)
    : state_(state),
      run_(run),
      elastic_(elastic),
      rank_(run.world().rank),
      memory_(elastic.memory().commits(rank_)),
      copies_(elastic.memory().commits(rank_), CommitMemory::Use::copies) {}

void Commits::begin() {
  if (elastic_.memory().has_several_hosts()) meet();
  write(0, Access::own_state_dict(state_));
  send(std::vector<bool>(neighbours_.size(), true));
  wait();
}

void Commits::write(std::int64_t number, const Dict& states) {
  const auto with_orders = [&](Dict own) {
    return Dict{{kStates, own}, {kBucketOrders, List(bucket_orders(state_))}};
  };
  if (!are_copied()) return memory_.write(number, {{.key = rank_, .state = with_orders(states)}});
  auto [own, common] = divided(state_, states);
  memory_.write(number,
                {{.key = kCommon, .state = std::move(common)},
                 {.key = rank_, .state = with_orders(std::move(own)), .least_bytes = message_bytes_}});
}

void Commits::load(std::int64_t number) {
  const auto own = memory_.read(number, rank_).as_dict();
  CommitParts parts{.own = own.at(kStates).as_dict(), .common = {}};
  const auto keys = memory_.keys(number);
  if (std::ranges::find(keys, kCommon) != keys.end()) parts.common = memory_.read(number, kCommon).as_dict();
  Access::load_own_state_dict(state_, joined(std::move(parts)));
  restore_bucket_orders(state_, own.at(kBucketOrders).as_items());
}

void Commits::add(const Dict& states) {
  write(last_ + 1, states);
  ++last_;
  send(std::vector<bool>(neighbours_.size(), true));
}

// A part that is too large is sent again by wait().
at::Tensor Commits::message() const {
  const auto own = memory_.bytes(last_, rank_);
  if (own.nbytes() > message_bytes_) return at::zeros({length(message_bytes_)}, at::kByte);
  return memory_.bytes(last_, rank_, message_bytes_);
}

void Commits::send(const std::vector<bool>& receives, bool aside) {
  if (!are_copied()) {
    all_have_last_ = group().barrier_async();
    return;
  }
  receives_ = receives;
  std::vector<at::Tensor> inputs, outputs;
  for (int rank = 0; rank < group().size(); ++rank) {
    inputs.push_back(no_bytes());
    outputs.push_back(no_bytes());
  }
  if (receives[static_cast<std::size_t>(rank_)]) {
    const auto wards = wards_of(neighbours_, rank_);
    const auto bytes = wards.size() * message_bytes_;
    const auto received = aside ? at::empty({length(bytes)}, at::kByte) : copies_.begin(last_, bytes);
    if (aside) aside_ = received;
    for (std::size_t i = 0; i < wards.size(); ++i) {
      outputs[static_cast<std::size_t>(wards[i])] =
          received.narrow(0, length(i * message_bytes_), length(message_bytes_));
    }
  }
  const auto neighbour = static_cast<std::size_t>(neighbours_[static_cast<std::size_t>(rank_)]);
  if (receives[neighbour]) inputs[neighbour] = message();
  const comm::CallSite site("copies of commits");
  largest_ = at::full({1}, memory_.bytes(last_, rank_).numel(), at::kLong);
  copied_ = message_bytes_ == 0 ? Work() : group().all_to_all_async(outputs, inputs);
  all_have_last_ = group().all_reduce_async(largest_, ReduceOp::MAX);
}

void Commits::wait() {
  copied_.wait();
  all_have_last_.wait();
  if (!are_copied() || receives_.empty()) return;
  while (std::cmp_greater(largest_.item<std::int64_t>(), message_bytes_)) {
    message_bytes_ = message_bytes_for(largest_.item<std::int64_t>());
    send(std::vector<bool>(receives_), aside_.defined());
    copied_.wait();
    all_have_last_.wait();
  }
  complete_copies();
}

// When they have come.
void Commits::complete_copies() {
  const auto received = std::exchange(aside_, {});
  const auto receives = std::exchange(receives_, {});
  if (receives.empty() || !receives[static_cast<std::size_t>(rank_)]) return;
  if (received.defined()) copies_.begin(last_, static_cast<std::size_t>(received.numel())).copy_(received);
  copies_.complete(last_);
}

// After a loss, when the calls of the former group have ended. The others may count on copies that have come.
void Commits::end_calls() {
  try {
    copied_.wait();
    complete_copies();
  } catch (const std::exception&) {
    // They have not come, and so no rank has overwritten the commit before.
  }
  copied_ = {};
  all_have_last_ = {};
  receives_.clear();
  aside_ = at::Tensor();
}

HeldCommits Commits::held() const {
  HeldCommits held{.host = host_identity(),
                   .launcher = elastic_.memory().state().first_rank,
                   .message_bytes = length(message_bytes_)};
  for (const auto number : memory_.numbers()) {
    const auto keys = memory_.keys(number);
    const bool has_common = std::ranges::find(keys, kCommon) != keys.end();
    held.own.push_back(
        {.number = number, .common_bytes = has_common ? memory_.bytes(number, kCommon).numel() : 0});
  }
  for (const auto number : copies_.numbers()) {
    for (const auto rank : copies_.keys(number))
      held.copies.push_back(
          {.number = number, .rank = static_cast<int>(rank), .bytes = copies_.bytes(number, rank).numel()});
  }
  return held;
}

// What all ranks have, and so their neighbours.
std::vector<HeldCommits> Commits::meet() {
  const comm::CallSite site("numbers of commits");
  std::vector<HeldCommits> ranks;
  for (const auto& bytes : group().all_gather_object(packed(held()))) ranks.push_back(unpacked(bytes));
  // Other backends do not make their asynchronous calls one after the other.
  const bool is_in_order = group().backend_name() == "hierarchical";
  neighbours_ = is_in_order ? neighbours_of(ranks) : std::vector<int>();
  for (const auto& rank : ranks)
    message_bytes_ = std::max(message_bytes_, static_cast<std::size_t>(rank.message_bytes));
  return ranks;
}

std::vector<int> Commits::restore() {
  end_calls();
  const auto ranks = meet();
  const auto plan = plan_return(ranks);
  if (!plan) refuse(ranks);
  if (!plan->transfers.empty()) fetch(*plan, ranks);
  last_ = plan->number;
  memory_.forget_after(last_);
  copies_.forget_after(last_);
  load(last_);
  if (are_copied()) send_missing_copies(ranks);
  std::vector<int> fetched;
  for (const auto& transfer : plan->transfers) fetched.push_back(transfer.to);
  return fetched;
}

void Commits::refuse(const std::vector<HeldCommits>& ranks) const {
  std::vector<int> without;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].own.empty()) without.push_back(static_cast<int>(rank));
  if (without.empty()) {
    const auto own = memory_.numbers();
    throw_error<Error>(
        comm::reporter_of(group()), comm::about(group()),
        "elastic::run: there is no commit that all ranks have, and this rank has [{}]; do all ranks "
        "call commit() equally often?",
        fmt::join(own, ", "));
  }
  elastic_.set_phase(RunPhase::starting);  // the launchers start all ranks again
  throw_error<Error>(
      comm::reporter_of(group()), comm::about(group(), without),
      "elastic::run: the commits of rank{} {} are lost, and so are their copies; all ranks start again, from the "
      "last checkpoint that the program loads",
      without.size() == 1 ? "" : "s", fmt::join(without, ", "));
}

// That no rank has got other gradients than the others, as by a communication hook.
void Commits::require_common_parts_alike(std::int64_t number) const {
  std::string digest;
  if (memory_.has(number)) {
    const auto common = memory_.bytes(number, kCommon);
    digest = checkpointing::digest_of(
        {static_cast<const char*>(common.const_data_ptr()), static_cast<std::size_t>(common.numel())});
  }
  const comm::CallSite site("digests of commits");
  const auto digests = group().all_gather_object(digest);
  int first = -1;
  for (int rank = 0; rank < group().size(); ++rank) {
    const auto& other = digests[static_cast<std::size_t>(rank)];
    if (other.empty()) continue;
    if (first < 0) first = rank;
    if (other == digests[static_cast<std::size_t>(first)]) continue;
    elastic_.set_phase(RunPhase::starting);
    throw_error<Error>(
        comm::reporter_of(group()), comm::about(group(), {rank}),
        "elastic::run: a rank without commits cannot get the parameters of a DistributedDataParallel or the states of "
        "their optimizer from another: those of ranks {} and {} differ in commit {}. Does a communication hook or the "
        "program give the ranks other gradients? All ranks start again",
        first, rank, number);
  }
}

void Commits::fetch(const ReturnPlan& plan, const std::vector<HeldCommits>& ranks) {
  require_common_parts_alike(plan.number);
  const auto common_bytes = ranks[static_cast<std::size_t>(plan.source)].find_own(plan.number)->common_bytes;
  at::Tensor own, common;
  if (memory_.has(plan.number)) {
    common = memory_.bytes(plan.number, kCommon);
  } else {
    const auto transfer = std::ranges::find(plan.transfers, rank_, &ReturnPlan::Transfer::to);
    const auto bytes = ranks[static_cast<std::size_t>(transfer->from)].find_copy(plan.number, rank_)->bytes;
    const auto both = memory_.begin(plan.number, static_cast<std::size_t>(common_bytes + bytes));
    common = both.narrow(0, 0, common_bytes);
    own = both.narrow(0, common_bytes, bytes);
  }
  const comm::CallSite site("commits of a rank that has none");
  // The others have this part. They take it, in parts, because a broadcast crosses to each host once.
  const bool takes_part = own.defined() || rank_ == plan.source;
  const auto aside =
      takes_part ? at::Tensor() : at::empty({std::min(common_bytes, kBroadcastBytes)}, at::kByte);
  for (std::int64_t done = 0; done < common_bytes; done += kBroadcastBytes) {
    const auto bytes = std::min(kBroadcastBytes, common_bytes - done);
    group().broadcast(takes_part ? common.narrow(0, done, bytes) : aside.narrow(0, 0, bytes), plan.source);
  }
  for (const auto& [from, to] : plan.transfers) {
    if (from == rank_) group().send(copies_.bytes(plan.number, to), to);
    if (to == rank_) group().recv(own, from);
  }
  if (own.defined()) memory_.complete(plan.number);
}

// The commit that all have returned to. They go on when its copies have come: the next loss may be that of a host whose
// copies were on the lost one. Copies of other ranks, which a neighbour has, stay until all have come: another loss meanwhile
// may be that of their ranks.
void Commits::send_missing_copies(const std::vector<HeldCommits>& ranks) {
  std::vector<bool> receives(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto holder = static_cast<std::size_t>(neighbours_[rank]);
    if (ranks[holder].find_copy(last_, static_cast<int>(rank)) == nullptr) receives[holder] = true;
  }
  if (std::ranges::find(receives, true) == receives.end()) return;
  send(receives, true);
  wait();
}

}  // namespace lockstep::training
