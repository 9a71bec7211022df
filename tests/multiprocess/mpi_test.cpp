// SPDX-License-Identifier: BSD-3-Clause
// The scenarios of the other backends over MPI, under mpiexec, all of one world size in the same processes.
#include <csignal>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "base/env.h"
#include "multiprocess/backends.h"
#include "support/mpi_ranks.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Names = std::vector<std::string>;

testing::MpiRun run_over_mpi(const Names& scenarios, int ranks, std::map<std::string, std::string> env = {},
                             const Names& mpiexec_options = {}) {
  const testing::TempFolder folder;
  env["LOCKSTEP_TEST_FOLDER"] = folder.path().string();
  env[testing::kBackendVariable] = "mpi";
  return testing::run_mpi_ranks(scenarios, {.world_size = ranks, .env = std::move(env)}, mpiexec_options);
}

// In the order in which the tests of the other backends have them.
Names for_any_size() {
  return {"reductions",
          "copies",
          "exchanges",
          "async many",
          "async kinds",
          "async dropped",
          "objects between all ranks",
          "special values",
          "undefined reductions"};
}

Names with(Names names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

// A rank that comes too late is not counted as one that is there at the next barrier.
const testing::Scenario comes_late("mpi: comes late", [] {
  const auto context = init({.backend = "mpi"});
  const auto& group = context.group();
  const auto word = torch::zeros({1});
  const auto expect_nobody = [&] {
    if (!context.is_main_process()) {
      EXPECT_THROW(group.monitored_barrier(2s), TimeoutError);
      return;
    }
    EXPECT_THAT(
        [&] { group.monitored_barrier(2s); },
        ThrowsMessage<TimeoutError>(AllOf(HasSubstr("barrier #"), HasSubstr("at mpi_test.cpp:"),
                                          HasSubstr("rank 2 (pid "), HasSubstr("not there after 2000 ms"))));
  };
  if (context.rank() == 2) {
    group.recv(word, 0);
    EXPECT_THROW(group.monitored_barrier(1ms), TimeoutError);
    group.send(word, 0);
    group.recv(word, 0);
    EXPECT_THROW(group.monitored_barrier(1ms), TimeoutError);
  } else {
    expect_nobody();
    if (context.is_main_process()) {
      group.send(word, 2);
      group.recv(word, 2);
      group.send(word, 1);
    } else {
      group.recv(word, 0);
    }
    expect_nobody();
    if (context.is_main_process()) group.send(word, 2);
  }
  group.monitored_barrier(20s);
  const auto other = context.new_group({2, 0, 1});
  other.monitored_barrier();
});

// The quotient is no integer. Each wait tells so, not only the first.
const testing::Scenario cannot_divide("mpi: cannot divide", [] {
  const auto context = init({.backend = "mpi"});
  auto mean = torch::ones({4});
  const auto memory = mean.detach();  // into which MPI writes
  auto work = context.group().all_reduce_async(mean, ReduceOp::AVG);
  mean.set_data(torch::ones({4}, torch::kLong));
  EXPECT_THROW(work.wait(), Error);
  EXPECT_THROW(work.wait(), Error);
});

TEST(Mpi, TwoRanks) {
  testing::expect_all_passed(
      run_over_mpi(with(for_any_size(), {"bitwise", "complex numbers", "layouts", "inference mode",
                                         "desync: every difference", "async messages", "mpi: cannot divide"}),
                   2));
}

// As where MPI takes calls of one thread only.
TEST(Mpi, TwoRanksWhoseCallsOneThreadMakes) {
  testing::expect_all_passed(
      run_over_mpi(with(for_any_size(), {"async messages"}), 2, {{"LOCKSTEP_MPI_THREADS", "serialized"}}));
}

TEST(Mpi, ThreeRanks) {
  testing::expect_all_passed(
      run_over_mpi(with(for_any_size(), {"uneven exchange", "uneven lists", "objects", "groups main first",
                                         "groups main throws", "mpi: comes late"}),
                   3));
}

TEST(Mpi, FourRanks) {
  testing::expect_all_passed(run_over_mpi(
      with(for_any_size(), {"groups two", "groups outlives", "groups barriers", "async from any rank"}), 4));
}

// -- hierarchical, with MPI between hosts

constexpr const char* kNetwork = "LOCKSTEP_HIERARCHICAL_NETWORK";

// [rank]: number of its host.
std::map<int, std::map<std::string, std::string>> on_hosts(const std::vector<int>& host_of) {
  std::map<int, std::map<std::string, std::string>> env;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank)
    env[static_cast<int>(rank)] = {{"LOCKSTEP_HOST_ID", std::to_string(host_of[rank])}};
  return env;
}

// Gloo has no interface that it could use.
testing::MpiRun run_between_hosts(const Names& scenarios, const std::vector<int>& host_of,
                                  std::map<std::string, std::string> env = {}) {
  env.insert(
      {{testing::kBackendVariable, "hierarchical"}, {kNetwork, "mpi"}, {"GLOO_SOCKET_IFNAME", "none0"}});
  return testing::run_mpi_ranks(
      scenarios,
      {.world_size = static_cast<int>(host_of.size()), .env = std::move(env), .rank_env = on_hosts(host_of)});
}

TEST(MpiBetweenHosts, TwoOfTwoRanks) {
  const auto run = run_between_hosts(
      with(for_any_size(), {"groups two", "async from any rank", "sums over even hosts"}), {0, 0, 1, 1});
  testing::expect_all_passed(run);
  EXPECT_THAT(run.ranks[0].err, HasSubstr("backend hierarchical for 4 ranks: shared memory on each host, mpi "
                                          "between the hosts"));
}

TEST(MpiBetweenHosts, OneThreadMakesAllCalls) {
  testing::expect_all_passed(run_between_hosts({"async kinds", "sums over hosts with alternating ranks"},
                                               {0, 1, 0, 1}, {{"LOCKSTEP_MPI_THREADS", "serialized"}}));
}

TEST(MpiBetweenHosts, MayDifferInTheirNumberOfRanks) {
  testing::expect_all_passed(run_between_hosts({"reductions", "copies", "exchanges"}, {0, 0, 0, 1}));
  testing::expect_all_passed(run_between_hosts({"sums over uneven hosts"}, {0, 0, 0, 1, 1}));
}

TEST(MpiBetweenHosts, ReportARankThatDiesOnOneOfThem) {
  const testing::TempFolder folder;
  const auto run =
      run_between_hosts({"a rank dies on the second host"}, {0, 0, 1, 1},
                        {{"TEST_FOLDER", folder.path().string()},
                         {"OMPI_MCA_odls_base_sigkill_timeout", "5"}});  // 1 s is short for reports
  for (const std::size_t survivor : {0U, 1U, 2U}) {
    EXPECT_THAT(run.ranks[survivor].err, AllOf(HasSubstr("all_reduce #2 of Float[100000] at hosts_test.cpp:"),
                                               HasSubstr("another rank is gone")));
  }
}

const testing::Scenario joins_hosts("mpi: joins hosts",
                                    [] { (void)init({.backend = "hierarchical", .timeout = 20s}); });

// Rank 0 waits for it.
std::string error_of_second(const std::map<std::string, std::string>& env) {
  auto rank_env = on_hosts({0, 1});
  rank_env[1].insert(env.begin(), env.end());
  return testing::run_ranks(joins_hosts, {.rank_env = rank_env, .stuck = {0}})[1].err;
}

TEST(MpiBetweenHosts, AreNamedByAllRanks) {
  EXPECT_THAT(error_of_second({{kNetwork, "mpi"}, {"PMIX_RANK", "1"}}),
              HasSubstr("LOCKSTEP_HIERARCHICAL_NETWORK is mpi here and gloo on rank 0; set it alike on all"));
}

TEST(MpiBetweenHosts, NeedALauncherAndTheModule) {
  EXPECT_THAT(error_of_second({{kNetwork, "mpi"}}),
              HasSubstr("LOCKSTEP_HIERARCHICAL_NETWORK=mpi: no MPI launcher started this process; start all "
                        "ranks with one mpirun, mpiexec or srun --mpi"));
  const auto ranks = testing::run_ranks(
      joins_hosts,
      {.env = {{kNetwork, "mpi"}, {"PMIX_RANK", "0"}, {"LOCKSTEP_MPI_MODULE", "/no/such/module.so"}},
       .rank_env = on_hosts({0, 1})});
  EXPECT_THAT(ranks[0].err, HasSubstr("the mpi module was not found at /no/such/module.so"));
}

// -- a program that uses MPI itself

// Functions of the libmpi that the module is linked with.
template <class... Arguments>
void call_mpi(const char* name, Arguments... arguments) {
  const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "liblockstep_mpi.so";
  const auto module = Env().get("LOCKSTEP_MPI_MODULE").value_or(beside.string());
  auto* const library = ::dlopen(module.c_str(), RTLD_NOW | RTLD_GLOBAL);
  auto* const function = library == nullptr ? nullptr : ::dlsym(library, name);
  ASSERT_NE(function, nullptr);
  EXPECT_EQ(reinterpret_cast<int (*)(Arguments...)>(function)(arguments...), 0);
}

constexpr int kSingle = 0;  // MPI_THREAD_SINGLE and MPI_THREAD_MULTIPLE of every MPI
constexpr int kMultiple = 3;

void initialise_mpi(int level) {
  int provided = -1;
  call_mpi("MPI_Init_thread", static_cast<int*>(nullptr), static_cast<char***>(nullptr), level, &provided);
  EXPECT_EQ(provided, level);
}

const testing::Scenario own_mpi("mpi: of the program", [] {
  initialise_mpi(kMultiple);
  {
    const auto context = init({.backend = "mpi"});
    auto x = torch::ones({3});
    context.group().all_reduce(x);
    EXPECT_EQ(x[0].item<float>(), 2);
  }
  int is_finalized = -1;
  call_mpi("MPI_Finalized", &is_finalized);
  EXPECT_EQ(is_finalized, 0);
  call_mpi("MPI_Finalize");
});

TEST(MpiOfTheProgram, IsUsedAndNotFinalized) {
  testing::expect_all_passed(run_over_mpi({"mpi: of the program"}, 2));
}

const testing::Scenario own_mpi_of_one_thread("mpi: of one thread", [] {
  initialise_mpi(kSingle);
  EXPECT_THAT([] { (void)init({.backend = "mpi"}); },
              ThrowsMessage<RendezvousError>(HasSubstr("the program has initialised MPI for one thread")));
  call_mpi("MPI_Finalize");
});

TEST(MpiOfTheProgram, MustTakeCallsOfAllThreads) {
  testing::expect_all_passed(run_over_mpi({"mpi: of one thread"}, 1));
}

// MPI is finalized before objects that were made before init().
std::unique_ptr<Context> kept;

const testing::Scenario outlives_main("mpi: outlives main", [] {
  kept = std::make_unique<Context>(init({.backend = "mpi"}));
  kept->group().all_reduce(torch::ones({3}));
});

TEST(Mpi, AContextMayOutliveMain) {
  for (const char* threads : {"multiple", "serialized"}) {
    const auto run = run_over_mpi({"mpi: outlives main"}, 2, {{"LOCKSTEP_MPI_THREADS", threads}});
    testing::expect_all_passed(run);
    EXPECT_EQ(run.exit_code, 0) << threads;
  }
}

// -- without MPI

const testing::Scenario joins("mpi: joins", [] { (void)init({.backend = "mpi", .timeout = 20s}); });

TEST(WithoutMpi, AnotherLauncherIsAnError) {
  for (const auto& rank : testing::run_ranks(joins)) {
    EXPECT_EQ(rank.exit_code, 1);
    EXPECT_THAT(rank.err, HasSubstr("backend mpi: no MPI launcher started this process; start all ranks with "
                                    "one mpirun, mpiexec or srun --mpi"));
  }
}

TEST(WithoutMpi, AMissingModuleIsNamed) {
  const auto ranks = testing::run_ranks(
      joins, {.world_size = 1, .env = {{"PMIX_RANK", "0"}, {"LOCKSTEP_MPI_MODULE", "/no/such/module.so"}}});
  EXPECT_THAT(ranks[0].err, HasSubstr("backend mpi: group default: the mpi module was not found at "
                                      "/no/such/module.so; set LOCKSTEP_MPI_MODULE to liblockstep_mpi.so"));
}

const testing::Scenario uses_gloo("mpi: uses gloo", [] {
  const auto context = init({.backend = "gloo"});
  context.barrier();
  std::ifstream maps("/proc/self/maps");
  const std::string all(std::istreambuf_iterator<char>(maps), {});
  EXPECT_EQ(all.find("mpi.so"), std::string::npos);
});

TEST(WithoutMpi, NothingOfItIsLoaded) { testing::expect_all_passed(testing::run_ranks(uses_gloo)); }

// -- ranks that are lost

testing::MpiRun run_with_recovery(const std::string& scenario, const std::string& recovery) {
  Names options;
  // Else mpiexec of Open MPI 5 kills the others at once. The one of the nightly checks does it anyway.
  if (testing::is_open_mpi_5() && std::getenv("LOCKSTEP_TEST_MPIEXEC") == nullptr)
    options = {"--with-ft", "ulfm"};
  return run_over_mpi({scenario}, 3, {{"OMPI_MCA_orte_enable_recovery", recovery}}, options);
}

// Also if mpiexec leaves the others alone.
TEST(MpiLostRanks, AKilledRankIsNamedByThoseInsideOfMpi) {
  for (const char* recovery : {"0", "1"}) {
    const auto run = run_with_recovery("lost: killed between calls", recovery);
    for (const int survivor : {0, 2}) {
      EXPECT_THAT(run.ranks[static_cast<std::size_t>(survivor)].err,
                  AllOf(HasSubstr("rank " + std::to_string(survivor) + " of 3 (group default, mpi)"),
                        HasSubstr("all_reduce #2 of Float[1000] at lost_ranks_test.cpp:"),
                        HasSubstr("another rank is gone"), HasSubstr("rank 1 (pid "),
                        HasSubstr("is dead; it had completed barrier #1 at ")))
          << "recovery " << recovery;
    }
  }
}

const testing::Scenario waits_for_the_dead("mpi: waits for the dead", [] {
  const auto context = init({.backend = "mpi", .timeout = 20s});
  context.barrier();
  if (context.rank() == 1) ::raise(SIGKILL);
  context.group().all_reduce_async(torch::ones({1000})).wait();
});

TEST(MpiLostRanks, AWaitForAnAsynchronousCallThrows) {
  const auto run = run_over_mpi({"mpi: waits for the dead"}, 2);
  EXPECT_THAT(run.ranks[0].err,
              AllOf(HasSubstr("scenario mpi: waits for the dead threw: rank 0 of 2 (group default, mpi)"),
                    HasSubstr("all_reduce #2 of Float[1000] at mpi_test.cpp:"), HasSubstr("rank 1 (pid ")));
}

const testing::Scenario one_stops_over_mpi("mpi: stopped", [] {
  const auto context = init({.backend = "mpi"});
  context.barrier();
  const auto group = context.new_group({0, 1}, {.timeout = 2s});
  if (context.rank() == 1) ::raise(SIGSTOP);
  group.barrier();
});

TEST(MpiLostRanks, AStoppedRankIsNamedAtTheTimeout) {
  const auto run = run_over_mpi({"mpi: stopped"}, 2);
  EXPECT_THAT(run.ranks[0].err,
              AllOf(HasSubstr("barrier #1 at mpi_test.cpp:"), HasSubstr("did not finish in time"),
                    HasSubstr("it has been stopped by a signal")));
}

TEST(MpiLostRanks, ARankThatLeavesEndsTheOthers) {
  const auto run = run_over_mpi({"lost: leaves"}, 2);
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.ranks[1].err, HasSubstr("enough"));
  EXPECT_THAT(run.ranks[0].err, HasSubstr("another rank is gone"));
}

}  // namespace
}  // namespace lockstep
