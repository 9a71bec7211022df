// SPDX-License-Identifier: BSD-3-Clause
#include <functional>
#include <set>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "backends/factories.h"
#include "backends/join_node_group.h"
#include "backends/mpi/mpi_backend.h"
#include "comm/unendable_call.h"

namespace lockstep::backends {
namespace {

// Tags of groups that are made at the same time; MPI guarantees these.
constexpr std::size_t kGroupTags = 32768;

[[noreturn]] void refuse(const BackendRequest& request, const std::string& reason) {
  throw RendezvousError(fmt::format("rank {} of {}: backend mpi: group {}: {}", request.rank, request.size,
                                    request.group_name, reason));
}

constexpr const char* kStart = "start all ranks with one mpirun, mpiexec or srun --mpi";

std::string world_rank_key(int rank) { return fmt::format("world_rank/{}", rank); }

// The members' ranks in MPI's world, by their ranks in the group.
std::vector<int> world_ranks(const BackendRequest& request, const mpi::Library& library) {
  auto& store = *request.store;
  store.set(world_rank_key(request.rank), fmt::format("{}", library.world_rank()));
  std::vector<std::string> keys;
  for (int rank = 0; rank < request.size; ++rank) keys.push_back(world_rank_key(rank));
  store.wait(keys, request.timeout);
  std::vector<int> ranks;
  for (const auto& value : store.multiGet(keys)) {
    ranks.push_back(std::stoi(std::string(value.begin(), value.end())));
  }
  const std::set<int> distinct(ranks.begin(), ranks.end());
  if (static_cast<int>(distinct.size()) != request.size || *distinct.rbegin() >= library.world_size()) {
    refuse(request, fmt::format("its {} ranks are not in one MPI world, which has {} here; {}", request.size,
                                library.world_size(), kStart));
  }
  return ranks;
}

std::shared_ptr<MpiGroup> connect(const BackendRequest& request) {
  auto& engine = mpi::Engine::get(request.env);
  const auto ranks = world_ranks(request, engine.library());
  const auto tag = static_cast<int>(std::hash<std::string>{}(request.key) % kGroupTags);
  auto group = std::make_shared<MpiGroup>(
      MpiGroup{.engine = engine, .ranks = {}, .node = {}, .can_end_calls = request.can_end_calls});
  engine.run([&] { group->ranks = engine.library().create(ranks, tag); });
  if (request.one_host && request.size > 1) group->node = join_node_group(request, {});
  comm::watch_termination();
  return group;
}

}  // namespace

void check_mpi_launcher(const Env& env, const std::string& reason) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (env.has(name)) return;
  }
  throw RendezvousError(fmt::format("{}: no MPI launcher started this process; {}", reason, kStart));
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
