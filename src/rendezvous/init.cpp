// SPDX-License-Identifier: BSD-3-Clause
#include <thread>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/backends/registry.h>
#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/device/keep_freed_memory.h>
#include <lockstep/rendezvous/init.h>

#include "rendezvous/arrival.h"
#include "rendezvous/broken_pipes.h"
#include "rendezvous/init_method.h"
#include "rendezvous/meeting_file.h"
#include "rendezvous/placement.h"
#include "rendezvous/session.h"
#include "rendezvous/tcp.h"
#include "rendezvous/variables.h"

namespace lockstep {
namespace rendezvous {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

struct Plan {
  Placement placement;
  InitMethod method;
};

void check_options(const InitOptions& options, const InitMethod& method) {
  if (options.timeout.count() <= 0) {
    throw ArgumentError(
        fmt::format("InitOptions::timeout is {} ms; it must be positive", options.timeout.count()));
  }
  if (options.store && method.kind != InitMethod::Kind::none) {
    throw ArgumentError("InitOptions: give a store or an init_method, not both");
  }
  if (options.rank.has_value() != options.world_size.has_value() && method.kind == InitMethod::Kind::none) {
    throw ArgumentError(fmt::format("InitOptions: {} is given but {} is not; both or neither are needed",
                                    options.rank ? "rank" : "world_size",
                                    options.rank ? "world_size" : "rank"));
  }
  if (options.store && !options.rank) {
    throw ArgumentError("InitOptions: a store needs rank and world_size beside it");
  }
}

// An explicit number wins over the query, the query over the environment.
int pick(const std::optional<int>& option, const std::optional<int>& query, const Env& env,
         const char* option_name, const char* variable) {
  if (option) return *option;
  if (query) return *query;
  if (env.has(variable)) return Variables(env, "the environment", {variable}).number(variable);
  throw RendezvousError(
      fmt::format("init_method needs InitOptions::{0}, \"?{0}=\" in the method, or {1} in the "
                  "environment; none is there",
                  option_name, variable));
}

Placement explicit_placement(const InitOptions& options, const InitMethod& method) {
  const Variables numbers(options.env, "the environment", {});
  return {.rank = pick(options.rank, method.rank, options.env, "rank", "RANK"),
          .world_size = pick(options.world_size, method.world_size, options.env, "world_size", "WORLD_SIZE"),
          .local_rank = numbers.optional_number("LOCAL_RANK"),
          .local_world_size = numbers.optional_number("LOCAL_WORLD_SIZE"),
          .master_addr = method.host,
          .master_port = method.port,
          .source = "InitOptions"};
}

// Rank and size from the options or the query, the way to rank 0 from the environment.
Placement numbered_placement(const InitOptions& options, const InitMethod& method) {
  const Variables master(options.env, "the launcher's environment", {"MASTER_ADDR", "MASTER_PORT"},
                         {"RANK", "WORLD_SIZE"});
  Placement placement = explicit_placement(options, method);
  if (!options.store && placement.world_size > 1) master.require_all();
  placement.master_addr = options.env.get("MASTER_ADDR").value_or("");
  if (master.optional_number("MASTER_PORT")) {
    placement.master_port = checked_port(master.number("MASTER_PORT"), "MASTER_PORT");
  }
  return placement;
}

Placement place(const InitOptions& options, const InitMethod& method) {
  using Kind = InitMethod::Kind;
  if (method.kind == Kind::tcp || method.kind == Kind::file) return explicit_placement(options, method);
  if (options.rank || options.world_size || method.rank || method.world_size) {
    return numbered_placement(options, method);
  }
  if (method.kind == Kind::env) {
    if (auto found = from_launcher(options.env)) return *found;
    throw RendezvousError(
        "init_method env:// needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the "
        "environment; none is there. `lockstep run` sets them for you");
  }
  if (auto found = from_environment(options.env)) return *found;
  log(LogLevel::info,
      "not distributed: one process (start it with `lockstep run --nproc-per-node N` for more)");
  return {.local_rank = 0, .local_world_size = 1, .source = "no launcher"};
}

// A run that has just ended is served until its last rank has left, maybe on the port of the next one.
bool has_ended(c10d::Store& store) {
  try {
    return store.check({kLeftKey});
  } catch (const std::exception&) {
    return true;  // its rank 0 left meanwhile
  }
}

StorePtr join_living_store(const Endpoint& server, const Placement& place, const Deadline& deadline) {
  while (true) {
    const auto store = join_store(server, place.rank, place.world_size, deadline);
    if (!has_ended(*store)) return store;
    if (deadline.expired()) {
      throw RendezvousError(fmt::format(
          "rank {} of {}: rank 0 has not arrived: at {}:{} an earlier run is still ending after {} ms",
          place.rank, place.world_size, server.host, server.port, deadline.timeout().count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

StorePtr store_over_tcp(const Placement& place, const Deadline& deadline) {
  if (place.rank == 0) {
    return serve_store(listen_on(place.master_port, place.master_addr), place.master_addr, place.world_size,
                       deadline);
  }
  return join_living_store({place.master_addr, place.master_port}, place, deadline);
}

StorePtr store_by_file(Placement& place, const std::string& path, const Deadline& deadline) {
  MeetingFile meeting(path, place.rank, place.world_size);
  if (place.rank == 0) {
    place.master_addr = "127.0.0.1";
    auto listener = listen_on(0, place.master_addr);
    place.master_port = listener.port;
    auto store = serve_store(std::move(listener), place.master_addr, place.world_size, deadline);
    meeting.announce(place.master_port, deadline);
    await_all(*store, place.rank, place.world_size, deadline);
    return store;
  }
  const Endpoint server = meeting.find(deadline);
  place.master_addr = server.host;
  place.master_port = server.port;
  return join_store(server, place.rank, place.world_size, deadline);
}

// A store may serve several runs in turn; what one of them left there must not be taken for the next one's.
// Nobody can join a run before all have joined the one before, so counting joins counts runs.
StorePtr own_part_of(const StorePtr& store, const std::string& group_name, int world_size) {
  const std::string prefix = "lockstep/" + group_name;
  const auto run = (store->add(prefix + "/joins", 1) - 1) / world_size;
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}/{}", prefix, run), store);
}

StorePtr meet(Placement& place, const InitMethod& method, const InitOptions& options,
              const Deadline& deadline) {
  if (options.store) return own_part_of(options.store, options.group_name, place.world_size);
  if (place.world_size == 1 && place.master_addr.empty()) return c10::make_intrusive<c10d::HashStore>();
  if (method.kind == InitMethod::Kind::file) return store_by_file(place, method.path, deadline);
  return store_over_tcp(place, deadline);
}

Session& living_session(const char* caller) {
  if (auto* session = current_session()) return *session;
  throw ArgumentError(
      fmt::format("{}: there is no default process group; call lockstep::init() first and keep the "
                  "context that it returns",
                  caller));
}

// All ranks have arrived, but any of them may still fail, and rank 0 takes the store along.
std::unique_ptr<Session> open_session(const InitOptions& options, const Placement& placement,
                                      const StorePtr& store) {
  try {
    return std::make_unique<Session>(options, placement, store);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw RendezvousError(fmt::format(
        "rank {} of {}: rank 0 gave up or died while the ranks were connecting ({}). Look for its error",
        placement.rank, placement.world_size, text.substr(0, text.find('\n'))));
  }
}

// With the fake backend this process plays one rank of a run in which nobody else is.
std::unique_ptr<Session> join_nobody(const InitOptions& options, const InitMethod& method) {
  auto own = options;
  if (own.rank && method.kind == InitMethod::Kind::none) own.store = c10::make_intrusive<c10d::HashStore>();
  const Placement placement = place(own, method);
  check(placement);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  pretend_all(*store, placement.world_size);
  return open_session(own, placement, store);
}

std::unique_ptr<Session> join(const InitOptions& options) {
  if (current_session() != nullptr) {
    throw ArgumentError(
        "lockstep::init: this process is in a run already; end the first context before a second");
  }
  const InitMethod method = parse_init_method(options.init_method);
  check_options(options, method);
  // Before the others are kept waiting: a backend that cannot be had is known at once.
  const auto device = expected_device(options);
  if (options.keep_freed_memory && device.is_cpu()) keep_freed_memory();
  const auto backend = backends::resolve_backend(options.backend, {.device = device}).name;
  backends::check_environment(backend, options.env);
  if (backend == "fake") return join_nobody(options, method);
  Placement placement = place(options, method);
  check(placement);
  const Deadline deadline(options.timeout);
  auto ignored = std::make_unique<IgnoredBrokenPipes>();
  const StorePtr store = meet(placement, method, options, deadline);
  await_all(*store, placement.rank, placement.world_size, deadline);
  auto session = open_session(options, placement, store);
  session->keep(std::move(ignored));
  return session;
}

}  // namespace
}  // namespace rendezvous

Context init(const InitOptions& options) { return Context(rendezvous::join(options)); }

Context::Context(std::unique_ptr<rendezvous::Session> session) : session_(std::move(session)) {}
Context::~Context() = default;
Context::Context(Context&&) noexcept = default;

int Context::rank() const { return session_->world().rank; }
int Context::world_size() const { return session_->world().size; }
int Context::local_rank() const { return session_->world().local_rank; }
int Context::local_world_size() const { return session_->world().local_size; }
c10::Device Context::device() const { return session_->device(); }
const ProcessGroup& Context::group() const { return session_->group(); }
void Context::synchronize() const { session_->synchronize(); }
void Context::barrier(std::source_location where) const { group().barrier(where); }

std::optional<ProcessGroup> Context::new_group(const std::vector<int>& ranks,
                                               const GroupOptions& options) const {
  return session_->new_group(ranks, options);
}

void Context::announce_success() const { group().broadcast_object("", 0); }

void Context::announce_failure(const std::string& reason) const noexcept {
  try {
    group().broadcast_object(reason.empty() ? "no reason given" : reason, 0);
  } catch (const std::exception& error) {
    log(LogLevel::error,
        fmt::format("the other ranks could not be told that rank 0 failed: {}", error.what()));
  }
}

void Context::await_main() const {
  const std::string failure = group().broadcast_object("", 0);
  if (!failure.empty()) {
    throw Error(fmt::format("rank {}: main_process_first: rank 0 failed: {}", rank(), failure));
  }
}

bool is_initialized() { return rendezvous::current_session() != nullptr; }
ProcessGroup default_group() { return rendezvous::living_session("lockstep::default_group").group(); }
int get_rank() { return current_world().rank; }
int get_world_size() { return current_world().size; }
int get_local_rank() { return current_world().local_rank; }
bool is_main() { return get_rank() == 0; }
void barrier(std::source_location where) { default_group().barrier(where); }
std::optional<ProcessGroup> new_group(const std::vector<int>& ranks, const GroupOptions& options) {
  return rendezvous::living_session("lockstep::new_group").new_group(ranks, options);
}

}  // namespace lockstep
