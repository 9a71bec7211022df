// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_plan/meshes.h"

#include <algorithm>

#include <lockstep/pipelining/schedule.h>

#include "base/throw_error.h"
#include "lockstep_plan/groups.h"
#include "pipelining/stage_cuts.h"

namespace lockstep::plan {
namespace {

struct Sizes {
  int dp, pp, ep, cp, tp;

  // The ranks that have other data, and those of them that have the same experts.
  Group data() const { return {{dp, pp * ep * cp * tp}, {ep, cp * tp}, {cp, tp}}; }
  Group replicas() const { return {{dp, pp * ep * cp * tp}, {cp, tp}}; }
};

// What a rank of a stage has, and computes for one sample.
struct Stage {
  std::size_t first = 0, last = 0;                 // layers
  std::int64_t parameters = 0, largest_layer = 0;  // without experts
  std::int64_t expert_parameters = 0, largest_experts = 0;
  std::int64_t activations = 0, output = 0;
  double forward = 0;  // seconds
};

class Mesh {
 public:
  Mesh(const std::vector<Layer>& layers, const Machine& machine, const Job& job, const Sizes& sizes)
      : layers_(layers), machine_(machine), job_(job), sizes_(sizes) {
    std::vector<double> costs;
    for (const auto& layer : layers) costs.push_back(layer.flops / parts_of(layer));
    const auto begins = pipelining::stage_cuts(costs, static_cast<std::size_t>(sizes.pp));
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
  int parts_of(const Layer& layer) const { return layer.all_reduces > 0 ? sizes_.tp : 1; }
  // Those of a pipeline.
  int samples() const { return job_.batch_size / sizes_.dp / sizes_.ep; }

  std::vector<ShardingForm> forms() const {
    if (sizes_.data().ranks() == 1) return {ShardingForm::ddp};
    std::vector all{ShardingForm::ddp, ShardingForm::gathered};
    const auto data = sizes_.data();
    if (data.on_host(machine_) > 1 && data.is_alike_on_hosts(machine_)) all.push_back(ShardingForm::shared);
    return all;
  }

  // Divisors of a replica's samples that the schedule takes.
  std::vector<int> microbatches() const {
    std::vector<int> all;
    for (int count = 1; count <= samples(); ++count) {
      if (samples() % count != 0 || (job_.microbatches && count != *job_.microbatches)) continue;
      if (schedule_takes(count)) all.push_back(count);
    }
    return all;
  }
  bool schedule_takes(int microbatches) const {
    try {
      pipelining::make_plan(job_.schedule, sizes_.pp, 1, microbatches);
      return true;
    } catch (const ArgumentError&) {
      return false;
    }
  }

  Stage stage_of(std::size_t first, std::size_t last) const {
    Stage stage{.first = first, .last = last};
    for (auto i = first; i < last; ++i) {
      const auto& layer = layers_[i];
      const int parts = parts_of(layer);
      const auto experts = (layer.expert_parameters + sizes_.ep - 1) / sizes_.ep;
      const auto parameters = (layer.parameters - layer.expert_parameters + parts - 1) / parts;
      stage.parameters += parameters;
      stage.expert_parameters += experts;
      stage.largest_experts = std::max(stage.largest_experts, experts);
      stage.largest_layer = std::max(stage.largest_layer, parameters);
      // The norm before the products of each all-reduce: its input and output are whole on all ranks.
      const auto whole = std::min(layer.activations, 2 * layer.all_reduces * layer.output);
      stage.activations += whole + (layer.activations - whole + parts - 1) / parts;
      stage.output = layer.output;
      stage.forward += layer.flops / parts / machine_.flops;
    }
    return stage;
  }

  // Of forward for `samples`, and as long again in backward.
  double tensor_seconds(const Stage& stage, double samples) const {
    double seconds = 0;
    for (auto i = stage.first; i < stage.last; ++i)
      seconds +=
          layers_[i].all_reduces *
          all_reduce(samples * static_cast<double>(layers_[i].output), {{sizes_.tp, 1}}, machine_).sum();
    return seconds;
  }

  // To pass the keys and values of all layers to the next rank once.
  double ring_seconds(const Stage& stage, double samples) const {
    double seconds = 0;
    for (auto i = stage.first; i < stage.last; ++i) {
      const auto bytes = samples * static_cast<double>(layers_[i].keys) / parts_of(layers_[i]);
      if (bytes > 0) seconds += pass_on(bytes, {{sizes_.cp, sizes_.tp}}, machine_);
    }
    return seconds;
  }

  // Tokens to the experts and results back.
  double expert_seconds(const Stage& stage, double samples) const {
    double seconds = 0;
    for (auto i = stage.first; i < stage.last; ++i)
      if (layers_[i].experts > 0)
        seconds += 2 * all_to_all(samples * static_cast<double>(layers_[i].dispatched),
                                  {{sizes_.ep, sizes_.cp * sizes_.tp}}, machine_)
                           .sum();
    return seconds;
  }

  double message_seconds(double samples) const {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i + 1 < stages_.size(); ++i) bytes = std::max(bytes, stages_[i].output);
    return pass_on(samples * static_cast<double>(bytes), {{sizes_.pp, sizes_.ep * sizes_.cp * sizes_.tp}},
                   machine_);
  }

  double data_seconds(ShardingForm form, const Stage& stage) const {
    const auto reduction = [&](std::int64_t parameters, const Group& group) {
      const auto whole = all_reduce(static_cast<double>(parameters * kFloat), group, machine_);
      if (form == ShardingForm::gathered) return 1.5 * whole.sum();
      return (form == ShardingForm::shared ? 0.5 : 1) * whole.host + whole.network;
    };
    return reduction(stage.parameters, sizes_.data()) + reduction(stage.expert_parameters, sizes_.replicas());
  }

  MemoryBytes memory(ShardingForm form, const Stage& stage, double samples) const {
    const auto of = [&](std::int64_t parameters, std::int64_t largest, const Group& group) {
      // A group may have other numbers of ranks on its hosts.
      const bool on_one_host = form == ShardingForm::shared;
      const MemoryPlan plan{.parameters = std::max<std::int64_t>(parameters, 1),
                            .optimizer_states = job_.optimizer_states,
                            .ranks_per_host = on_one_host ? group.on_host(machine_) : group.ranks(),
                            .form = form,
                            .largest_group = std::max<std::int64_t>(largest, 1),
                            .limit = machine_.memory};
      return estimate_memory(plan).planned.rank;
    };
    auto bytes = of(stage.parameters, stage.largest_layer, sizes_.data());
    bytes.activations = static_cast<std::int64_t>(samples * static_cast<double>(stage.activations));
    if (stage.expert_parameters == 0) return bytes;
    const auto experts = of(stage.expert_parameters, stage.largest_experts, sizes_.replicas());
    bytes.parameters += experts.parameters;
    bytes.gradients += experts.gradients;
    bytes.optimizer_states += experts.optimizer_states;
    bytes.gathered += experts.gathered;
    return bytes;
  }

  Choice run(ShardingForm form, int microbatches) const {
    const auto& [dp, pp, ep, cp, tp] = sizes_;
    // Context parallel ranks have a part of each sample.
    const auto share = static_cast<double>(samples()) / microbatches / cp;
    Choice choice{
        .dp = dp, .pp = pp, .ep = ep, .cp = cp, .tp = tp, .form = form, .microbatches = microbatches};
    std::vector<pipelining::StageTimes> times;
    for (const auto& stage : stages_) {
      const auto layers = static_cast<double>(stage.last - stage.first);
      const auto compute = share * stage.forward + layers * machine_.layer_start;
      const auto tensor = tensor_seconds(stage, share), ring = ring_seconds(stage, share);
      const auto both = compute + tensor + expert_seconds(stage, share);
      // Backward passes keys and values on as forward does, and their gradients once more often.
      const auto forward_ring = (cp - 1) * ring, backward_ring = (2 * cp - 1) * ring;
      times.push_back({.forward = both + forward_ring, .input = both + backward_ring, .weight = compute});
      choice.compute += 3 * compute * microbatches / pp;
      choice.tensor += 2 * tensor * microbatches / pp;
      choice.context += (forward_ring + backward_ring) * microbatches / pp;
      choice.expert += 2 * expert_seconds(stage, share) * microbatches / pp;
      choice.data = std::max(choice.data, data_seconds(form, stage));
    }
    const auto plan = pipelining::make_plan(job_.schedule, pp, 1, microbatches);
    const auto timeline = pipelining::simulate(plan, times, message_seconds(share));
    const auto busy = choice.compute + choice.tensor + choice.context + choice.expert;
    choice.pipeline = std::max(0.0, timeline.step_time - busy);
    choice.step = timeline.step_time + choice.data;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const auto bytes = memory(form, stages_[i], share * timeline.peak_microbatches[i]);
      if (bytes.total() > choice.rank.total()) choice.rank = bytes;
    }
    choice.host = choice.rank.total() * std::min(machine_.ranks_per_host, job_.ranks);
    choice.fits = choice.host <= machine_.memory;
    return choice;
  }

  const std::vector<Layer>& layers_;
  const Machine& machine_;
  const Job& job_;
  Sizes sizes_;
  std::vector<Stage> stages_;
};

// Whether the model and the batch can be cut so.
bool is_possible(const std::vector<Layer>& layers, const Job& job, const Sizes& sizes) {
  const auto& [dp, pp, ep, cp, tp] = sizes;
  const auto some = [&](auto field) {
    return std::ranges::any_of(layers, [&](const auto& layer) { return layer.*field > 0; });
  };
  if (job.batch_size % (dp * ep) != 0) return false;
  if (tp > 1 && (!some(&Layer::all_reduces) || job.heads % tp != 0)) return false;
  if (cp > 1 && (!some(&Layer::keys) || job.positions % (2 * cp) != 0)) return false;
  if (ep == 1) return true;
  return some(&Layer::experts) &&
         std::ranges::all_of(layers, [&](const auto& layer) { return layer.experts % sizes.ep == 0; });
}

std::vector<int> divisors(int number) {
  std::vector<int> all;
  for (int i = 1; i <= number; ++i)
    if (number % i == 0) all.push_back(i);
  return all;
}

std::vector<Sizes> possible_meshes(const std::vector<Layer>& layers, const Job& job) {
  std::vector<Sizes> all;
  for (const int pp : divisors(job.ranks)) {
    if (pp > static_cast<int>(layers.size())) continue;
    for (const int tp : divisors(job.ranks / pp))
      for (const int cp : divisors(job.ranks / pp / tp))
        for (const int ep : divisors(job.ranks / pp / tp / cp)) {
          const Sizes sizes{job.ranks / pp / tp / cp / ep, pp, ep, cp, tp};
          if (is_possible(layers, job, sizes)) all.push_back(sizes);
        }
  }
  return all;
}

void check_job(const Job& job, const Machine& machine) {
  const auto require = [](const char* name, int value) {
    if (value < 1) throw_error<ArgumentError>("{} is {}; it must be 1 or more", name, value);
  };
  require("the number of ranks", job.ranks);
  require("the batch size", job.batch_size);
  require("the number of heads", job.heads);
  require("the number of positions", job.positions);
  require("the number of micro-batches", job.microbatches.value_or(1));
  const int on_host = machine.ranks_per_host;
  if (job.ranks > on_host && job.ranks % on_host != 0)
    throw_error<ArgumentError>(
        "{} ranks do not fill hosts of {} ranks each; use a multiple of {} ranks, or give the hosts by "
        "--hosts",
        job.ranks, on_host, on_host);
}

}  // namespace

std::vector<Choice> plan_meshes(const std::vector<Layer>& layers, const Machine& machine, const Job& job) {
  check_job(job, machine);
  std::vector<Choice> all;
  for (const auto& sizes : possible_meshes(layers, job))
    for (const auto& choice : Mesh(layers, machine, job, sizes).choices()) all.push_back(choice);
  if (all.empty())
    throw_error<ArgumentError>(
        "no mesh of {} ranks divides a batch of {} samples{}, {} heads, {} positions and {} layers; change "
        "one of them",
        job.ranks, job.batch_size,
        job.microbatches ? fmt::format(" in {} micro-batches of each replica", *job.microbatches) : "",
        job.heads, job.positions, layers.size());
  std::ranges::stable_sort(all, Mesh::is_better);
  return all;
}

}  // namespace lockstep::plan
