// SPDX-License-Identifier: BSD-3-Clause
// Mistakes in how ranks are started and call init().
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "multiprocess/mistakes.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

void start() { const auto context = init({.timeout = 2s}); }

const Mistake no_init("ForgottenInit", {.on_all = {"call lockstep::init() first"}}, [] {
  torch::nn::Linear net(2, 2);
  DistributedDataParallel ddp(net);
});

const Mistake second_init(
    "SecondInit", {.on_all = {"in a run already", "end the first context"}, .place = Place::elsewhere}, [] {
      const auto context = init({.timeout = 20s});
      const auto again = init();
    });

const Mistake same_rank("BothAreRankZero",
                        {.on_rank1 = {"MASTER_PORT", "RANK"},
                         .place = Place::elsewhere,
                         .rank_env = {{1, {{"RANK", "0"}}}}},
                        start);

const Mistake rank_too_high("RankIsTheWorldSize",
                            {.on_rank1 = {"RANK", "2", "0 to 1"},
                             .place = Place::elsewhere,
                             .rank_env = {{1, {{"RANK", "2"}}}}},
                            start);

const Mistake no_world_size("NoWorldSize",
                            {.on_all = {"WORLD_SIZE", "lockstep run"},
                             .place = Place::elsewhere,
                             .env = {{"WORLD_SIZE", ""}}},
                            start);

const Mistake no_address("NoMasterAddress",
                         {.on_all = {"MASTER_ADDR"}, .place = Place::elsewhere, .env = {{"MASTER_ADDR", ""}}},
                         start);

const Mistake not_a_number(
    "RankIsNoNumber",
    {.on_rank1 = {"RANK", "one"}, .place = Place::elsewhere, .rank_env = {{1, {{"RANK", "one"}}}}}, start);

const Mistake not_a_port("PortOutOfRange",
                         {.on_all = {"MASTER_PORT", "99999"},
                          .place = Place::elsewhere,
                          .env = {{"MASTER_PORT", "99999"}}},
                         start);

const Mistake too_few_ranks(
    "FewerRanksThanTheWorldSize",
    {.on_all = {"rank 2", "WORLD_SIZE"}, .place = Place::elsewhere, .env = {{"WORLD_SIZE", "3"}}}, start);

const Mistake other_world_size("WorldSizesDiffer",
                               {.on_all = {"different world sizes", "WORLD_SIZE is ", "3 on rank 1",
                                           "2 on rank 0", "the same WORLD_SIZE"},
                                .place = Place::elsewhere,
                                .rank_env = {{1, {{"WORLD_SIZE", "3"}}}}},
                               start);

const Mistake unknown_backend("MisspelledBackend",
                              {.on_all = {"glo", "gloo", "shm"}, .place = Place::elsewhere},
                              [] { const auto context = init({.backend = "glo"}); });

const Mistake nccl_without_gpu("NcclWithoutAGpu", {.on_all = {"nccl", "gloo"}, .place = Place::elsewhere},
                               [] { const auto context = init({.backend = "nccl"}); });

const Mistake device_without_gpu("InitOnAGpuWithoutOne",
                                 {.on_all = {"cuda:0", "CPU"}, .place = Place::elsewhere},
                                 [] { const auto context = init({.device = at::Device("cuda:0")}); });

}  // namespace
}  // namespace lockstep::testing
