// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_plan/machine.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <new>
#include <type_traits>

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/default_group.h>
#include <lockstep/spawn/spawn.h>

#include "base/shared_memory.h"
#include "base/throw_error.h"
#include "lockstep_bench/cost_model.h"
#include "lockstep_plan/model.h"

namespace lockstep::plan {
namespace {

using nlohmann::json;

template <class Action>
double median_seconds(const Action& action) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (int i = 0; i < 11; ++i) {
    default_group().barrier();
    const auto start = Clock::now();
    action();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + 5);
  return seconds[5];
}

constexpr std::int64_t kWidth = 256, kLength = 64;

// Of forward and backward of a GPT's block for so many samples.
double block_seconds(std::int64_t samples) {
  const auto weight = [](std::int64_t rows, std::int64_t columns) {
    return torch::randn({rows, columns}).mul_(0.02).requires_grad_();
  };
  const auto q = weight(kWidth, kWidth), k = weight(kWidth, kWidth), v = weight(kWidth, kWidth);
  const auto o = weight(kWidth, kWidth), fc = weight(4 * kWidth, kWidth), proj = weight(kWidth, 4 * kWidth);
  const auto x = torch::randn({samples, kLength, kWidth}).requires_grad_();
  const auto heads = [](const at::Tensor& each) { return each.unflatten(-1, {-1, 32}).transpose(1, 2); };
  return median_seconds([&] {
    const auto normed = torch::layer_norm(x, {kWidth});
    const auto attended =
        at::scaled_dot_product_attention(heads(torch::linear(normed, q)), heads(torch::linear(normed, k)),
                                         heads(torch::linear(normed, v)), {}, 0, true);
    const auto y = x + torch::linear(attended.transpose(1, 2).flatten(2), o);
    (y + torch::linear(torch::gelu(torch::linear(torch::layer_norm(y, {kWidth}), fc)), proj))
        .sum()
        .backward();
    for (const auto& each : {q, k, v, o, fc, proj, x}) each.mutable_grad().reset();
  });
}

// The rate of products, and what a block takes besides, from few and many samples.
void measure_block(Machine& machine) {
  constexpr std::int64_t kFew = 1, kMany = 16;
  const auto few = block_seconds(kFew), many = block_seconds(kMany);
  const auto flops = 3 * gpt_layers({1, kWidth, 1, kLength})[1].flops;
  machine.flops = flops * (kMany - kFew) / std::max(many - few, 0.5 * many);
  machine.layer_start = std::max(0.0, few - flops * kFew / machine.flops) / 3;
}

Link measure_link(int ranks) {
  if (ranks == 1) return {};
  std::vector<bench::CostSample> samples;
  for (std::int64_t bytes = 64 << 10; bytes <= 16 << 20; bytes *= 4) {
    const auto tensor = torch::zeros({bytes / 4});
    const auto sent = 2.0 * (ranks - 1);
    const auto seconds = median_seconds([&] { default_group().all_reduce(tensor); });
    samples.push_back({{sent, sent / ranks * static_cast<double>(bytes), 0}, seconds});
  }
  const auto fitted = bench::fit_cost_model(samples);
  return {fitted.alpha, fitted.beta};
}

json to_json(const Link& link) {
  return {{"latency", link.latency}, {"seconds_per_byte", link.seconds_per_byte}};
}

Link link_of(const json& value) {
  return {value.at("latency").get<double>(), value.at("seconds_per_byte").get<double>()};
}

}  // namespace

Machine measure_machine(int ranks) {
  static_assert(std::is_trivially_copyable_v<Machine>);
  const auto memory = SharedMemory::create("lockstep-plan", sizeof(Machine));
  memory.commit(0, sizeof(Machine), "what rank 0 measures");
  auto* const measured = new (memory.data()) Machine;
  spawn(
      [&](int) {
        const auto context = init();
        Machine machine{.ranks_per_host = ranks, .memory = static_cast<std::int64_t>(available_memory())};
        measure_block(machine);
        machine.host = measure_link(ranks);
        if (context.is_main_process()) *measured = machine;
      },
      {.nprocs = ranks});
  return *measured;
}

Machine read_machine(const std::filesystem::path& file) {
  try {
    std::ifstream stream(file);
    if (!stream) throw_error<ArgumentError>("it cannot be read");
    const auto all = json::parse(stream);
    Machine machine{.ranks_per_host = all.at("ranks_per_host").get<int>(),
                    .flops = all.at("flops").get<double>(),
                    .layer_start = all.at("layer_start").get<double>(),
                    .memory = all.at("memory").get<std::int64_t>(),
                    .host = link_of(all.at("host"))};
    if (all.contains("network")) machine.network = link_of(all.at("network"));
    if (machine.ranks_per_host < 1 || machine.flops <= 0 || machine.memory <= 0)
      throw_error<ArgumentError>("ranks_per_host, flops and memory must be above 0");
    return machine;
  } catch (const std::exception& error) {
    throw_error<ArgumentError>("{} is no machine as lockstep plan --measure writes it: {}", file.string(),
                               error.what());
  }
}

void write_machine(const Machine& machine, const std::filesystem::path& file) {
  json all{{"ranks_per_host", machine.ranks_per_host},
           {"flops", machine.flops},
           {"layer_start", machine.layer_start},
           {"memory", machine.memory},
           {"host", to_json(machine.host)}};
  if (machine.network) all["network"] = to_json(*machine.network);
  write_text(all.dump(2) + "\n", file);
}

}  // namespace lockstep::plan
