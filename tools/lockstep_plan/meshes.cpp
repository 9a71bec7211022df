// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_plan/meshes.h"

#include <algorithm>
#include <optional>

#include <lockstep/pipelining/schedule.h>

#include "base/throw_error.h"
#include "pipelining/stage_cuts.h"

namespace lockstep::plan {
namespace {

// A group of ranks, `stride` apart from each other.
struct Group {
  int ranks, stride;

  int on_host(const Machine& machine) const { return std::clamp(machine.ranks_per_host / stride, 1, ranks); }
  int hosts(const Machine& machine) const { return (ranks + on_host(machine) - 1) / on_host(machine); }
};

const Link& network_of(const Machine& machine) {
  if (machine.network) return *machine.network;
  throw_error<ArgumentError>(
      "the ranks need several hosts, of which the machine file has no \"network\" with a latency and "
      "seconds_per_byte, as lockstep bench --nodes fits them");
}

// The all-reduce on each host and that between the hosts.
struct AllReduce {
  double host = 0, network = 0;
};

AllReduce all_reduce(double bytes, const Group& group, const Machine& machine) {
  const auto ring = [&](const Link& link, int ranks, double sent) {
    return 2.0 * (ranks - 1) * (link.latency + link.seconds_per_byte * sent / ranks);
  };
  AllReduce seconds;
  const auto near = group.on_host(machine), hosts = group.hosts(machine);
  if (near > 1) seconds.host = ring(machine.host, near, bytes);
  if (hosts > 1) {
    const auto groups = static_cast<double>(machine.ranks_per_host) / near;
    seconds.network = ring(network_of(machine), hosts, bytes * groups);
  }
  return seconds;
}

// What a rank of a stage has, and computes for one sample.
struct Stage {
  std::size_t first = 0, last = 0;  // layers
  std::int64_t parameters = 0, largest_layer = 0;
  std::int64_t activations = 0, output = 0;
  double forward = 0;  // seconds
};

class Mesh {
 public:
  Mesh(const std::vector<Layer>& layers, const Machine& machine, const Job& job, int dp, int pp, int tp)
      : layers_(layers), machine_(machine), job_(job), dp_(dp), pp_(pp), tp_(tp) {
    std::vector<double> costs;
    for (const auto& layer : layers) costs.push_back(layer.flops / parts_of(layer));
    const auto begins = pipelining::stage_cuts(costs, static_cast<std::size_t>(pp));
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) stages_.push_back(stage_of(begins[i], begins[i + 1]));
  }

  // The best number of micro-batches, for each form.
  std::vector<Choice> choices() const {
    std::vector<Choice> all;
    for (const auto form : forms()) {
      std::optional<Choice> best;
      for (const int count : microbatches()) {
        const auto choice = run(form, count);
        if (!best || is_better(choice, *best)) best = choice;
      }
      if (best) all.push_back(*best);
    }
    return all;
  }

  static bool is_better(const Choice& left, const Choice& right) {
    if (left.fits != right.fits) return left.fits;
    if (!left.fits && left.host != right.host) return left.host < right.host;
    return left.step < right.step;
  }

 private:
  int parts_of(const Layer& layer) const { return layer.all_reduces > 0 ? tp_ : 1; }
  Group replicas() const { return {dp_, pp_ * tp_}; }

  std::vector<ShardingForm> forms() const {
    if (dp_ == 1) return {ShardingForm::ddp};
    std::vector all{ShardingForm::ddp, ShardingForm::gathered};
    if (replicas().on_host(machine_) > 1) all.push_back(ShardingForm::shared);
    return all;
  }

  // Divisors of a replica's samples that the schedule takes.
  std::vector<int> microbatches() const {
    const int samples = job_.batch_size / dp_;
    std::vector<int> all;
    for (int count = pp_; count <= samples; ++count) {
      if (samples % count == 0 && (!job_.microbatches || count == *job_.microbatches)) all.push_back(count);
    }
    return all;
  }

  Stage stage_of(std::size_t first, std::size_t last) const {
    Stage stage{.first = first, .last = last};
    for (auto i = first; i < last; ++i) {
      const auto& layer = layers_[i];
      const int parts = parts_of(layer);
      const auto parameters = (layer.parameters + parts - 1) / parts;
      stage.parameters += parameters;
      stage.largest_layer = std::max(stage.largest_layer, parameters);
      stage.activations += (layer.activations + parts - 1) / parts;
      stage.output = layer.output;
      stage.forward += layer.flops / parts / machine_.flops;
    }
    return stage;
  }

  // Of forward for `samples`, and as long again in backward.
  double tensor_seconds(const Stage& stage, double samples) const {
    double seconds = 0;
    for (auto i = stage.first; i < stage.last; ++i) {
      const auto one = all_reduce(samples * static_cast<double>(layers_[i].output), {tp_, 1}, machine_);
      seconds += layers_[i].all_reduces * (one.host + one.network);
    }
    return seconds;
  }

  double message_seconds(double samples) const {
    if (pp_ == 1) return 0;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i + 1 < stages_.size(); ++i) bytes = std::max(bytes, stages_[i].output);
    const auto& link = Group{pp_, tp_}.hosts(machine_) > 1 ? network_of(machine_) : machine_.host;
    return link.latency + link.seconds_per_byte * samples * static_cast<double>(bytes);
  }

  double data_seconds(ShardingForm form) const {
    std::int64_t parameters = 0;
    for (const auto& stage : stages_) parameters = std::max(parameters, stage.parameters);
    const auto whole = all_reduce(static_cast<double>(parameters * kFloat), replicas(), machine_);
    if (form == ShardingForm::gathered) return 1.5 * (whole.host + whole.network);
    return (form == ShardingForm::shared ? 0.5 : 1) * whole.host + whole.network;
  }

  MemoryBytes memory(ShardingForm form, const Stage& stage, double samples) const {
    const auto near = replicas().on_host(machine_);
    const MemoryPlan plan{.parameters = std::max<std::int64_t>(stage.parameters, 1),
                          .optimizer_states = job_.optimizer_states,
                          .ranks_per_host = near,
                          .hosts = dp_ / near,
                          .form = form,
                          .largest_group = std::max<std::int64_t>(stage.largest_layer, 1),
                          .activations = static_cast<std::int64_t>(samples * double(stage.activations)),
                          .limit = machine_.memory};
    return estimate_memory(plan).planned.rank;
  }

  Choice run(ShardingForm form, int microbatches) const {
    const auto samples = static_cast<double>(job_.batch_size) / dp_ / microbatches;
    Choice choice{.dp = dp_, .pp = pp_, .tp = tp_, .form = form, .microbatches = microbatches};
    std::vector<pipelining::StageTimes> times;
    for (const auto& stage : stages_) {
      const auto layers = static_cast<double>(stage.last - stage.first);
      const auto compute = samples * stage.forward + layers * machine_.layer_start;
      const auto tensor = tensor_seconds(stage, samples);
      times.push_back({.forward = compute + tensor, .input = compute + tensor, .weight = compute});
      choice.compute += 3 * compute * microbatches / pp_;
      choice.tensor += 2 * tensor * microbatches / pp_;
    }
    const auto plan = pipelining::make_plan(job_.schedule, pp_, 1, microbatches);
    const auto timeline = pipelining::simulate(plan, times, message_seconds(samples));
    choice.pipeline = std::max(0.0, timeline.step_time - choice.compute - choice.tensor);
    choice.data = data_seconds(form);
    choice.step = timeline.step_time + choice.data;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const auto bytes = memory(form, stages_[i], samples * timeline.peak_microbatches[i]);
      if (bytes.total() > choice.rank.total()) choice.rank = bytes;
    }
    choice.host = choice.rank.total() * std::min(machine_.ranks_per_host, job_.ranks);
    choice.fits = choice.host <= machine_.memory;
    return choice;
  }

  const std::vector<Layer>& layers_;
  const Machine& machine_;
  const Job& job_;
  int dp_, pp_, tp_;
  std::vector<Stage> stages_;
};

void check_job(const Job& job) {
  const auto require = [](const char* name, int value) {
    if (value < 1) throw_error<ArgumentError>("{} is {}; it must be 1 or more", name, value);
  };
  require("the number of ranks", job.ranks);
  require("the batch size", job.batch_size);
  require("the number of heads", job.heads);
  require("the number of micro-batches", job.microbatches.value_or(1));
}

}  // namespace

std::vector<Choice> plan_meshes(const std::vector<Layer>& layers, const Machine& machine, const Job& job) {
  check_job(job);
  const bool can_cut = std::ranges::any_of(layers, [](const auto& layer) { return layer.all_reduces > 0; });
  std::vector<Choice> all;
  for (int pp = 1; pp <= std::min<int>(job.ranks, static_cast<int>(layers.size())); ++pp) {
    for (int tp = 1; tp <= job.ranks / pp; ++tp) {
      const int dp = job.ranks / pp / tp;
      if (dp * pp * tp != job.ranks || job.batch_size % dp != 0) continue;
      if (tp > 1 && (!can_cut || job.heads % tp != 0)) continue;
      for (const auto& choice : Mesh(layers, machine, job, dp, pp, tp).choices()) all.push_back(choice);
    }
  }
  if (all.empty())
    throw_error<ArgumentError>(
        "no mesh of {} ranks divides a batch of {} samples, {} heads and {} layers; change one of them",
        job.ranks, job.batch_size, job.heads, layers.size());
  std::ranges::stable_sort(all, Mesh::is_better);
  return all;
}

}  // namespace lockstep::plan
