// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/thread_share.h"

#include <algorithm>
#include <set>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/host.h"
#include "machine/host.h"

namespace lockstep::rendezvous {
namespace {

// LibTorch takes all cores, or all their hardware threads.
bool is_default(int threads) {
  std::set<int> cores;
  const auto logical = machine::read_cores();
  for (const auto& each : logical) cores.insert(each.core);
  return threads == static_cast<int>(cores.size()) || threads == static_cast<int>(logical.size());
}

int ranks_on_own_cores(const World& world, const node::NodeGroup* node) {
  if (node != nullptr) return node->ranks_on_own_cores();
  // SLURM and MPI bind each rank to cores of its own. A larger set may be that of all ranks.
  const bool bound =
      static_cast<long>(affinity_cpus().size()) <= ::sysconf(_SC_NPROCESSORS_ONLN) / world.local_size;
  return bound ? 1 : world.local_size;
}

}  // namespace

void share_cores(const World& world, const node::NodeGroup* node, const Env& env) {
  if (world.local_size < 2 || env.has("OMP_NUM_THREADS") || env.has("MKL_NUM_THREADS")) return;
  const int cores = usable_cores();
  const int ranks = ranks_on_own_cores(world, node);
  const int share = std::max(1, cores / ranks);
  const int threads = at::get_num_threads();
  if (threads <= share || !is_default(threads)) return;
  at::set_num_threads(share);
  if (world.rank != 0) return;
  log(LogLevel::info,
      fmt::format(
          "LibTorch uses {} thread{} instead of {} on each rank, its share of {} core{} for {} ranks; set "
          "OMP_NUM_THREADS for another number",
          share, share == 1 ? "" : "s", threads, cores, cores == 1 ? "" : "s", ranks));
}

}  // namespace lockstep::rendezvous
