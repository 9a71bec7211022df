// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <lockstep/runtime/default_group.h>

#include "base/caller_place.h"
#include "base/launched_rank.h"
#include "base/process_state.h"
#include "base/rank_progress.h"
#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/memory_overlap.h"
#include "intercept/thread_defaults.h"
#include "runtime/run.h"

namespace lockstep {
namespace runtime {
namespace {

// With World in base, the only globals: the run of the process, and of a thread rank.
std::atomic<Run*>& process_run() {
  static std::atomic<Run*> run{nullptr};
  return run;
}

Run*& thread_run() {
  thread_local Run* run = nullptr;
  return run;
}

}  // namespace

Run* current_run() { return thread_run() != nullptr ? thread_run() : process_run().load(); }

Run& require_run(const char* caller) {
  if (auto* run = current_run()) return *run;
  require_init(caller);
  throw_error<ArgumentError>(
      "{}: there is no default process group; call lockstep::init() first and keep the "
      "context that it returns, or call lockstep::init_process_group()",
      caller);
}

void enter(Run& run, Scope scope) {
  const auto& world = run.world();
  if (scope == Scope::thread) {
    thread_run() = &run;
    set_thread_world(world);
    publish_progress(world.rank, world.size, true);
    return;
  }
  Run* none = nullptr;
  if (!process_run().compare_exchange_strong(none, &run)) {
    throw ArgumentError(
        "lockstep::init: this process is in a run already; end the first context before a second");
  }
  set_current_world(world);
  publish_progress(world.rank, world.size, false);
}

void change_world(const Run& run) {
  const auto& world = run.world();
  const bool is_thread = thread_run() == &run;
  is_thread ? set_thread_world(world) : set_current_world(world);
  publish_progress(world.rank, world.size, is_thread);
}

void leave(Run& run) noexcept {
  if (thread_run() == &run) {
    thread_run() = nullptr;
    set_thread_world(std::nullopt);
    end_thread_progress();
  }
  Run* self = &run;
  if (process_run().compare_exchange_strong(self, nullptr)) set_current_world({});
}

std::optional<ProcessGroup> group_or_default(const std::optional<ProcessGroup>& given, const char* what) {
  if (given) return given;
  if (const auto* const run = current_run()) return run->group();
  require_init(what);
  return std::nullopt;
}

ProcessGroup required_group(const std::optional<ProcessGroup>& given, const char* what) {
  return given ? *given : require_run(what).group();
}

void require_made_in_run(const std::optional<ProcessGroup>& group, const char* what) {
  if (!group) require_same_world(what, {});
}

}  // namespace runtime

bool is_initialized() { return runtime::current_run() != nullptr; }
ProcessGroup default_group(std::source_location where) {
  const CallerPlace place(where);
  return runtime::require_run("lockstep::default_group").group();
}
int get_rank(std::source_location where) {
  const CallerPlace place(where);
  return shared_world("get_rank()").rank;
}
int get_world_size(std::source_location where) {
  const CallerPlace place(where);
  return shared_world("get_world_size()").size;
}
int get_local_rank(std::source_location where) {
  const CallerPlace place(where);
  return shared_world("get_local_rank()").local_rank;
}
bool is_main_process(std::source_location where) {
  const CallerPlace place(where);
  return shared_world("is_main_process()").rank == 0;
}

namespace {

void seed_generator(at::Generator generator, std::uint64_t seed) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace

at::Generator default_generator() {
  if (auto own = intercept::ThreadGenerator::current()) return *own;
  return at::detail::getDefaultCPUGenerator();
}

void manual_seed(std::uint64_t seed) {
  const auto own = intercept::ThreadGenerator::current();
  if (!own) {
    at::manual_seed(seed);
    return;
  }
  seed_generator(*own, seed);
  const auto* const run = runtime::current_run();
  if (run == nullptr || run->device().is_cpu()) return;
  seed_generator(at::globalContext().defaultGenerator(run->device()), seed);
}

namespace {

ProcessGroup group_of(const P2POp& message) {
  return runtime::required_group(message.group, "batch_isend_irecv");
}

comm::Call call_of(const P2POp& message, std::source_location where) {
  const bool sends = message.op == P2POp::isend;
  const at::TensorList tensor = message.tensor;
  return {.kind = sends ? CallKind::send : CallKind::recv,
          .inputs = sends ? tensor : at::TensorList{},
          .outputs = sends ? at::TensorList{} : tensor,
          .peer = message.peer,
          .tag = message.tag,
          .where = where};
}

// The messages move at one time, in any order.
void check_memory(const std::vector<P2POp>& messages) {
  std::vector<at::Tensor> sent, received;
  std::vector<std::size_t> sends, receives;  // their places in the list
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool is_send = messages[i].op == P2POp::isend;
    (is_send ? sent : received).push_back(messages[i].tensor);
    (is_send ? sends : receives).push_back(i);
  }
  const auto overlap = comm::find_overlap(received, sent, [](std::size_t, std::size_t) { return false; });
  if (!overlap) return;
  throw_error<ArgumentError>(
      "batch_isend_irecv: the tensors of messages {} and {} share memory, and message {} receives; each "
      "receive needs memory of its own",
      receives[overlap->output], (overlap->is_input ? sends : receives)[overlap->other],
      receives[overlap->output]);
}

// The other ranks wait for all messages, so none starts before all are right.
void check(const std::vector<P2POp>& messages, const ProcessGroup& group, std::source_location where) {
  const auto& state = comm::state_of(group);
  for (const auto& message : messages) {
    if (&comm::state_of(group_of(message)) != &state) {
      throw_error<ArgumentError>(
          "batch_isend_irecv: messages in group {} and in group {}; make a batch for each group",
          group.name(), group_of(message).name());
    }
    state.rules().check(call_of(message, where));
    if (message.tensor.is_cuda() && group.backend_name().find("nccl") != std::string::npos) {
      throw_error<ArgumentError>(
          "batch_isend_irecv: a tensor on {} over {}: NCCL's messages block each other; call send_async() "
          "and recv_async() in an order in which all ranks can proceed if each call waits for its end, or "
          "use all_to_all()",
          message.tensor.device().str(), group.backend_name());
    }
  }
  check_memory(messages);
}

}  // namespace

std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& p2p_op_list, std::source_location where) {
  const CallerPlace place(where);
  if (p2p_op_list.empty()) throw_error<ArgumentError>("batch_isend_irecv: the list has no messages");
  const auto group = group_of(p2p_op_list.front());
  check(p2p_op_list, group, where);
  std::vector<Work> works;
  for (const auto& message : p2p_op_list) {
    works.push_back(message.op == P2POp::isend
                        ? group.send_async(message.tensor, message.peer, message.tag, where)
                        : group.recv_async(message.tensor, message.peer, message.tag, where));
  }
  return works;
}

}  // namespace lockstep
