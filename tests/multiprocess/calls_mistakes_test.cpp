// SPDX-License-Identifier: BSD-3-Clause
// Mistakes in calls of process groups.
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "multiprocess/await_failures.h"
#include "multiprocess/mistakes.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

const Mistake other_shapes("AllReduceOfOtherShapes",
                           {.on_all = {"the ranks make different calls", "rank 0: all_reduce of 2 x f32",
                                       "rank 1: all_reduce of 3 x f32"}},
                           [] {
                             const auto context = init({.timeout = 20s});
                             context.group().all_reduce(torch::ones({2 + context.rank()}));
                           });

const Mistake other_dtypes("AllReduceOfOtherDtypes",
                           {.on_all = {"the ranks make different calls", "f32", "f64"}}, [] {
                             const auto context = init({.timeout = 20s});
                             const auto dtype = context.rank() == 0 ? at::kFloat : at::kDouble;
                             context.group().all_reduce(torch::ones({2}, dtype));
                           });

const Mistake other_calls("DifferentCalls",
                          {.on_all = {"the ranks make different calls", "rank 0: all_reduce",
                                      "rank 1: broadcast"}},
                          [] {
                            const auto context = init({.timeout = 20s});
                            const auto x = torch::ones({2});
                            if (context.is_main_process())
                              context.group().all_reduce(x);
                            else
                              context.group().broadcast(x, 0);
                          });

const Mistake one_rank_only("CollectiveOnOneRankOnly", {.on_rank0 = {"all_reduce #1", "rank 1"}}, [] {
  const auto context = init({.timeout = 20s});
  if (context.is_main_process()) context.group().all_reduce(torch::ones({2}));
});

const Mistake one_rank_only_gloo("CollectiveOnOneRankOnlyOverGloo", {.on_rank0 = {"all_reduce #1", "rank 1"}},
                                 [] {
                                   const auto context = init({.backend = "gloo", .timeout = 20s});
                                   if (context.is_main_process())
                                     context.group().all_reduce(torch::ones({2}));
                                 });

const Mistake too_few_outputs("AllGatherWithTooFewOutputs", {.on_all = {"all_gather", "output", "2"}}, [] {
  const auto context = init({.timeout = 20s});
  context.group().all_gather({torch::zeros({2})}, torch::ones({2}));
});

const Mistake other_batch("GatherOfAnotherBatchSize",
                          {.on_all = {"the ranks make different calls", "all_gather_into_tensor"}}, [] {
                            const auto context = init({.timeout = 20s});
                            const auto last = torch::ones({4 - context.rank(), 3});
                            const auto all = torch::zeros({2 * last.size(0), 3});
                            context.group().all_gather_into_tensor(all, last);
                          });

const Mistake wrong_root("BroadcastFromARankThatIsNone", {.on_all = {"broadcast", "src", "2", "0 to 1"}}, [] {
  const auto context = init({.timeout = 20s});
  context.group().broadcast(torch::ones({2}), 2);
});

const Mistake to_self("SendToItself", {.on_rank0 = {"send", "0"}}, [] {
  const auto context = init({.timeout = 20s});
  if (context.is_main_process()) context.group().send(torch::ones({2}), 0);
});

const Mistake both_receive("BothRanksReceive",
                           {.on_all = {"recv #1", "did not finish in time", "matching call"}}, [] {
                             const auto context = init({.timeout = 20s});
                             const auto call =
                                 context.group().recv_async(torch::zeros({2}), 1 - context.rank());
                             try {
                               call.wait(1s);
                             } catch (const Error&) {
                               await_failures(context.group());
                               throw;
                             }
                           });

const Mistake one_output("AllGatherIntoOneTensorTwice", {.on_all = {"all_gather", "output[0] and output[1]"}},
                         [] {
                           const auto context = init({.timeout = 20s});
                           const std::vector<at::Tensor> all(2, torch::zeros({2}));
                           context.group().all_gather(all, torch::ones({2}));
                         });

const Mistake not_contiguous("GatherOfATransposedTensor", {.on_all = {"all_gather", "contiguous()"}}, [] {
  const auto context = init({.timeout = 20s});
  const auto column = torch::ones({2, 3}).t();
  context.group().all_gather({torch::zeros({3, 2}), torch::zeros({3, 2})}, column);
});

const Mistake undefined_tensor("AllReduceOfAnUndefinedTensor", {.on_all = {"all_reduce", "undefined"}}, [] {
  const auto context = init({.timeout = 20s});
  context.group().all_reduce(at::Tensor());
});

const Mistake expanded("AllReduceOfAnExpandedTensor", {.on_all = {"all_reduce", "contiguous()"}}, [] {
  const auto context = init({.timeout = 20s});
  context.group().all_reduce(torch::ones({1}).expand({4}));
});

const Mistake other_splits("AllToAllWithOtherSplits", {.on_all = {"all_to_all_single"}}, [] {
  const auto context = init({.timeout = 20s});
  const auto rows = 2 + context.rank();
  context.group().all_to_all_single(torch::zeros({4, 1}), torch::ones({rows, 1}), {2, 2},
                                    {1, 1 + context.rank()});
});

const Mistake not_a_member("GroupOfOtherRanks",
                           {.on_rank1 = {"ProcessGroup: rank 1 is not in group", "made at",
                                         "inside `if (group)`"}},
                           [] {
                             const auto context = init({.timeout = 20s});
                             const auto first = context.new_group({0});
                             first.barrier();
                           });

const Mistake group_on_one_rank("NewGroupOnOneRankOnly",
                                {.on_rank0 = {"new_group: group 1 of the ranks [0, 1]",
                                              "rank 1 did not arrive",
                                              "All ranks of the run call new_group()"}},
                                [] {
                                  const auto context = init({.timeout = 20s});
                                  if (context.is_main_process())
                                    (void)context.new_group({0, 1}, {.timeout = 500ms});
                                });

const Mistake wrong_members("NewGroupOfARankThatIsNone", {.on_all = {"new_group([0, 2])", "0 to 1"}}, [] {
  const auto context = init({.timeout = 20s});
  (void)context.new_group({0, 2});
});

const Mistake mesh_too_large("MeshOfMoreRanksThanTheRunHas",
                             {.on_all = {"a mesh of [3] has 3 ranks", "only 2"}}, [] {
                               const auto context = init({.timeout = 20s});
                               (void)init_device_mesh({3});
                             });

const Mistake unknown_dimension("UnknownDimensionOfAMesh", {.on_all = {"no dimension \"tp\"", "(dp)"}}, [] {
  const auto context = init({.timeout = 20s});
  (void)init_device_mesh({2}, {.mesh_dim_names = {"dp"}}).get_group("tp");
});

const Mistake split_twice("RankInTwoPartsOfASplit", {.on_all = {"split_ranks", "without common ranks"}}, [] {
  const auto context = init({.timeout = 20s});
  (void)split_group(context.group(), {{0, 1}, {1}});
});

const Mistake after_context("CallAfterTheContextHasEnded", {.on_all = {"all_reduce", "closed"}}, [] {
  const auto group = init({.timeout = 20s}).group();
  group.all_reduce(torch::ones({2}));
});

}  // namespace
}  // namespace lockstep::testing
