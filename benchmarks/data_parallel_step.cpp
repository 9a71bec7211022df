// SPDX-License-Identifier: BSD-3-Clause
// Steps of several nets on two CPU cores of one process: the module alone with two threads in each operator,
// DataParallel with two replicas, and two ranks that are threads. The Python twin is
// pytorch/data_parallel_step.py.
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <lockstep/lockstep.h>

#include "training_step.h"

namespace lockstep::bench::data_parallel_step {
namespace {

constexpr int kReplicas = 2;

struct Flags {
  std::string net = "resnet18";
  int steps = 20;
};

struct Times {
  std::vector<double> module;
  std::vector<double> replicas;
  std::vector<double> ranks;
};

template <typename MakeNet>
void time_one_process(const Flags& flags, const MakeNet& make_net, const at::Tensor& input, Times& times) {
  at::set_num_threads(kReplicas);
  const auto module = make_step(make_net(), input);
  const auto net = make_net();
  lockstep::DataParallel parallel(
      net, {.device_ids = {at::kCPU, at::kCPU}, .make_replica = [&] { return make_net().ptr(); }});
  const auto replicas = make_step(parallel, input);
  double loss = 0;
  for (int i = -3; i < flags.steps; ++i) {
    const double of_module = seconds_of(module, loss);
    const double of_replicas = seconds_of(replicas, loss);
    if (i < 0) continue;
    times.module.push_back(of_module);
    times.replicas.push_back(of_replicas);
  }
}

template <typename MakeNet>
void time_thread_ranks(const Flags& flags, const MakeNet& make_net, const at::Tensor& input, Times& times) {
  lockstep::spawn_threads(
      kReplicas,
      [&](lockstep::Context& context) {
        lockstep::DistributedDataParallel ddp(make_net());
        const auto step =
            make_step(ddp, input.chunk(kReplicas)[static_cast<std::size_t>(context.rank())].clone());
        double loss = 0;
        for (int i = -3; i < flags.steps; ++i) {
          context.barrier();
          const double seconds = seconds_of(step, loss);
          if (i >= 0 && context.is_main_process()) times.ranks.push_back(seconds);
        }
      },
      {.threads_per_rank = 1});
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps in one process; prints JSON");
  Flags flags;
  app.add_option("--net", flags.net)->check(CLI::IsMember(net_names()))->capture_default_str();
  app.add_option("--steps", flags.steps)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  lockstep::enable_caching_cpu_allocator();
  Times times;
  with_net(flags.net, kReplicas, [&](const auto& make_net, const at::Tensor& input) {
    time_one_process(flags, make_net, input, times);
    time_thread_ranks(flags, make_net, input, times);
  });
  std::cout << nlohmann::json{{"module_seconds", median(times.module)},
                              {"replicas_seconds", median(times.replicas)},
                              {"ranks_seconds", median(times.ranks)}}
            << std::endl;
  return 0;
}

}  // namespace lockstep::bench::data_parallel_step
