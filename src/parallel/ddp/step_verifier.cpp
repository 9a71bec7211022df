// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <optional>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>
#include <lockstep/ddp/step_verifier.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "ddp/verdict.h"
#include "ddp/verified_pass.h"
#include "graphs/graph_phase.h"
#include "intercept/storage_guard.h"
#include "modules/agreement.h"
#include "nn/synced_batch_norm.h"
#include "optim/optimizer_states.h"
#include "runtime/elastic_run.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

using ddp::Checksums;
using modules::NamedTensor;

constexpr const char* kCallName = "verification of a step";

DistributedDataParallelModule& ddp_of(torch::nn::Module& module) {
  if (auto* const ddp = dynamic_cast<DistributedDataParallelModule*>(&module)) return *ddp;
  throw_error<ArgumentError>(
      "StepVerifier: the module is a {}, not a DistributedDataParallel, whose ranks alone have all that computes a "
      "step of another; it supports neither fully_shard() nor modules that are not wrapped",
      module.name());
}

void check_options(const StepVerifierOptions& options) {
  for (const auto& [value, name] :
       {std::pair{options.interval, "interval"}, std::pair{options.accumulation_steps, "accumulation_steps"}})
    if (value < 1) throw_error<ArgumentError>("StepVerifier: {} is {}; it must be 1 or more", name, value);
}

// Throws ArgumentError for layers whose forward calls other ranks.
void check_layers(const torch::nn::Module& module) {
  for (const auto& layer : nn::synced_layers(module)) {
    throw_error<ArgumentError>(
        "StepVerifier: {} is a SyncBatchNorm, whose forward needs all ranks, so that one rank cannot compute the step of "
        "another; use BatchNorm",
        layer.name);
  }
  for (const auto& each : modules::distinct(module.named_parameters())) {
    if (intercept::has_guard(each.tensor))
      throw_error<ArgumentError>(
          "StepVerifier: {} is a parameter of parallelize_module(), whose forward needs other ranks",
          each.name);
  }
}

// What a checksum of every rank is compared for: parameters, and states of the optimizer.
void append_states(std::vector<NamedTensor>& tensors, const std::string& name, const Value& value) {
  if (value.is<at::Tensor>()) {
    tensors.push_back({name, value.as_tensor()});
  } else if (value.is<std::int64_t>()) {
    tensors.push_back({name, at::tensor(value.as_int(), at::kLong)});
  } else if (value.is<Dict>()) {
    for (const auto& [key, item] : value.as_dict())
      append_states(tensors, fmt::format("{}[{}]", name, repr(key)), item);
  }
}

std::vector<NamedTensor> compared_tensors(const torch::nn::Module& module,
                                          const torch::optim::Optimizer* optimizer) {
  auto tensors = modules::distinct(module.named_parameters());
  if (optimizer != nullptr && dynamic_cast<const ddp::RejoiningOptimizer*>(optimizer) == nullptr)
    append_states(tensors, "optimizer", optim::states_of_rank(*optimizer).at("state"));
  return tensors;
}

// [rank]
std::vector<Checksums> gather(const ProcessGroup& group, const Checksums& own, std::source_location where) {
  const comm::CallSite site(where, kCallName);
  const auto device = comm::device_for_objects(group);
  const auto here = at::tensor(own, at::kLong).to(device);
  const auto all = at::empty({group.size() * here.numel()}, here.options());
  group.all_gather_into_tensor(all, here, where);
  const auto host = all.cpu();
  std::vector<Checksums> rows;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto* const begin = host.const_data_ptr<std::int64_t>() + rank * here.numel();
    rows.emplace_back(begin, begin + here.numel());
  }
  return rows;
}

// The memory of a run within elastic::run(), which is so on all ranks or on none; else nullptr.
const RunMemory* memory_of_elastic_run() {
  auto* const run = runtime::current_run();
  auto* const elastic = run == nullptr ? nullptr : run->elastic();
  const bool is_on_all_ranks = elastic != nullptr && elastic->memory().state().phase == RunPhase::running;
  return is_on_all_ranks ? &elastic->memory() : nullptr;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string text_of(const ddp::Verdict& verdict, const std::string& tensor, int size) {
  const auto ranks = ranks_text(verdict.wrong);
  if (verdict.is_decided) {
    return fmt::format(
        "{} computed another gradient of {} than two other ranks for the same batch, random numbers and buffers. Its processor or "
        "memory makes errors: replace its host, and continue from a checkpoint",
        ranks, tensor);
  }
  return fmt::format(
      "{} computed different gradients of {} for the same batch, random numbers and buffers, and {}. Where this happens on sound "
      "hosts, forward or backward is not deterministic: docs/verify.md",
      ranks, tensor, size == 2 ? "no third rank can decide which of them is wrong" : "no two of them agree");
}

// The ranks of a verified step whose gradients no two ranks agree on yet.
class OpenCases {
 public:
  OpenCases(int ranks, const std::vector<int>& subjects) : ranks_(ranks) {
    for (const int each : subjects) answers_[each];
  }

  bool empty() const { return answers_.empty(); }
  bool contains(int rank) const { return answers_.contains(rank); }

  // rows[rank]: the checksums of its own gradients, then those of the rank that is `distance` ranks before it.
  void add(const std::vector<Checksums>& rows, int distance) {
    for (auto& [subject, answers] : answers_) {
      const auto& own = rows[static_cast<std::size_t>(subject)];
      const int by = (subject + distance) % ranks_;
      const auto& again = rows[static_cast<std::size_t>(by)];
      const auto middle = static_cast<std::ptrdiff_t>(own.size() / 2);
      if (answers.empty()) answers.push_back({subject, {own.begin(), own.begin() + middle}});
      answers.push_back({by, {again.begin() + middle, again.end()}});
    }
    close(/*undecided_too=*/distance + 1 == ranks_);
  }

  // The result for the closed ones together.
  const ddp::Verdict& verdict() const { return verdict_; }

 private:
  void close(bool undecided_too) {
    std::erase_if(answers_, [&](const auto& each) {
      const auto verdict = ddp::judge(each.second);
      if (!verdict.is_decided && !undecided_too) return false;
      merge(verdict);
      return true;
    });
  }

  void merge(const ddp::Verdict& verdict) {
    if (verdict.wrong.empty()) return;
    const bool is_first = verdict_.wrong.empty();
    verdict_.is_decided = verdict.is_decided && (is_first || verdict_.is_decided);
    if (is_first) verdict_.first_tensor = verdict.first_tensor;
    for (const int rank : verdict.wrong)
      if (std::ranges::find(verdict_.wrong, rank) == verdict_.wrong.end()) verdict_.wrong.push_back(rank);
    std::ranges::sort(verdict_.wrong);
  }

  int ranks_;
  std::map<int, std::vector<ddp::Answer>> answers_;  // by subject
  ddp::Verdict verdict_;
};

}  // namespace

StepVerifier::StepVerifier(ModuleRef module, const StepVerifierOptions& options, std::source_location where)
    : ddp_(ddp_of(*module)), options_(options) {
  const CallerPlace place(where);
  const auto& group = ddp_.process_group();
  const comm::CallSite site(where, kCallName);
  modules::tell_on_failure({group}, "StepVerifier", where, [&] {
    check_options(options_);
    ddp_.state_->require_can_verify();
    if (group.size() > 1) check_layers(ddp_);
    compared_tensors(ddp_, options_.optimizer);  // throws for an optimizer of an unknown class
  });
  if (group.size() == 1) return;
  modules::check_same_on_all_ranks(
      group,
      {.user = "StepVerifier",
       .lines = fmt::format(
           "intra-op threads {}, instruction set {}\ninterval {}, all_ranks {}, on_mismatch {}, "
           "accumulation_steps {}, optimizer {}, generators {}\n",
           at::get_num_threads(), at::get_cpu_capability(), options_.interval, options_.all_ranks,
           options_.on_mismatch == OnMismatch::stop ? "stop" : "replace", options_.accumulation_steps,
           options_.optimizer != nullptr, options_.generators.size()),
       .advice = "Only ranks that compute alike can verify each other: give them one number of threads "
                 "(OMP_NUM_THREADS), processors of one kind, and the same options"},
      where);
}

bool StepVerifier::begin_pass() {
  current_ = next_;
  if (++next_.pass >= options_.accumulation_steps) next_ = {.step = current_.step + 1};
  return (current_.step + 1) % options_.interval == 0 && ddp_.process_group().size() > 1;
}

void StepVerifier::verify(const AnyPyTree& batch, const std::function<void()>& pass, const Replay& replay,
                          std::source_location where) {
  {
    const CallerPlace place(where);
    using enum ddp::Feature;
    const auto& group = ddp_.process_group();
    if (ddp_.join_options()) check({join}, verified_step, group);
    if (graph_phase() != GraphPhase::none) check({graphed_step}, verified_step, group);
    // Throws on all ranks where a copy of the batch cannot get the tensors of another rank.
    static_cast<void>(batch.with_tensors(AnyPyTree::Tensors(batch.tensors().size(), at::empty({0}))));
    ddp_.state_->require_can_verify();  // a hook may have been registered
    if (current_.pass == 0) compare_tensors(where);
    ddp_.state_->prepare_for_forward(ddp_.sync_, false);  // follows changes of the module
    ddp_.state_->sync_buffers_if_due();
  }
  const auto verdict = compare_gradients(batch, pass, replay, where);
  ++verified_;
  if (verdict.wrong.empty()) return;
  const auto tensor = ddp_.state_->parameters()[verdict.first_tensor].name;
  refuse(verdict, text_of(verdict, tensor, ddp_.process_group().size()), tensor, where);
}

void StepVerifier::compare_tensors(std::source_location where) const {
  const auto tensors = compared_tensors(ddp_, options_.optimizer);
  std::vector<at::Tensor> values;
  for (const auto& each : tensors) values.push_back(each.tensor);
  std::vector<ddp::Answer> answers;
  for (auto& row : gather(ddp_.process_group(), ddp::checksums_of(values), where))
    answers.push_back({static_cast<int>(answers.size()), std::move(row)});
  auto verdict = ddp::judge(answers);
  if (verdict.wrong.empty()) return;
  const auto& name = tensors[verdict.first_tensor].name;
  // A replacement would begin with them.
  const bool is_decided = std::exchange(verdict.is_decided, false);
  refuse(
      verdict,
      fmt::format(
          "the values of {} on {} differ from {}. They have changed since the last verified step: continue "
          "from a checkpoint that is older",
          name, ranks_text(verdict.wrong),
          is_decided ? "those of the majority of ranks"
                     : "each other, and no majority tells which are wrong"),
      name, where);
}

ddp::Verdict StepVerifier::compare_gradients(const AnyPyTree& batch, const std::function<void()>& pass,
                                             const Replay& replay, std::source_location where) {
  const auto& group = ddp_.process_group();
  OpenCases open(group.size(), subjects());
  ddp::VerifiedPass verified(ddp_, *ddp_.state_, options_.generators);
  const auto tensors = batch.tensors();
  const auto own = verified.run(open.contains(group.rank()) ? std::optional(tensors) : std::nullopt, pass);
  for (int distance = 1; !open.empty(); ++distance) {
    const int subject = (group.rank() - distance + group.size()) % group.size();
    const int replayer = (group.rank() + distance) % group.size();
    const auto sent = open.contains(group.rank()) ? std::optional(verified.packed()) : std::nullopt;
    const auto received = exchange(group, sent, replayer,
                                   open.contains(subject) ? std::optional(subject) : std::nullopt, where);
    auto row = own;
    if (received) {
      is_replaying_ = true;
      const auto end = c10::make_scope_exit([this] { is_replaying_ = false; });
      const auto again = verified.replay(*received, tensors, [&](const std::vector<at::Tensor>& other) {
        replay(batch.with_tensors(other));
      });
      row.insert(row.end(), again.begin(), again.end());
    }
    row.resize(2 * own.size());
    open.add(gather(group, row, where), distance);
  }
  return open.verdict();
}

std::vector<int> StepVerifier::subjects() const {
  const int ranks = ddp_.process_group().size();
  if (!options_.all_ranks) return {static_cast<int>(current_.step / options_.interval % ranks)};
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
  return all;
}

void StepVerifier::refuse(const ddp::Verdict& verdict, const std::string& text, const std::string& tensor,
                          std::source_location where) const {
  const CallerPlace place(where);
  const auto& group = ddp_.process_group();
  const auto message = fmt::format("in step {} {}. The optimizer has not stepped", current_.step + 1, text);
  const auto is_wrong = [&](int rank) {
    return std::ranges::find(verdict.wrong, rank) != verdict.wrong.end();
  };
  const auto* const run =
      options_.on_mismatch == OnMismatch::replace && verdict.is_decided ? memory_of_elastic_run() : nullptr;
  if (run != nullptr && !is_wrong(group.rank())) {
    int first = 0;
    while (is_wrong(first)) ++first;
    if (group.rank() == first) {
      log(LogLevel::warning,
          message + (run->can_shrink() ? "; the run continues without it" : "; it is replaced"));
    }
    const comm::CallSite site(where, "end of the process of a wrong rank");
    group.barrier(where);  // throws PeerLost, unless the program of the wrong rank catches its error
  }
  const bool is_on_all_ranks = run == nullptr || !is_wrong(group.rank());
  throw VerificationError(with_reporter(comm::reporter_of(group), message), comm::about(group, verdict.wrong),
                          current_.step + 1, tensor, is_on_all_ranks);
}

Dict StepVerifier::state_dict() const { return {{"step", next_.step}, {"pass", next_.pass}}; }

void StepVerifier::load_state_dict(const Dict& state_dict) {
  next_ = {.step = state_dict.at("step").as_int(), .pass = state_dict.at("pass").as_int()};
}

}  // namespace lockstep
