// SPDX-License-Identifier: BSD-3-Clause
// NCCL between ranks with a GPU each: collectives, and the errors of the survivors when a rank fails.
#include <csignal>
#include <cstdlib>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "gpu/check.h"
#include "gpu/collectives.h"
#include "support/temp_folder.h"

namespace lockstep::gpu {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 2;
constexpr auto kTimeout = 20s;  // NCCL has to start within it, too

void collectives(const std::string& backend) {
  const auto context = init({.backend = backend});
  require(context.device() == c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(context.rank())),
          "each rank has a GPU of its own");
  check_collectives(context.group(), context.device());
  check_objects(context.group());
  const auto last = context.new_group({kRanks - 1});
  require(static_cast<bool>(last) == (context.rank() == kRanks - 1), "a group has its ranks only");
  if (last) check_collectives(last, context.device());
  const auto all = context.new_group({0, 1});
  check_collectives(all, context.device());
  context.synchronize();
}

// Ranks that this process has started itself: a launcher would stop the others where one dies.
void run_ranks(const std::function<void(const InitOptions&)>& body) {
  const testing::TempFolder folder;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto process = ::fork();
    if (process == 0) {
      ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      ::setenv("LOCAL_WORLD_SIZE", std::to_string(kRanks).c_str(), 1);
      try {
        body({.init_method = "file://" + (folder.path() / "store").string(),
              .timeout = kTimeout,
              .world_size = kRanks,
              .rank = rank});
        ::_exit(0);
      } catch (const std::exception& error) {
        fmt::print(stderr, "rank {}: {}\n", rank, error.what());
        ::_exit(1);
      }
    }
    processes.push_back(process);
  }
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    int status = 0;
    ::waitpid(processes[rank], &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    require(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0),
            fmt::format("rank {} is content", rank));
  }
}

// Calls all_reduce until it throws.
template <typename Failure>
void require_failure(const Context& context, const std::string& part) {
  const auto deadline = std::chrono::steady_clock::now() + 2 * kTimeout;
  const auto x = torch::ones({1000}, torch::TensorOptions().device(context.device()));
  while (std::chrono::steady_clock::now() < deadline) {
    try {
      context.group().all_reduce(x);
      context.synchronize();
    } catch (const Failure& failure) {
      return require(std::string(failure.what()).find(part) != std::string::npos,
                     fmt::format("the message has \"{}\": {}", part, failure.what()));
    }
  }
  require(false, "a failure is reported");
}

void a_rank_dies() {
  run_ranks([](const InitOptions& options) {
    const auto context = init(options);
    const auto x = torch::ones({1000}, torch::TensorOptions().device(context.device()));
    for (int i = 0; i < 3; ++i) context.group().all_reduce(x);
    context.synchronize();
    if (context.rank() == 1) std::raise(SIGKILL);
    require_failure<PeerLost>(context, "rank 1");
    // The device still works.
    require((x + 1).isfinite().all().item<bool>(), "the survivor's device works");
  });
}

// A loop of replays hears of it too, although the graph holds calls of the group.
void a_rank_dies_beside_graphs() {
  run_ranks([](const InitOptions& options) {
    const auto context = init(options);
    const auto x = torch::ones({1000}, torch::TensorOptions().device(context.device()));
    GraphedStep step(context.device(), [&](const GraphedStep::Tensors& in) -> GraphedStep::Tensors {
      auto y = in[0] * 2;
      context.group().all_reduce(y);
      return {y};
    });
    for (int i = 0; i < 8; ++i) step({x});
    context.synchronize();
    if (context.rank() == 1) std::raise(SIGKILL);
    const auto replay_for_ever = [&] {
      const auto deadline = std::chrono::steady_clock::now() + 2 * kTimeout;
      while (std::chrono::steady_clock::now() < deadline) {
        step({x});
        context.synchronize();
      }
    };
    require_error(replay_for_ever, "rank 1");
    require((x + 1).isfinite().all().item<bool>(), "the survivor's device works");
  });
}

void a_rank_stays_away() {
  run_ranks([](const InitOptions& options) {
    const auto context = init(options);
    context.group().all_reduce(torch::ones({3}, torch::TensorOptions().device(context.device())));
    context.synchronize();
    if (context.rank() == 0)
      return require_failure<TimeoutError>(context, "has not ended on the device after 20000 ms");
    std::this_thread::sleep_for(kTimeout + 5s);
  });
}

}  // namespace

std::vector<Check> all_checks() {
  std::vector<Check> all{
      {"two_nccl", 2, "every collective over nccl between two GPUs, groups, objects",
       [] { collectives("nccl"); }, 2},
      {"two_auto", 2, "the same together with a CPU backend", [] { collectives("auto"); }, 2},
      {"two_lost", 1, "the other rank names a rank that dies, and its GPU keeps working", a_rank_dies, 2},
      {"two_lost_graph", 1, "the same in a loop of replays", a_rank_dies_beside_graphs, 2},
      {"two_hang", 1, "a rank that makes no call: a TimeoutError on the other", a_rank_stays_away, 2},
  };
  const auto more = parallel_checks();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace lockstep::gpu
