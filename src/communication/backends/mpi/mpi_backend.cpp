// SPDX-License-Identifier: BSD-3-Clause
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>
#include <lockstep/base/mutex.h>

#include "backends/factories.h"
#include "backends/mpi/group.h"
#include "backends/shm/call_request.h"
#include "backends/shm/shm_backend.h"
#include "base/deadline.h"
#include "base/throw_error.h"
#include "comm/emulated_reductions.h"
#include "comm/from_c10d.h"
#include "comm/profiler_event.h"
#include "comm/unendable_call.h"

namespace lockstep::backends {
namespace {

using comm::Call;
using comm::CallStage;
using comm::OperationPtr;
using comm::Report;

constexpr std::chrono::milliseconds kEndLimit{500};

mpi::Message message_of(const Call& call) {
  const bool is_send = call.kind == CallKind::send;
  const auto& tensor = is_send ? call.inputs.front() : call.outputs.front();
  return {.is_send = is_send,
          .peer = call.peer == comm::kAnyRank ? mpi::kAnyPeer : call.peer,
          .tag = call.tag,
          .data = static_cast<std::byte*>(tensor.data_ptr()),
          .bytes = tensor.nbytes()};
}

// MPI has no average, so the sum is divided afterwards.
void fill_request(shm::Request& request, const Call& call, int size) {
  shm::fill(request, call, size);
  if (request.reduction == shm::Reduction::average) request.reduction = shm::Reduction::sum;
}

bool divides(const Call& call, int rank) {
  return comm::has_operation(call.kind) && call.op == ReduceOp::AVG &&
         (call.kind != CallKind::reduce || call.root == rank);
}

class MpiOperation final : public mpi::Task, public comm::Operation {
 public:
  MpiOperation(const Call& call, std::shared_ptr<MpiGroup> group, int rank, int size,
               std::chrono::milliseconds timeout)
      : group_(std::move(group)),
        size_(size),
        timeout_(timeout),
        tensors_(comm::tensors_of(call)),
        event_("mpi", call) {
    if (divides(call, rank)) sum_ = call.outputs.front();
  }

  void wait(std::chrono::milliseconds timeout) override {
    try {
      group_->guard([&] { group_->wait(*this, timeout == kNoTimeout ? timeout_ : timeout); });
    } catch (...) {
      group_->engine.spoil();
      throw;
    }
    const MutexLock lock(mutex_);
    if (!sum_.defined()) return;
    comm::divide(sum_, size_);
    sum_.reset();  // after a failure, the next wait fails, too
  }
  bool is_completed() override { return group_->engine.test(*this); }
  int source_rank() const override { return source(); }

 private:
  void on_end() override { event_.end(); }

  std::shared_ptr<MpiGroup> group_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::vector<at::Tensor> tensors_;
  comm::ProfilerEvent event_;
  Mutex mutex_;
  at::Tensor sum_ LOCKSTEP_GUARDED_BY(mutex_);  // to be divided
};

// Collectives and messages over MPI. Threads: any, as long as all ranks make the same calls in the same
// order.
class MpiBackend final : public comm::FromC10d {
 public:
  MpiBackend(int rank, int size, std::shared_ptr<MpiGroup> group, std::chrono::milliseconds timeout);

  // Frees the communicator, unless an exception ends the group, calls are unfinished, or a call has failed.
  // In the first two cases the other ranks' calls end with PeerLost, if MPI survives lost ranks.
  ~MpiBackend() override;

  const std::string getBackendName() const override { return "mpi"; }
  void abort() override;

  comm::OperationPtr start(const comm::Call& call, comm::Report report) override;
  void break_off() noexcept override { group_->revoke(); }

  static BackendTraits traits();

 private:
  void check_tag(const comm::Call& call) const;
  void run(const comm::Call& call);
  comm::OperationPtr begin(const comm::Call& call);

  std::shared_ptr<MpiGroup> group_;
  std::uint32_t monitored_barriers_ = 0;  // that this rank has called
  Mutex mutex_;
  std::list<std::weak_ptr<mpi::Task>> under_way_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

MpiBackend::MpiBackend(int rank, int size, std::shared_ptr<MpiGroup> group, std::chrono::milliseconds timeout)
    : FromC10d(rank, size, "mpi", traits(), timeout), group_(std::move(group)) {}

MpiBackend::~MpiBackend() {
  if (group_->engine.has_ended()) return;
  bool breaks_off = std::uncaught_exceptions() > 0;
  for (const auto& weak : under_way_) {
    const auto task = weak.lock();
    breaks_off = breaks_off || (task && !task->is_done());
  }
  if (breaks_off) group_->revoke();
  const bool is_over = !breaks_off && !group_->engine.is_spoiled();
  if (!is_over) group_->engine.spoil();
  try {
    if (is_over) group_->engine.run([&] { group_->ranks->free(); });
  } catch (const std::exception& error) {
    log(LogLevel::warning, error.what());
  }
}

// Calls are described as those of shm, so it takes the same tensors.
BackendTraits MpiBackend::traits() {
  auto traits = ShmBackend::traits();
  traits.compares_calls = false;
  return traits;
}

// Calls that every rank has made end soon, whether or not they are waited for.
void MpiBackend::abort() {
  const MutexLock lock(mutex_);
  const bool ends_now = std::uncaught_exceptions() > 0 || comm::is_terminated();
  const Deadline deadline(ends_now ? std::chrono::milliseconds(0) : kEndLimit);
  bool all_ended = true;
  for (const auto& weak : std::exchange(under_way_, {})) {
    const auto task = weak.lock();
    while (task && !deadline.expired() && !group_->engine.test(*task)) std::this_thread::yield();
    if (!task) continue;
    all_ended = all_ended && task->is_done();
    group_->engine.abandon(task);
  }
  if (!all_ended) group_->revoke();
}

OperationPtr MpiBackend::start(const Call& call, Report report) {
  if (call.monitored) {
    report(CallStage::may_block);
    group_->guard(
        [&] { monitored_barrier(*group_, getRank(), getSize(), ++monitored_barriers_, limit_of(call)); });
    return nullptr;
  }
  if (comm::is_message(call.kind)) check_tag(call);
  const bool has_source = call.kind == CallKind::recv && call.peer == comm::kAnyRank;
  const bool blocks = call.blocking && !has_source && !group_->can_end_calls;
  if (!blocks || !group_->engine.takes_all_threads()) return begin(call);
  report(CallStage::cannot_end);
  run(call);
  return nullptr;
}

void MpiBackend::check_tag(const Call& call) const {
  const int largest = group_->ranks->largest_tag();
  if (call.tag > largest) {
    throw_error<ArgumentError>("tag is {}; the largest of this MPI is {}", call.tag, largest);
  }
}

void MpiBackend::run(const Call& call) {
  const comm::ProfilerEvent event("mpi", call);
  if (comm::is_message(call.kind)) return group_->ranks->run(message_of(call));
  thread_local shm::Request request;
  fill_request(request, call, getSize());
  group_->ranks->run(request);
  if (divides(call, getRank())) comm::divide(call.outputs.front(), getSize());
}

OperationPtr MpiBackend::begin(const Call& call) {
  auto operation = std::make_shared<MpiOperation>(call, group_, getRank(), getSize(), limit_of(call));
  const auto start = [&] {
    if (comm::is_message(call.kind)) return group_->ranks->start(message_of(call));
    shm::Request request;
    fill_request(request, call, getSize());
    return group_->ranks->start(request);
  };
  group_->guard([&] { group_->engine.start(operation, start); });
  const MutexLock lock(mutex_);
  std::erase_if(under_way_, [](const auto& weak) {
    const auto task = weak.lock();
    return !task || task->is_done();
  });
  under_way_.emplace_back(operation);
  return operation;
}

namespace {

// Tags of groups that are made at the same time; MPI guarantees these.
constexpr std::size_t kGroupTags = 32768;

[[noreturn]] void refuse(const BackendRequest& request, const std::string& reason) {
  throw_error<RendezvousError>(request.reporter(), request.about(), "backend mpi: group {}: {}",
                               request.group_name, reason);
}

constexpr const char* kStart = "start all ranks with one mpirun, mpiexec or srun --mpi";

std::string world_rank_key(int rank) { return fmt::format("world_rank/{}", rank); }

constexpr std::string_view kKnowsOfLoss = " lost";

struct Members {
  std::vector<int> world_ranks = {};  // [rank in the group]: in MPI's world
  bool after_loss = false;            // one of them knows of a lost rank
};

Members meet(const BackendRequest& request, mpi::Engine& engine) {
  auto& store = *request.store;
  const auto& library = engine.library();
  bool knows_of_loss = false;
  engine.run([&] { knows_of_loss = library.has_lost_ranks(); });
  store.set(world_rank_key(request.rank),
            fmt::format("{}{}", library.world_rank(), knows_of_loss ? kKnowsOfLoss : ""));
  std::vector<std::string> keys;
  for (int rank = 0; rank < request.size; ++rank) keys.push_back(world_rank_key(rank));
  store.wait(keys, request.timeout);
  Members members;
  auto& ranks = members.world_ranks;
  for (const auto& value : store.multiGet(keys)) {
    const std::string text(value.begin(), value.end());
    ranks.push_back(std::stoi(text));
    members.after_loss = members.after_loss || text.ends_with(kKnowsOfLoss);
  }
  const std::set<int> distinct(ranks.begin(), ranks.end());
  if (static_cast<int>(distinct.size()) != request.size || *distinct.rbegin() >= library.world_size()) {
    refuse(request, fmt::format("its {} ranks are not in one MPI world, which has {} here; {}", request.size,
                                library.world_size(), kStart));
  }
  return members;
}

std::shared_ptr<MpiGroup> connect(const BackendRequest& request) {
  auto& engine = mpi::Engine::get(request.env);
  const auto members = meet(request, engine);
  const auto tag = static_cast<int>(std::hash<std::string>{}(request.key) % kGroupTags);
  auto group = std::make_shared<MpiGroup>(
      MpiGroup{.engine = engine,
               .ranks = {},
               .node = {},
               .can_end_calls = request.mpi.can_end_calls || engine.library().survives_lost_ranks()});
  engine.run([&] { group->ranks = engine.library().create(members.world_ranks, tag, members.after_loss); });
  if (request.one_host && request.size > 1) group->node = join_node_group(request, {});
  comm::watch_termination();
  return group;
}

}  // namespace

void check_mpi_launcher(const Env& env, const std::string& reason) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (env.has(name)) return;
  }
  throw_error<RendezvousError>("{}: no MPI launcher started this process; {}", reason, kStart);
}

BackendHandle create_mpi(const BackendRequest& request) {
  if (request.threads) refuse(request, "its ranks are threads; MPI's ranks are processes");
  check_mpi_launcher(request.env);
  try {
    auto group = connect(request);
    auto node = group->node;
    return {.backend = c10::make_intrusive<MpiBackend>(request.rank, request.size, std::move(group),
                                                       request.timeout),
            .traits = MpiBackend::traits(),
            .node_group = std::move(node)};
  } catch (const RendezvousError&) {
    throw;
  } catch (const Error& error) {
    refuse(request, error.what());
  }
}

}  // namespace lockstep::backends
