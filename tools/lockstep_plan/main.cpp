// SPDX-License-Identifier: BSD-3-Clause
// `lockstep plan`: a separate program, because it links LibTorch and `lockstep` does not.
#include <array>
#include <iostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "base/throw_error.h"
#include "lockstep_plan/meshes.h"
#include "program_main.h"

namespace lockstep::plan {
namespace {

struct Options {
  std::string model, machine, write_model, measure;
  std::vector<std::int64_t> gpt;
  int nproc = 2, hosts = 0, microbatches = 0, positions = 0, experts = 0, top_k = 2;
  std::size_t top = 10;
  bool json = false;
  Job job{};
};

void add_options(CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  auto* measure =
      app.add_option("--measure", options.measure, "Measure this host, and write this machine file");
  app.add_option("--nproc,-n", options.nproc, "Ranks that --measure starts")
      ->check(CLI::PositiveNumber)
      ->needs(measure);
  auto* gpt = app.add_option("--gpt", options.gpt, "A GPT: LAYERS,WIDTH,VOCABULARY,CONTEXT")
                  ->delimiter(',')
                  ->expected(4)
                  ->check(CLI::PositiveNumber);
  app.add_option("--model", options.model, "The table of a model's layers, a CSV file")->excludes(gpt);
  app.add_option("--write-model", options.write_model, "Write the table of --gpt and end")->needs(gpt);
  app.add_option("--machine", options.machine, "The file that --measure has written")->excludes(measure);
  app.add_option("--hosts", options.hosts, "Hosts, which divide the ranks; default: what the ranks need")
      ->check(CLI::PositiveNumber);
  app.add_option("--ranks", options.job.ranks, "Ranks in all");
  app.add_option("--batch-size", options.job.batch_size, "Samples of a step, of all replicas");
  app.add_option("--microbatches", options.microbatches,
                 "Micro-batches of each replica; default: the fastest number")
      ->check(CLI::PositiveNumber);
  app.add_option("--heads", options.job.heads, "Attention heads, which tensor parallel ranks divide");
  app.add_option("--positions", options.positions,
                 "Length of a sample of --model, which context parallel ranks divide; default: 1")
      ->excludes(gpt)
      ->check(CLI::PositiveNumber);
  auto* experts = app.add_option("--experts", options.experts, "Experts of each block of --gpt")
                      ->needs(gpt)
                      ->check(CLI::PositiveNumber);
  app.add_option("--top-k", options.top_k, "Experts of a token")->needs(experts)->check(CLI::PositiveNumber);
  app.add_option("--optimizer-states", options.job.optimizer_states,
                 "Tensors that the optimizer has for a parameter")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--schedule", options.job.schedule, "GPipe, 1F1B or InterleavedZeroBubble")
      ->check(CLI::IsMember({"GPipe", "1F1B", "InterleavedZeroBubble"}));
  app.add_option("--top", options.top, "Meshes to show")->check(CLI::PositiveNumber);
  app.add_flag("--json", options.json, "JSON instead of a table");
}

std::vector<Layer> layers_of(const Options& options) {
  if (!options.model.empty()) return read_layers(options.model);
  if (options.gpt.empty()) throw ArgumentError("give the model by --model or --gpt");
  if (options.experts > 0 && options.top_k > options.experts)
    throw_error<ArgumentError>("--top-k {} of {} experts", options.top_k, options.experts);
  if (options.job.heads > 0 && options.gpt[1] % options.job.heads != 0)
    throw_error<ArgumentError>("--heads {} do not divide a width of {}", options.job.heads, options.gpt[1]);
  return gpt_layers(
      {options.gpt[0], options.gpt[1], options.gpt[2], options.gpt[3], options.experts, options.top_k});
}

const char* form_name(ShardingForm form) {
  constexpr std::array kNames{"replicas", "zero1", "fully_shard", "fully_shard shared"};
  return kNames.at(static_cast<std::size_t>(form));
}

void print_table(const std::vector<Choice>& choices, const Machine& machine) {
  std::cout << fmt::format(
      "{:>3} {:>3} {:>3} {:>3} {:>3}  {:<18} {:>5} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10}\n", "dp",
      "pp", "ep", "cp", "tp", "data parallel", "micro", "step ms", "compute", "tensor", "context", "experts",
      "idle", "data", "GiB a host");
  for (const auto& each : choices) {
    std::cout << fmt::format(
        "{:>3} {:>3} {:>3} {:>3} {:>3}  {:<18} {:>5} {:>9.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} "
        "{:>8.1f} {:>10.2f}{}\n",
        each.dp, each.pp, each.ep, each.cp, each.tp,
        each.dp * each.ep * each.cp == 1 ? "-" : form_name(each.form), each.microbatches, 1e3 * each.step,
        1e3 * each.compute, 1e3 * each.tensor, 1e3 * each.context, 1e3 * each.expert, 1e3 * each.pipeline,
        1e3 * each.data, static_cast<double>(each.host) / (1 << 30), each.fits ? "" : "  does not fit");
  }
  std::cout << fmt::format("a host has {}\n", bytes_text(machine.memory));
}

void print_json(const std::vector<Choice>& choices) {
  auto all = nlohmann::json::array();
  for (const auto& each : choices) {
    all.push_back({{"dp", each.dp},
                   {"pp", each.pp},
                   {"ep", each.ep},
                   {"cp", each.cp},
                   {"tp", each.tp},
                   {"data_parallel", form_name(each.form)},
                   {"microbatches", each.microbatches},
                   {"step_seconds", each.step},
                   {"compute_seconds", each.compute},
                   {"tensor_seconds", each.tensor},
                   {"context_seconds", each.context},
                   {"expert_seconds", each.expert},
                   {"idle_seconds", each.pipeline},
                   {"data_seconds", each.data},
                   {"rank_bytes", each.rank.total()},
                   {"host_bytes", each.host},
                   {"fits", each.fits}});
  }
  std::cout << all.dump(2) << std::endl;
}

int plan(Options options) {
  if (!options.measure.empty()) {
    write_machine(measure_machine(options.nproc), options.measure);
    if (options.gpt.empty() && options.model.empty()) return 0;
    options.machine = options.measure;
  }
  const auto layers = layers_of(options);
  if (!options.write_model.empty()) {
    write_layers(layers, options.write_model);
    return 0;
  }
  if (options.machine.empty())
    throw ArgumentError("give the machine by --machine, or measure it with --measure");
  auto machine = read_machine(options.machine);
  if (options.hosts > 0) {
    if (options.job.ranks % options.hosts != 0)
      throw_error<ArgumentError>(
          "--hosts {} do not divide --ranks {}; use a number of ranks that is a multiple of the hosts",
          options.hosts, options.job.ranks);
    machine.ranks_per_host = options.job.ranks / options.hosts;
  }
  if (options.microbatches > 0) options.job.microbatches = options.microbatches;
  if (options.positions > 0) {
    options.job.positions = options.positions;
  } else if (!options.gpt.empty()) {
    options.job.positions = static_cast<int>(options.gpt[3]);
  }
  auto choices = plan_meshes(layers, machine, options.job);
  choices.resize(std::min(choices.size(), options.top));
  if (options.json) {
    print_json(choices);
  } else {
    print_table(choices, machine);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::plan

int main(int argc, char** argv) {
  using namespace lockstep;
  CLI::App app(
      "Estimates the time of a step and the memory of meshes of data, pipeline, expert, context and tensor "
      "parallel ranks",
      "lockstep plan");
  plan::Options options;
  plan::add_options(app, options);
  return run_program(app, [&] {
    app.parse(argc, argv);
    return plan::plan(options);
  });
}
