// SPDX-License-Identifier: BSD-3-Clause
#include "nn/replicas.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/runtime/default_group.h>

#include "base/throw_error.h"
#include "device/generators.h"
#include "intercept/thread_defaults.h"
#include "nn/module_copy.h"
#include "runtime/intra_op_threads.h"

namespace lockstep::nn {
namespace {

using at::Tensor;
using runtime::IntraOpThreads;

std::shared_ptr<torch::nn::Module> new_replica(
    const torch::nn::Module& original, const Replicas::Make& make,
    const std::function<bool(const torch::nn::Module&)>& is_replica) {
  auto replica =
      make ? make_module(make) : copy_module(original, "DataParallel", ", or set options.make_replica");
  if (!replica || !is_replica(*replica)) {
    throw ArgumentError("DataParallel: options.make_replica must return a module of the wrapped type");
  }
  if (replica.get() == &original) {
    throw ArgumentError(
        "DataParallel: options.make_replica returned the wrapped module; it must make a new one");
  }
  return replica;
}

void check_same_names(const torch::OrderedDict<std::string, Tensor>& original,
                      const torch::OrderedDict<std::string, Tensor>& replica, const char* what) {
  const bool same = original.size() == replica.size() && std::ranges::all_of(original, [&](const auto& item) {
                      return replica.contains(item.key());
                    });
  if (same) return;
  throw_error<ArgumentError>(
      "DataParallel: a replica has {} {}, and the module has {} with other names; check that its constructor "
      "or reset() registers all of them",
      replica.size(), what, original.size());
}

bool is_same_memory(const Tensor& a, const Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

// Shares the original's memory on the same device; copies to another.
void follow(Tensor& replica, const Tensor& original, c10::Device device) {
  if (original.device() != device) {
    replica.set_data(original.detach().to(device));
  } else if (!is_same_memory(replica, original)) {
    replica.set_data(original.detach());
  }
}

// Moves a replica's gradient to the sums as soon as it is computed.
class MoveGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  MoveGradient(std::shared_ptr<GradientSums*> sums, std::size_t replica, std::size_t parameter,
               c10::Device device)
      : sums_(std::move(sums)), replica_(replica), parameter_(parameter), device_(device) {}

  void operator()(const torch::autograd::Variable& parameter) override {
    if (*sums_ == nullptr) return;
    (*sums_)->add(replica_, parameter_, std::exchange(parameter.mutable_grad(), {}).to(device_));
  }

 private:
  std::shared_ptr<GradientSums*> sums_;
  std::size_t replica_;
  std::size_t parameter_;
  c10::Device device_;
};

}  // namespace

Replicas::Replicas(std::shared_ptr<torch::nn::Module> original, const std::vector<c10::Device>& devices,
                   const Make& make, const std::function<bool(const torch::nn::Module&)>& is_replica)
    : original_(std::move(original)),
      known_(*original_),
      parameters_(modules::distinct(original_->named_parameters())) {
  intercept::ThreadGenerator::register_kernels();
  for (const auto& device : devices) add(device, new_replica(*original_, make, is_replica));
}

void Replicas::add(c10::Device device, std::shared_ptr<torch::nn::Module> module) {
  const auto originals = original_->named_parameters();
  const auto own = module->named_parameters();
  check_same_names(originals, own, "parameters");
  check_same_names(original_->named_buffers(), module->named_buffers(), "buffers");
  std::unordered_map<const void*, std::size_t> index;
  for (std::size_t i = 0; i < parameters_.size(); ++i) index[parameters_[i].tensor.unsafeGetTensorImpl()] = i;
  std::vector<Parameter> parameters;
  for (const auto& [name, tensor] : modules::distinct(own)) {
    parameters.push_back({tensor, index.at(originals[name].unsafeGetTensorImpl())});
    const auto original = parameters.back().original;
    torch::autograd::impl::set_post_acc_grad_hooks(
        tensor, std::make_unique<MoveGradient>(sums_, replicas_.size(), original,
                                               parameters_[original].tensor.device()));
  }
  replicas_.push_back({device, std::move(module), std::move(parameters),
                       at::make_generator<at::CPUGeneratorImpl>(), std::make_unique<c10::ThreadPool>(1)});
}

void Replicas::check_module() const {
  if (known_.matches(*original_)) return;
  const auto change = known_.difference(*original_);
  if (change.empty()) return;
  throw_error<ArgumentError>("DataParallel: {} since the module was wrapped; wrap the module again", change);
}

void Replicas::update(std::size_t count) {
  check_module();
  const c10::AutoGradMode no_history(false);
  for (std::size_t i = 0; i < count; ++i) {
    auto& replica = replicas_[i];
    for (auto& [tensor, original] : replica.parameters) {
      const auto& parameter = parameters_[original].tensor;
      follow(tensor, parameter, replica.device);
      tensor.set_requires_grad(parameter.requires_grad());
    }
    update_buffers(i);
    update_modes(*replica.module);
  }
}

bool Replicas::all_on_cpu() const {
  return std::ranges::all_of(replicas_, [](const auto& replica) { return replica.device.is_cpu(); });
}

void Replicas::update_buffers(std::size_t i) {
  const auto originals = original_->named_buffers();
  auto own = replicas_[i].module->named_buffers();
  check_same_names(originals, own, "buffers");
  for (auto& item : own) {
    const auto& original = originals[item.key()];
    if (!original.defined()) continue;
    if (i == 0) {
      follow(item.value(), original, replicas_[i].device);
    } else {
      item.value().set_data(original.detach().to(replicas_[i].device, false, /*copy=*/true));
    }
  }
}

void Replicas::update_modes(torch::nn::Module& replica) const {
  const auto originals = original_->modules();
  const auto copies = replica.modules();
  for (std::size_t i = 0; i < std::min(originals.size(), copies.size()); ++i) {
    if (copies[i]->is_training() != originals[i]->is_training())
      copies[i]->train(originals[i]->is_training());
  }
}

void Replicas::seed() {
  const auto base = static_cast<std::uint64_t>(device::draw_seed(default_generator()));
  for (std::size_t i = 0; i < replicas_.size(); ++i) replicas_[i].generator.set_current_seed(base + i);
}

// LibTorch's thread-local state, for the pool's threads.
struct Replicas::CallerState {
  explicit CallerState(const std::vector<Replica>& replicas) {
    for (const auto& replica : replicas) {
      autocast_types[replica.device.type()] = at::autocast::get_autocast_dtype(replica.device.type());
      streams.push_back(
          replica.device.is_cpu()
              ? std::nullopt
              : std::optional(c10::impl::VirtualGuardImpl(replica.device.type()).getStream(replica.device)));
    }
  }
  void set_autocast_types() const {
    for (const auto& [device, dtype] : autocast_types) at::autocast::set_autocast_dtype(device, dtype);
  }

  at::ThreadLocalState local;
  std::map<c10::DeviceType, at::ScalarType> autocast_types;
  std::vector<std::optional<c10::Stream>> streams;
};

void Replicas::run(std::size_t count, const std::function<void(std::size_t)>& job) {
  const auto on_cpu = std::count_if(replicas_.begin(), replicas_.begin() + static_cast<std::ptrdiff_t>(count),
                                    [](const auto& replica) { return replica.device.is_cpu(); });
  const int share = std::max(1, at::get_num_threads() / std::max(1, static_cast<int>(on_cpu)));
  if (on_cpu > 0) runtime::release_idle_threads();
  const IntraOpThreads intra_op(share);
  const CallerState state(replicas_);
  std::vector<std::exception_ptr> errors(count);
  const auto run_one = [&](std::size_t i) {
    try {
      const at::ThreadLocalStateGuard as_caller(state.local);
      state.set_autocast_types();
      const intercept::ThreadGenerator random(replicas_[i].generator);
      const c10::OptionalStreamGuard stream(state.streams[i]);
      IntraOpThreads::set(share);
      job(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  {
    // Also when run() throws: the jobs refer to variables of this function.
    const auto wait = c10::make_scope_exit([&] {
      for (std::size_t i = 0; i < count; ++i) replicas_[i].thread->waitWorkComplete();
    });
    for (std::size_t i = 0; i < count; ++i) replicas_[i].thread->run([&run_one, i] { run_one(i); });
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (!errors[i]) continue;
    const auto where = fmt::format("DataParallel: replica {} on {}", i, replicas_[i].device.str());
    try {
      std::rethrow_exception(errors[i]);
    } catch (const std::exception& error) {
      std::throw_with_nested(Error(fmt::format("{}: {}", where, error.what())));
    } catch (...) {
      std::throw_with_nested(Error(where + " threw an object that is not a std::exception"));
    }
  }
}

}  // namespace lockstep::nn
