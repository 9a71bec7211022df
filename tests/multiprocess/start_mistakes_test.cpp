// SPDX-License-Identifier: BSD-3-Clause
// Mistakes in how ranks are started, call init() and end.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>
#include <lockstep/version.h>

#include "base/host.h"
#include "multiprocess/mistakes.h"
#include "rendezvous/session.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

// Leaves less than the stack of a thread.
void leave_no_address_space(std::size_t but) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto bytes = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + but;
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  ::setrlimit(RLIMIT_AS, &limit);
}

void start() { const auto context = init({.timeout = 5s}); }

const Mistake no_init("ForgottenInit", {.on_all = {"call lockstep::init() first"}}, [] {
  torch::nn::Linear net(2, 2);
  DistributedDataParallel ddp(net);
});

const Mistake second_init("SecondInit", {.on_all = {"in a run already", "end the first context"}}, [] {
  const auto context = init({.timeout = 20s});
  const auto again = init();
});

const Mistake no_ranks("SpawnOfNoRanks", {.on_all = {"spawn: nprocs is 0", "at least 1"}}, [] {
  const auto context = init({.timeout = 20s});
  spawn([](int) {}, {.nprocs = 0});
});

const Mistake no_threads("SpawnThreadsOfNoRanks", {.on_all = {"spawn_threads: world_size is 0"}}, [] {
  const auto context = init({.timeout = 20s});
  spawn_threads(0, [](Context&) {});
});

// Rank 0 has the store, which ends with it.
const Mistake no_threads_on_rank_zero("NoThreadsForGlooOnRankZero",
                                      {.on_all = {"the backend gloo needs", "threads"},
                                       .on_rank1 = {"rank 0: the backend gloo needs"},
                                       .world_size = 4},
                                      [] {
                                        const auto context = init({.backend = "shm", .timeout = 20s});
                                        if (context.is_main_process()) leave_no_address_space(4 << 20);
                                        (void)context.new_group({0, 1, 2, 3}, {.backend = "gloo"});
                                      });

// Either of them may be the one that gets the port.
const Mistake same_rank("BothAreRankZero",
                        {.on_all = {"MASTER_PORT", "RANK"},
                         .once = {"another process has RANK=0 too", "each with its own RANK"},
                         .rank_env = {{1, {{"RANK", "0"}}}}},
                        start);

const Mistake rank_too_high("RankIsTheWorldSize",
                            {.on_rank1 = {"rank 2", "0 to 1"}, .rank_env = {{1, {{"RANK", "2"}}}}}, start);

const Mistake no_world_size("NoWorldSize",
                            {.on_all = {"WORLD_SIZE", "lockstep run"}, .env = {{"WORLD_SIZE", ""}}}, start);

const Mistake no_address("NoMasterAddress", {.on_all = {"MASTER_ADDR"}, .env = {{"MASTER_ADDR", ""}}}, start);

const Mistake not_a_number("RankIsNoNumber",
                           {.on_rank1 = {"RANK", "one"}, .rank_env = {{1, {{"RANK", "one"}}}}}, start);

const Mistake not_a_port("PortOutOfRange",
                         {.on_all = {"MASTER_PORT", "99999"}, .env = {{"MASTER_PORT", "99999"}}}, start);

const Mistake too_few_ranks("FewerRanksThanTheWorldSize",
                            {.on_all = {"rank 2"},
                             .on_rank0 = {"did not arrive", "WORLD_SIZE"},
                             .env = {{"WORLD_SIZE", "3"}}},
                            start);

const Mistake other_world_size("WorldSizesDiffer",
                               {.on_all = {"different world sizes", "WORLD_SIZE is ", "3 on rank 1",
                                           "2 on rank 0", "the same WORLD_SIZE"},
                                .rank_env = {{1, {{"WORLD_SIZE", "3"}}}}},
                               [] { const auto context = init({.timeout = 20s}); });

const Mistake unknown_backend("MisspelledBackend", {.on_all = {"glo", "gloo", "shm"}},
                              [] { const auto context = init({.backend = "glo"}); });

const Mistake nccl_without_gpu("NcclWithoutAGpu", {.on_all = {"nccl", "gloo"}},
                               [] { const auto context = init({.backend = "nccl"}); });

const Mistake device_without_gpu("InitOnAGpuWithoutOne", {.on_all = {"cuda:0", "CPU"}},
                                 [] { const auto context = init({.device = at::Device("cuda:0")}); });

const Mistake unknown_method("MisspelledInitMethod", {.on_all = {"tpc://", "tcp://", "env://"}},
                             [] { const auto context = init({.init_method = "tpc://127.0.0.1:1"}); });

const Mistake rank_alone("RankWithoutWorldSize", {.on_all = {"rank is given", "world_size"}},
                         [] { const auto context = init({.rank = 0}); });

const Mistake printed_before(
    "ExceptionAfterOutput",
    {.on_all = {"uncaught std::out_of_range"}, .printed = "epoch 1\n", .place = Place::none}, [] {
      const auto context = init({.timeout = 20s});
      std::printf("epoch 1\n");
      (void)std::vector<int>().at(7);
    });

const Mistake own_handler("ExceptionWithAHandlerOfTheProgram",
                          {.on_all = {"uncaught std::out_of_range", "the program's handler"},
                           .place = Place::none},
                          [] {
                            std::set_terminate([] {
                              std::fputs("the program's handler\n", stderr);
                              std::_Exit(3);
                            });
                            const auto context = init({.timeout = 20s});
                            (void)std::vector<int>().at(7);
                          });

const Mistake refused_report("ExceptionWithoutAReport",
                             {.on_all = {"terminate called after throwing"}, .place = Place::none}, [] {
                               const auto context =
                                   init({.timeout = 20s, .report_uncaught_exceptions = false});
                               throw std::runtime_error(fmt::format("rank {} is odd", context.rank()));
                             });

const Mistake thrown_number("ThrownNumber", {.on_all = {"uncaught int"}, .place = Place::none}, [] {
  const auto context = init({.timeout = 20s});
  throw 7;
});

void require_threads(bool condition) {
  if (!condition) throw std::runtime_error(fmt::format("{} threads", at::get_num_threads()));
}

// Without a launcher each rank would take all cores.
void use_share_of_cores() {
  const int before = at::get_num_threads();
  {
    const auto context = init({.timeout = 20s});
    require_threads(at::get_num_threads() <= std::max(1, usable_cores() / 2));
  }
  require_threads(at::get_num_threads() == before);
}

const Mistake all_cores("NoLauncherAndNoNumberOfThreads",
                        {.once = {usable_cores() > 1 ? "set OMP_NUM_THREADS for another number"
                                                     : "backend shm"},
                         .ending = Ending::well,
                         .env = {{"OMP_NUM_THREADS", ""}}},
                        use_share_of_cores);

const Mistake own_threads("NoLauncherButANumberOfThreads",
                          {.once = {"backend shm"}, .ending = Ending::well, .env = {{"OMP_NUM_THREADS", ""}}},
                          [] {
                            const int chosen = static_cast<int>(affinity_cpus().size()) + 1;
                            at::set_num_threads(chosen);
                            const auto context = init({.timeout = 20s});
                            require_threads(at::get_num_threads() == chosen);
                          });

bool is_rank_one() { return std::string_view(std::getenv("RANK")) == "1"; }

const Mistake different_backends(
    "DifferentBackends",
    {.on_all = {"different backends", "gloo on rank 1", "shm on rank 0", "InitOptions::backend"}},
    [] { const auto context = init({.backend = is_rank_one() ? "gloo" : "shm"}); });

const Mistake different_versions("DifferentVersionsOfLockstep",
                                 {.on_all = {"different versions of Lockstep", "99.1 on rank 1",
                                             lockstep::version() + " on rank 0", "the same version"}},
                                 [] {
                                   rendezvous::SessionOptions options;
                                   if (is_rank_one()) options.lockstep = "99.1";
                                   const auto context = rendezvous::init(options);
                                 });

}  // namespace
}  // namespace lockstep::testing
