// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <thread>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/log.h>
#include <lockstep/device/device.h>
#include <lockstep/rendezvous/init.h>

#include "backends/registry.h"
#include "base/caller_place.h"
#include "base/deadline.h"
#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "base/time_limits.h"
#include "comm/recorder_signal.h"
#include "rendezvous/file_rendezvous.h"
#include "rendezvous/python_group.h"
#include "rendezvous/rank_info.h"
#include "rendezvous/remote_store.h"
#include "rendezvous/run_store.h"
#include "rendezvous/session.h"
#include "rendezvous/spare.h"
#include "rendezvous/store_barrier.h"
#include "rendezvous/tcp.h"
#include "runtime/run.h"

namespace lockstep {
namespace rendezvous {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

void check_options(const SessionOptions& options, const InitMethod& method) {
  if (options.store && method.kind != InitMethod::Kind::none) {
    throw ArgumentError("InitOptions: set store or init_method, not both");
  }
  if (options.rank.has_value() != options.world_size.has_value() && method.kind == InitMethod::Kind::none) {
    throw_error<ArgumentError>("InitOptions: {} is given but {} is not; set both or neither",
                               options.rank ? "rank" : "world_size", options.rank ? "world_size" : "rank");
  }
  if (options.store && !options.rank) {
    throw ArgumentError("InitOptions: store needs rank and world_size");
  }
}

// The option takes precedence over the query, the query over the environment.
int pick(const std::optional<int>& option, const std::optional<int>& query, const Env& env,
         const char* option_name, const char* variable) {
  if (option) return *option;
  if (query) return *query;
  if (env.has(variable)) return Variables(env, "the environment", {variable}).number(variable);
  throw_error<RendezvousError>(
      "init_method needs InitOptions::{0}, \"?{0}=\" in the method, or {1} in the environment; none is set",
      option_name, variable);
}

RankInfo explicit_rank_info(const SessionOptions& options, const InitMethod& method) {
  const Variables numbers(options.env, "the environment", {});
  return {.rank = pick(options.rank, method.rank, options.env, "rank", "RANK"),
          .world_size = pick(options.world_size, method.world_size, options.env, "world_size", "WORLD_SIZE"),
          .local_rank = numbers.optional_number("LOCAL_RANK"),
          .local_world_size = numbers.optional_number("LOCAL_WORLD_SIZE"),
          .master_addr = method.host,
          .master_port = method.port,
          .source = "InitOptions"};
}

// Rank and size from the options or the query, the address of rank 0 from the environment.
RankInfo rank_info_with_numbers(const SessionOptions& options, const InitMethod& method) {
  const Variables master(options.env, "the launcher's environment", {"MASTER_ADDR", "MASTER_PORT"},
                         {"RANK", "WORLD_SIZE"});
  RankInfo rank_info = explicit_rank_info(options, method);
  if (!options.store && rank_info.world_size > 1) master.require_all();
  rank_info.master_addr = options.env.get("MASTER_ADDR").value_or("");
  if (master.optional_number("MASTER_PORT")) {
    rank_info.master_port = checked_port(master.number("MASTER_PORT"), "MASTER_PORT");
  }
  return rank_info;
}

RankInfo place(const SessionOptions& options, const InitMethod& method) {
  using Kind = InitMethod::Kind;
  if (method.kind == Kind::tcp || method.kind == Kind::file) return explicit_rank_info(options, method);
  if (options.rank || options.world_size || method.rank || method.world_size) {
    return rank_info_with_numbers(options, method);
  }
  if (method.kind == Kind::env) {
    if (auto found = from_launcher(options.env)) return *found;
    throw RendezvousError(
        "init_method env:// needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the "
        "environment; none is set. `lockstep run` sets them");
  }
  if (auto found = from_environment(options.env)) return *found;
  log(LogLevel::info,
      "not distributed: one process (start it with `lockstep run --nproc-per-node N` for more)");
  return {.local_rank = 0, .local_world_size = 1, .source = "no launcher"};
}

// The store of a run that ends is served until its last rank has left, perhaps on the port of the next run.
bool has_ended(c10d::Store& store, bool joins_later) {
  try {
    return store.check({joins_later ? kServerLeftKey : kLeftKey});
  } catch (const std::exception&) {
    return true;  // its rank 0 left meanwhile
  }
}

StorePtr join_live_store(const Endpoint& server, const RankInfo& place, const Deadline& deadline,
                         const SessionOptions& options) {
  while (true) {
    const auto store = join_store(server, place.rank, place.world_size, deadline, options.with_python);
    if (!has_ended(*store, options.enable_reconfigure)) return store;
    if (deadline.expired()) {
      throw_error<RendezvousError>(Reporter{place.rank, place.world_size},
                                   ErrorDetails{.ranks = {0}, .host = server.host},
                                   "rank 0 has not arrived: at {}:{} an earlier run still ends after {} ms",
                                   server.host, server.port, deadline.timeout().count());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

bool meets_at_agent(const InitMethod& method, const SessionOptions& options) {
  return method.kind != InitMethod::Kind::tcp && is_served_by_agent(options.env);
}

StorePtr store_over_tcp(const RankInfo& place, const Deadline& deadline, bool by_agent,
                        const SessionOptions& options) {
  if (place.rank == 0 && !by_agent) {
    return serve_store(listen_on(place.master_port, place.master_addr), place.master_addr, place.world_size,
                       deadline);
  }
  return join_live_store({place.master_addr, place.master_port}, place, deadline, options);
}

StorePtr store_by_file(RankInfo& place, const RankTerms& terms, const std::string& path,
                       const Deadline& deadline) {
  FileRendezvous meeting(path, place.rank, place.world_size);
  if (place.rank == 0) {
    place.master_addr = "127.0.0.1";
    auto listener = listen_on(0, place.master_addr);
    place.master_port = listener.port;
    auto store = serve_store(std::move(listener), place.master_addr, place.world_size, deadline);
    meeting.publish(place.master_port, deadline);
    store_barrier(*store, place.rank, terms, deadline);
    return store;
  }
  const Endpoint server = meeting.find(deadline);
  place.master_addr = server.host;
  place.master_port = server.port;
  return join_store(server, place.rank, place.world_size, deadline);
}

// A store may serve several runs, one after the other; each gets its own prefix. A rank joins a run only
// after all ranks have joined the run before, so the number of joins determines the run. `joins_later`: to
// the first one, without being counted.
StorePtr store_of_run(const StorePtr& store, const std::string& group_name, int world_size,
                      bool joins_later) {
  const std::string prefix = "lockstep/" + group_name;
  if (joins_later) return c10::make_intrusive<c10d::PrefixStore>(prefix + "/0", store);
  const auto run = (store->add(prefix + "/joins", 1) - 1) / world_size;
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}/{}", prefix, run), store);
}

StorePtr store_of_launcher(const std::shared_ptr<const RunMemory>& memory, const RankInfo& place,
                           const Deadline& deadline) {
  if (!memory->has_several_hosts()) return c10::make_intrusive<RunStore>(memory);
  return c10::make_intrusive<RemoteStore>(Endpoint{place.master_addr, memory->state().store_port},
                                          memory->store_token(), deadline);
}

StorePtr find_store(RankInfo& place, const RankTerms& terms, const InitMethod& method,
                    const SessionOptions& options, const Deadline& deadline) {
  const StorePtr given =
      options.run_memory ? store_of_launcher(options.run_memory, place, deadline) : options.store;
  if (given) return store_of_run(given, options.group_name, place.world_size, options.joins_later());
  if (place.world_size == 1 && place.master_addr.empty()) return c10::make_intrusive<c10d::HashStore>();
  if (method.kind == InitMethod::Kind::file) return store_by_file(place, terms, method.path, deadline);
  return store_over_tcp(place, deadline, meets_at_agent(method, options), options);
}

// What store_barrier() looks for in the store of find_store().
std::function<void()> find_strangers(const StorePtr& store, const RankInfo& place, const InitMethod& method,
                                     const SessionOptions& options) {
  const bool has_own_store = options.store || options.run_memory || method.kind == InitMethod::Kind::file;
  if (has_own_store || place.world_size == 1) return {};
  return refuse_python_ranks(store, place.rank, place.world_size, meets_at_agent(method, options));
}

// A rank may still fail, and the store ends with rank 0, unless it is the launcher's.
std::unique_ptr<Session> open_session(const SessionOptions& options, const backends::BackendSpec& backend,
                                      const RankInfo& rank_info, const StorePtr& store) {
  try {
    return Session::connect(options, backend, rank_info, store);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw_error<RendezvousError>(
        Reporter{rank_info.rank, rank_info.world_size},
        options.run_memory ? ErrorDetails{} : ErrorDetails{.ranks = {0}},
        "{} gave up or died while the ranks were connecting ({}). Look for its error",
        options.run_memory ? "a rank or a launcher" : "rank 0", first_line_of(error.what()));
  }
}

// With the fake backend this process is the only one of the run.
std::unique_ptr<Session> join_fake(const SessionOptions& options, const backends::BackendSpec& backend,
                                   const InitMethod& method) {
  auto own = options;
  if (own.rank && method.kind == InitMethod::Kind::none) own.store = c10::make_intrusive<c10d::HashStore>();
  const RankInfo rank_info = place(own, method);
  check(rank_info);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  simulate_barrier(*store, rank_info.world_size);
  return open_session(own, backend, rank_info, store);
}

void check_reconfigurable(const SessionOptions& options, const InitMethod& method) {
  const auto refuse = [](const std::string& what) {
    throw ArgumentError("InitOptions: enable_reconfigure cannot be combined with " + what);
  };
  if (options.with_python) refuse("with_python; give the C++ ranks a group of their own");
  if (method.kind == InitMethod::Kind::file) refuse("a file:// init_method, whose ranks wait for each other");
}

void check_with_python(const SessionOptions& options, const backends::BackendSpec& backend,
                       const InitMethod& method) {
  const auto refuse = [](const std::string& what) {
    throw ArgumentError("InitOptions: with_python cannot be combined with " + what);
  };
  check_backend_with_python(backend, "InitOptions: with_python");
  const auto name = backend.name();
  if (method.kind == InitMethod::Kind::file) refuse("a file:// init_method; use env:// or tcp://");
  if (options.device && options.device->is_cpu() == (name == "nccl"))
    refuse(fmt::format("the backend {} and device {}", name, options.device->str()));
  if (checks_calls(options)) {
    refuse("check_calls or TORCH_DISTRIBUTED_DEBUG=DETAIL, for which PyTorch makes calls of its own");
  }
  if (options.env.get("TORCH_DIST_INIT_BARRIER") == "1")
    refuse("TORCH_DIST_INIT_BARRIER=1, for which PyTorch waits for C++ ranks in a barrier of its own");
}

std::unique_ptr<Session> join_with_python(const SessionOptions& options, const backends::BackendSpec& backend,
                                          const RankInfo& rank_info) {
  const Deadline deadline(options.timeout);
  const auto store = options.store
                         ? options.store
                         : store_over_tcp(rank_info, deadline, is_served_by_agent(options.env), options);
  return open_session(options, backend, rank_info, store);
}

std::unique_ptr<Session> meet(const SessionOptions& options) {
  const InitMethod method = parse_init_method(options.init_method);
  check_options(options, method);
  if (options.enable_reconfigure) check_reconfigurable(options, method);
  // An unavailable backend is an error before the ranks wait for each other.
  const auto backend = backends::BackendSpec::parse(options.backend);
  if (options.with_python) check_with_python(options, backend, method);
  const auto device = expected_device(options, backend);
  if (options.caching_cpu_allocator && device.is_cpu()) enable_caching_cpu_allocator();
  backends::check_environment(backends::resolve_backend(backend, {.device = device}).spec, options.env);
  if (backend.name() == "fake") return join_fake(options, backend, method);
  RankInfo rank_info = place(options, method);
  check(rank_info);
  if (options.with_python) return join_with_python(options, backend, rank_info);
  const Deadline deadline(options.timeout);
  const RankTerms terms{
      .world_size = rank_info.world_size, .backend = backend.text(), .lockstep = options.lockstep};
  const StorePtr store = find_store(rank_info, terms, method, options, deadline);
  if (!options.joins_later()) {
    store_barrier(*store, rank_info.rank, terms, deadline, find_strangers(store, rank_info, method, options));
  }
  auto session = open_session(options, backend, rank_info, store);
  if (!options.joins_later()) session->share_cores();
  return session;
}

// Takes the memory of the launcher, if the ranks meet by that launcher's variables. After elastic::run() has begun,
// a later init() of this process meets the others without it.
void take_run_memory(SessionOptions& options) {
  static std::shared_ptr<const RunMemory> memory;
  const bool by_launcher = options.init_method.empty() || options.init_method == "env://";
  if (!by_launcher || options.store || options.rank || options.with_python || options.enable_reconfigure)
    return;
  const bool is_first = memory == nullptr;
  if (is_first) {
    auto inherited = RunMemory::inherited(options.env);
    if (!inherited) return;
    memory = std::make_shared<const RunMemory>(*std::move(inherited));
    ::unsetenv(RunMemory::kVariable);  // programs that this one starts do not inherit the memory
  }
  const auto phase = memory->state().phase.load();
  if (!is_first && phase != RunPhase::starting) return;
  if (phase == RunPhase::finished) {
    throw Error(
        "this process replaces a rank that was lost after elastic::run() had ended; the other ranks cannot take it "
        "in. Do what must not be lost in elastic::run()");
  }
  options.run_memory = memory;
  options.is_replacement = phase == RunPhase::running;
}

std::unique_ptr<Session> join(SessionOptions options) {
  const QuietC10d quiet;
  if (is_initialized()) {
    throw ArgumentError(
        "lockstep::init: this process is in a run already; end the first context before a second");
  }
  LauncherLimits::from(options.env).check(options.timeout);
  become_rank(options.env);
  comm::write_recorder_files_on_signal();
  take_run_memory(options);
  auto scope = std::make_unique<ProcessScope>(options.report_uncaught_exceptions);
  auto session = meet(options);
  session->keep(std::move(scope));
  return session;
}

}  // namespace

Context init(const SessionOptions& options, std::source_location where) {
  const CallerPlace place(where);
  require_stack();
  require_address_space();
  return Context(join(options));
}

}  // namespace rendezvous

Context init(const InitOptions& options, std::source_location where) {
  return rendezvous::init({options}, where);
}

Context::Context(std::unique_ptr<rendezvous::Session> session) : session_(std::move(session)) {
  session_->set_context(*this);
}
Context::~Context() = default;
Context::Context(Context&& other) noexcept : session_(std::move(other.session_)) {
  if (session_) session_->set_context(*this);
}

rendezvous::Session& Context::session() const {
  if (session_) return *session_;
  throw ArgumentError(
      "Context: the run of this context has ended by destroy_process_group(), or the context was moved; call "
      "its functions before");
}

int Context::rank() const { return session().world().rank; }
int Context::world_size() const { return session().world().size; }
int Context::local_rank() const { return session().world().local_rank; }
int Context::local_world_size() const { return session().world().local_size; }
c10::Device Context::device() const { return session().device(); }
const ProcessGroup& Context::group() const { return session().group(); }
void Context::synchronize() const { session().synchronize(); }
void Context::barrier(std::source_location where) const { group().barrier(where); }

void Context::reconfigure(const ReconfigureOptions& options, std::source_location where) const {
  const CallerPlace place(where);
  session().reconfigure(options);
}

ProcessGroup Context::new_group(const std::vector<int>& ranks, const GroupOptions& options,
                                std::source_location where) const {
  const CallerPlace place(where);
  return session().new_group(ranks, options);
}

void Context::report_success(std::source_location where) const { group().broadcast_object("", 0, where); }

void Context::report_failure(const std::string& reason, std::source_location where) const noexcept {
  try {
    group().broadcast_object(reason.empty() ? "no reason given" : reason, 0, where);
  } catch (const std::exception& error) {
    log(LogLevel::error,
        fmt::format("rank 0 could not report its failure to the other ranks: {}", error.what()));
  }
}

void Context::await_main(std::source_location where) const {
  const std::string failure = group().broadcast_object("", 0, where);
  if (!failure.empty()) {
    throw_error<Error>("rank {}: main_process_first: rank 0 failed: {}", rank(), failure);
  }
}

ProcessGroup new_group(const std::vector<int>& ranks, const GroupOptions& options,
                       std::source_location where) {
  const CallerPlace place(where);
  return runtime::require_run("lockstep::new_group").new_group(ranks, options);
}

ProcessGroup split_group(const ProcessGroup& parent_pg, const std::vector<std::vector<int>>& split_ranks,
                         const GroupOptions& options, std::source_location where) {
  const CallerPlace place(where);
  return runtime::require_run("lockstep::split_group").split_group(parent_pg, split_ranks, options);
}

}  // namespace lockstep
