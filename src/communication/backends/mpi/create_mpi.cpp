// SPDX-License-Identifier: BSD-3-Clause
#include <functional>
#include <set>
#include <string_view>

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
