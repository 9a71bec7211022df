// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <optional>
#include <string>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>
#include <lockstep/graphs/graphed_step.h>

#include "base/throw_error.h"
#include "device/module_snapshot.h"
#include "graphs/captured_step.h"
#include "graphs/graph_phase.h"

namespace lockstep {
namespace {

using graphs::CapturedStep;
using graphs::HostState;
using graphs::OperatorTrace;
using Tensors = GraphedStep::Tensors;

// Successive calls with changes after which the user is warned.
constexpr int kMaxChanges = 20;

void check_graph_options(const GraphedStep::Step& step, const GraphedStepOptions& options) {
  if (!step) throw ArgumentError("GraphedStep: the step is empty");
  for (const auto& module : options.modules) {
    if (module->weak_from_this().expired())
      throw_error<ArgumentError>("GraphedStep: {} in modules must be in a shared_ptr or a holder",
                                 module->name());
  }
  if (!options.enabled) return;
  if (options.warmup < 2) {
    throw_error<ArgumentError>(
        "GraphedStep: warmup must be 2 or more, not {}: the first run creates gradients and state, so it "
        "cannot be compared with the captured one",
        options.warmup);
  }
  if (options.max_graphs == 0) throw ArgumentError("GraphedStep: max_graphs must be 1 or more");
  for (const auto* optimizer : options.optimizers) graphs::check_capturable(optimizer);
}

void check_input(std::size_t index, const at::Tensor& input, c10::Device device) {
  const auto reject = [index](const std::string& problem) {
    throw_error<ArgumentError>("GraphedStep: input {} {}", index, problem);
  };
  if (!input.defined()) reject("is undefined");
  const bool there = input.device().type() == device.type() &&
                     (!device.has_index() || input.device().index() == device.index());
  if (!there) {
    reject(fmt::format("is on {}; move it to {} first", input.device().str(), device.str()));
  }
  if (input.layout() != at::kStrided) reject("is sparse; graphs need dense tensors");
  if (input.requires_grad()) reject("requires a gradient, which the graph's copy would receive: detach it");
}

// "cuda" is the thread's current GPU.
c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index() || !c10::impl::hasDeviceGuardImpl(device.type())) return device;
  return c10::impl::getDeviceGuardImpl(device.type())->getDevice();
}

bool in_autocast(c10::Device device) {
  return at::autocast::is_autocast_available(device.type()) &&
         at::autocast::is_autocast_enabled(device.type());
}

// The graph would keep reading weight casts that were cached before the step.
void check_autocast(c10::Device device) {
  if (!in_autocast(device) || !at::autocast::is_autocast_cache_enabled()) return;
  throw ArgumentError(
      "GraphedStep: called within an Autocast that caches cast weights; create the Autocast within the step, "
      "or with cache_enabled = false");
}

// Identifies the inputs and the global settings that select kernels.
std::string input_signature(const Tensors& inputs, c10::Device device) {
  std::string text = fmt::format("{}{}{}{}{}", c10::GradMode::is_enabled(), c10::InferenceMode::is_enabled(),
                                 in_autocast(device), at::globalContext().deterministicAlgorithms(),
                                 at::globalContext().deterministicCuDNN());
  if (in_autocast(device)) text += c10::toString(at::autocast::get_autocast_dtype(device.type()));
  for (const auto& input : inputs) {
    text += fmt::format(";{} {} {} {}", static_cast<int>(input.scalar_type()), input.device().index(),
                        fmt::join(input.sizes(), ","), fmt::join(input.strides(), ","));
  }
  return text;
}

// The state for one input signature.
struct Entry {
  std::string signature;
  int warmup_runs = 0;
  std::int64_t last_used = 0;
  std::optional<HostState> host = {};         // of the last eager run
  std::unique_ptr<OperatorTrace> trace = {};  // of the last eager run
  std::unique_ptr<CapturedStep> captured = {};
};

}  // namespace

class GraphedStep::Impl {
 public:
  Impl(c10::Device device, Step step, const GraphedStepOptions& options)
      : device_(with_index(device)), step_(std::move(step)), options_(options), parts_(options_.modules) {
    note_modules();
    if (options_.enabled && !options_.graph_device) options_.graph_device = make_graph_device(device_);
  }

  Tensors call(const Tensors& inputs) {
    if (!options_.enabled) {
      ++stats_.eager;
      return step_(inputs);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) check_input(i, inputs[i], device_);
    check_autocast(device_);
    follow_modules();
    auto& entry = find_entry(input_signature(inputs, device_));
    graphs::sync_learning_rates(options_.optimizers);
    auto host = host_state();
    invalidate_if_changed(entry, host);
    if (entry.captured) return replay(entry, inputs);
    if (entry.warmup_runs < options_.warmup) return run_eagerly(entry, inputs, std::move(host));
    entry.captured = std::make_unique<CapturedStep>(device_, step_, inputs, options_, parts_, std::move(host),
                                                    *entry.trace);
    ++stats_.captures;
    return replay(entry, inputs);
  }

  void reset() { entries_.clear(); }
  const GraphedStepStats& stats() const { return stats_; }

 private:
  HostState host_state() const { return {graphs::HyperParameters(options_.optimizers), parts_.modes()}; }

  void note_modules() {
    snapshots_.clear();
    for (const auto& module : options_.modules)
      snapshots_.emplace_back(*module, device::ModuleSnapshot::Content::parameters_and_buffers);
  }

  // Another tensor or submodule has taken the place of one that the graphs read.
  void follow_modules() {
    const auto matches = [](const auto& snapshot, const auto& module) { return snapshot.matches(*module); };
    if (std::ranges::equal(snapshots_, options_.modules, matches)) return;
    parts_ = graphs::ModuleParts(options_.modules);
    note_modules();
    for (auto& entry : entries_) drop_graph(entry);
  }

  void drop_graph(Entry& entry) const {
    entry.captured.reset();
    entry.warmup_runs = std::min(entry.warmup_runs, options_.warmup - 1);
  }

  Entry& find_entry(std::string signature) {
    auto at = std::ranges::find(entries_, signature, &Entry::signature);
    if (at == entries_.end()) {
      if (entries_.size() == options_.max_graphs)
        entries_.erase(std::ranges::min_element(entries_, {}, &Entry::last_used));
      at = entries_.insert(entries_.end(), Entry{.signature = std::move(signature)});
    }
    at->last_used = ++calls_;
    return *at;
  }

  // A changed step runs eagerly once more, for a trace to compare with.
  void invalidate_if_changed(Entry& entry, const HostState& host) {
    const bool stale = entry.captured ? !entry.captured->is_valid(host, parts_, options_.optimizers)
                                      : entry.host && !(*entry.host == host);
    if (!stale) {
      if (entry.captured) changes_ = 0;
      return;
    }
    drop_graph(entry);
    if (++changes_ != kMaxChanges) return;
    log(LogLevel::warning,
        fmt::format("GraphedStep: hyper-parameters, modes, parameters, optimizer state or gradients have "
                    "changed {} times without a replay in between; such steps run eagerly, without a speedup",
                    kMaxChanges));
  }

  Tensors run_eagerly(Entry& entry, const Tensors& inputs, HostState host) {
    const GraphPhaseScope phase(GraphPhase::warm_up);
    const bool last = entry.warmup_runs + 1 >= options_.warmup;
    auto trace = std::make_unique<OperatorTrace>(device_);
    const auto versions = graphs::versions_of(inputs);
    Tensors outputs;
    options_.graph_device->run_on_side_stream([&] {
      std::optional<graphs::Tracing> tracing;
      if (last) tracing.emplace(*trace);
      outputs = graphs::detached(step_(inputs), device_);
    });
    ++stats_.eager;
    graphs::check_not_modified(inputs, versions);
    if (!trace->error().empty()) {
      throw Error("GraphedStep: the step cannot be captured: " + trace->error());
    }
    entry.host = std::move(host);
    entry.trace = std::move(trace);
    ++entry.warmup_runs;
    return outputs;
  }

  Tensors replay(Entry& entry, const Tensors& inputs) {
    auto outputs = entry.captured->replay(inputs, options_.copy_outputs);
    ++stats_.replays;
    return outputs;
  }

  c10::Device device_;
  Step step_;
  GraphedStepOptions options_;
  graphs::ModuleParts parts_;
  std::vector<device::ModuleSnapshot> snapshots_;  // of options_.modules
  std::vector<Entry> entries_;
  GraphedStepStats stats_;
  std::int64_t calls_ = 0;
  int changes_ = 0;
};

GraphedStep::GraphedStep(c10::Device device, Step step, const GraphedStepOptions& options) {
  check_graph_options(step, options);
  impl_ = std::make_unique<Impl>(device, std::move(step), options);
}

GraphedStep::~GraphedStep() = default;
GraphedStep::GraphedStep(GraphedStep&& other) noexcept = default;
GraphedStep& GraphedStep::operator=(GraphedStep&& other) noexcept = default;

Tensors GraphedStep::operator()(const Tensors& inputs) { return impl_->call(inputs); }
void GraphedStep::reset() { impl_->reset(); }
const GraphedStepStats& GraphedStep::stats() const { return impl_->stats(); }

}  // namespace lockstep
