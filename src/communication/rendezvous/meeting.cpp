// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/meeting.h"

#include <thread>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/device/device.h>

#include "backends/registry.h"
#include "base/deadline.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "rendezvous/file_rendezvous.h"
#include "rendezvous/init_options.h"
#include "rendezvous/python_group.h"
#include "rendezvous/remote_store.h"
#include "rendezvous/run_store.h"
#include "rendezvous/store_barrier.h"
#include "rendezvous/tcp.h"

namespace lockstep::rendezvous {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

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
  const RankInfo rank_info = find_rank_info(own, method);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  simulate_barrier(*store, rank_info.world_size);
  return open_session(own, backend, rank_info, store);
}

std::unique_ptr<Session> join_with_python(const SessionOptions& options, const backends::BackendSpec& backend,
                                          const RankInfo& rank_info) {
  const Deadline deadline(options.timeout);
  const auto store = options.store
                         ? options.store
                         : store_over_tcp(rank_info, deadline, is_served_by_agent(options.env), options);
  return open_session(options, backend, rank_info, store);
}

}  // namespace

std::unique_ptr<Session> meet(const SessionOptions& options) {
  const InitMethod method = parse_init_method(options.init_method);
  check_options(options, method);
  // An unavailable backend is an error before the ranks wait for each other.
  const auto backend = backends::BackendSpec::parse(options.backend);
  if (options.with_python) check_with_python(options, backend, method);
  const auto device = expected_device(options, backend);
  if (options.caching_cpu_allocator && device.is_cpu()) enable_caching_cpu_allocator();
  backends::check_environment(backends::resolve_backend(backend, {.device = device}).spec, options.env);
  if (backend.name() == "fake") return join_fake(options, backend, method);
  RankInfo rank_info = find_rank_info(options, method);
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

}  // namespace lockstep::rendezvous
